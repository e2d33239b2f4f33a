//! # Gets beyond the memory budget, with all data in the page cache

use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;

use super::SHORT_RUN_SLACK;
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::{
    Latencies, ThreadTimes, device_reads, sleeps, stolen_from, stolen_time, thread_times, tick,
};

/// Bytes of a key and of a value.
const KEY: usize = 27;
const VALUE: usize = 127;
/// Number of reading threads.
const READERS: u64 = 2;
/// Engines that can keep parts of their index on disk.
const BEYOND_MEMORY: &[&str] = &["flex", "kreon", "delsm", "cedrus"];

/// Operations after which a thread reads its counters.
const COUNTERS_PERIOD: u64 = 100;

/// Operations after which a thread reads the time that the hypervisor took from its processor.
const STEAL_PERIOD: u64 = 10_000;

/// A thread alternates between gets and computations after this time.
const SLICE: Duration = Duration::from_millis(50);

/// Steps of a computation, which takes about as long as a get.
const COMPUTATION_STEPS: u64 = 3000;

/// Shorter operations are not worth a look at the counters.
const SHORT_OPERATION: Duration = Duration::from_micros(100);

/// Longest operations of a thread.
#[derive(Clone, Copy, Default)]
struct LongestOperations {
    /// Longest time by the clock.
    elapsed: Duration,
    /// Longest time by the clock, less the time in which the thread was ready and had no processor:
    /// it waited in a queue of the scheduler, or the hypervisor ran another machine. Includes all
    /// waits for other threads and for the device. The counters were read at most
    /// [`COUNTERS_PERIOD`] and [`STEAL_PERIOD`] operations before, so waits of these operations are
    /// subtracted too.
    unqueued: Duration,
    /// Time on a processor during the operation with the longest `unqueued`, and during at most
    /// [`COUNTERS_PERIOD`] operations before it. In the rest of `unqueued` the thread slept.
    ran: Duration,
    /// Longest time by the clock of an operation that read the device, or had such an operation
    /// among the [`COUNTERS_PERIOD`] operations before it, and the number of these long operations.
    /// They are not in `unqueued`: the required value is that of data in the page cache, and the
    /// kernel may take pages from it at any time.
    from_device: Duration,
    device_operations: u64,
}

impl LongestOperations {
    fn max(self, other: LongestOperations) -> LongestOperations {
        let longer = if other.unqueued > self.unqueued { other } else { self };
        LongestOperations {
            elapsed: self.elapsed.max(other.elapsed),
            from_device: self.from_device.max(other.from_device),
            device_operations: self.device_operations + other.device_operations,
            ..longer
        }
    }
}

/// Finds the longest operations of the calling thread.
#[derive(Default)]
struct OperationWatch {
    /// Operations since the thread began to do them, or continued after something else.
    operations: u64,
    times: ThreadTimes,
    sleeps: u64,
    device_reads: u64,
    cpu: usize,
    stolen: Duration,
    longest: LongestOperations,
}

impl OperationWatch {
    /// Must be called after the thread did something else: the counters are read again.
    fn resume(&mut self) {
        self.operations = 0;
    }

    /// Must be called before an operation.
    fn before_operation(&mut self) {
        if self.operations.is_multiple_of(COUNTERS_PERIOD) {
            (self.times, self.sleeps, self.device_reads) = (thread_times(), sleeps(), device_reads());
        }
        if self.operations.is_multiple_of(STEAL_PERIOD) {
            self.cpu = sched_getcpu();
            self.stolen = stolen_from(self.cpu);
        }
        self.operations += 1;
    }

    /// Must be called after an operation.
    fn after_operation(&mut self, took: Duration) {
        if took <= SHORT_OPERATION {
            return;
        }
        if device_reads() > self.device_reads {
            self.longest.elapsed = self.longest.elapsed.max(took);
            self.longest.from_device = self.longest.from_device.max(took);
            self.longest.device_operations += 1;
            return;
        }
        let now = thread_times();
        let mut waited = now.queued.saturating_sub(self.times.queued);
        if sched_getcpu() == self.cpu {
            waited += stolen_since(self.stolen, self.cpu);
        }
        let (mut unqueued, ran) = (took.saturating_sub(waited), now.ran.saturating_sub(self.times.ran));
        if sleeps() == self.sleeps {
            // A thread that never slept waited only for a processor. The kernel counts the time
            // that the hypervisor took in ticks, but subtracts it exactly from the time on a
            // processor.
            unqueued = unqueued.min(ran);
        }
        let one = LongestOperations { elapsed: took, unqueued, ran, ..LongestOperations::default() };
        self.longest = self.longest.max(one);
    }
}

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex"];
    vec![FieldCase { name: "long-gets", engines: BEYOND_MEMORY, short, deadline_s: 300, run: gets }]
}

fn key(number: u64) -> [u8; KEY] {
    let mut key = [b'k'; KEY];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// Returns the time that the hypervisor took from processor `cpu` since [`stolen_from`] returned
/// `before`, rounded up. The kernel shows whole ticks, so a wait shorter than a tick may be
/// missing.
fn stolen_since(before: Duration, cpu: usize) -> Duration {
    match stolen_from(cpu).saturating_sub(before) {
        Duration::ZERO => Duration::ZERO,
        ticks => ticks + tick(),
    }
}

fn gets(context: &CaseContext) -> CaseResult {
    let pairs = context.size(500_000, 8_000_000).min(8_000_000);
    let mib = pairs * (KEY + VALUE) as u64 / 5 / (1 << 20);
    let (db, data) = context.open_data(mib)?;
    (0..pairs).try_for_each(|number| data.insert(key(number), [6; VALUE]))?;
    drop(data);
    db.close()?;
    let (db, data) = context.open_data(mib)?;
    let length = Duration::from_secs(context.size(5, 60));
    let read = |seed: u64| read_and_compute(&data, pairs, seed, length);
    let stolen_before = stolen_time();
    let (mut all, mut longest) = (Latencies::default(), LongestOperations::default());
    let mut control = LongestOperations::default();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|seed| scope.spawn(move || read(seed))).collect();
        for reader in readers {
            let (latencies, get, computation) = reader.join().expect("reading does not panic")?;
            all.extend(&latencies);
            (longest, control) = (longest.max(get), control.max(computation));
        }
        Ok::<_, sheaf::Error>(())
    })?;
    FieldFigure::new("get: median", all.quantile(0.5), "us").report();
    FieldFigure::new("get: p99.9", all.quantile(0.999), "us").report();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    FieldFigure::new("get: longest", ms(longest.elapsed), "ms").report();
    let stolen = stolen_time().saturating_sub(stolen_before);
    FieldFigure::new("time that the hypervisor gave to others", ms(stolen), "ms").report();
    FieldFigure::new("get: longest, less waits for a processor", ms(longest.unqueued), "ms").report();
    // A hypervisor also takes time that the kernel does not see. The computations show how much.
    let name = "the same for computations without the database";
    FieldFigure::new(name, ms(control.unqueued), "ms").report();
    // The required value is that of the default engine.
    let added = ms(longest.unqueued.saturating_sub(control.unqueued));
    let figure = FieldFigure::new("get: longest, less the longest computation", added, "ms");
    let figure = figure.slack(4.0 * SHORT_RUN_SLACK);
    if context.engine == "flex" { figure.at_most(5.0) } else { figure }.report();
    FieldFigure::new("the same get: time on a processor", ms(longest.ran), "ms").report();
    FieldFigure::new("long gets that read the device", longest.device_operations as f64, "").report();
    FieldFigure::new("the longest of these", ms(longest.from_device), "ms").report();
    drop(data);
    Ok(db.close()?)
}

/// Reads for `length` and computes for `length`, in turns. The computations use neither the
/// database nor memory of the heap: what delays them, delays every program.
fn read_and_compute(
    data: &sheaf::Keyspace,
    pairs: u64,
    seed: u64,
    length: Duration,
) -> sheaf::Result<(Latencies, LongestOperations, LongestOperations)> {
    let (mut random, mut latencies) = (fastrand::Rng::with_seed(seed), Latencies::default());
    let (mut gets, mut computations) = (OperationWatch::default(), OperationWatch::default());
    let end = Instant::now() + 2 * length;
    while Instant::now() < end {
        gets.resume();
        let turn = Instant::now();
        while turn.elapsed() < SLICE {
            gets.before_operation();
            let key = key(random.u64(..pairs));
            let began = Instant::now();
            let found = data.get(key)?.is_some();
            let took = began.elapsed();
            assert!(found, "every key is there");
            latencies.add(took);
            gets.after_operation(took);
        }
        computations.resume();
        let turn = Instant::now();
        while turn.elapsed() < SLICE {
            computations.before_operation();
            let began = Instant::now();
            let mixed =
                |all: u64, step: u64| (all ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            std::hint::black_box((0..COMPUTATION_STEPS).fold(random.u64(..), mixed));
            computations.after_operation(began.elapsed());
        }
    }
    Ok((latencies, gets.longest, computations.longest))
}
