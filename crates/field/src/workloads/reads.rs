//! # Gets beyond the memory budget, with all data in the page cache

use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;

use super::SHORT_RUN_SLACK;
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::{Latencies, device_reads, stolen_from, stolen_time, thread_times, tick};

/// Bytes of a key and of a value.
const KEY: usize = 27;
const VALUE: usize = 127;
/// Number of reading threads.
const READERS: u64 = 2;
/// Engines that can keep parts of their index on disk.
const BEYOND_MEMORY: &[&str] = &["flex", "kreon", "delsm", "cedrus"];

/// Gets after which a reader looks at its time in the scheduler.
const SCHEDULE_PERIOD: u64 = 100;

/// Gets after which a reader looks at the time that the hypervisor took from its processor.
const STEAL_PERIOD: u64 = 10_000;

/// Shorter gets are not worth a look at the scheduler.
const SHORT_GET: Duration = Duration::from_micros(100);

/// Longest gets of a reader.
#[derive(Clone, Copy, Default)]
struct LongestGets {
    /// Longest time by the clock.
    elapsed: Duration,
    /// Longest time by the clock, less the time in which the thread was ready and had no processor:
    /// it waited in a queue of the scheduler, or the hypervisor ran another machine. Includes all
    /// waits for other threads and for the device. The counters were read at most
    /// [`SCHEDULE_PERIOD`] and [`STEAL_PERIOD`] gets before, so waits of these gets are subtracted
    /// too.
    unqueued: Duration,
    /// Time on a processor during the get with the longest `unqueued`, and during at most
    /// [`SCHEDULE_PERIOD`] gets before it. In the rest of `unqueued` the thread slept.
    ran: Duration,
    /// Longest time by the clock of a get that read the device, or had such a get among the
    /// [`SCHEDULE_PERIOD`] gets before it, and the number of these long gets. They are not in
    /// `unqueued`: the required value is that of data in the page cache, and the kernel may take
    /// pages from it at any time.
    from_device: Duration,
    device_gets: u64,
}

impl LongestGets {
    fn max(self, other: LongestGets) -> LongestGets {
        let longer = if other.unqueued > self.unqueued { other } else { self };
        LongestGets {
            elapsed: self.elapsed.max(other.elapsed),
            from_device: self.from_device.max(other.from_device),
            device_gets: self.device_gets + other.device_gets,
            ..longer
        }
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
    let read = |seed: u64| -> sheaf::Result<(Latencies, LongestGets)> {
        let (mut random, mut latencies) = (fastrand::Rng::with_seed(seed), Latencies::default());
        let (mut longest, mut before) = (LongestGets::default(), thread_times());
        let mut read_before = device_reads();
        let (mut cpu, mut stolen) = (sched_getcpu(), Duration::ZERO);
        let end = Instant::now() + length;
        for number in 0_u64.. {
            if number.is_multiple_of(SCHEDULE_PERIOD) {
                (before, read_before) = (thread_times(), device_reads());
            }
            if number.is_multiple_of(STEAL_PERIOD) {
                cpu = sched_getcpu();
                stolen = stolen_from(cpu);
            }
            let began = Instant::now();
            if began >= end {
                break;
            }
            let found = data.get(key(random.u64(..pairs)))?.is_some();
            assert!(found, "every key is there");
            let took = began.elapsed();
            latencies.add(took);
            if took > SHORT_GET && device_reads() > read_before {
                longest.elapsed = longest.elapsed.max(took);
                longest.from_device = longest.from_device.max(took);
                longest.device_gets += 1;
                continue;
            }
            if took > SHORT_GET.max(longest.unqueued) {
                let now = thread_times();
                let mut waited = now.queued.saturating_sub(before.queued);
                if sched_getcpu() == cpu {
                    waited += stolen_since(stolen, cpu);
                }
                let (unqueued, ran) = (took.saturating_sub(waited), now.ran.saturating_sub(before.ran));
                longest = longest.max(LongestGets { elapsed: took, unqueued, ran, ..LongestGets::default() });
            }
        }
        Ok((latencies, longest))
    };
    let stolen_before = stolen_time();
    let (mut all, mut longest) = (Latencies::default(), LongestGets::default());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|seed| scope.spawn(move || read(seed))).collect();
        for reader in readers {
            let (latencies, get) = reader.join().expect("reading does not panic")?;
            all.extend(&latencies);
            longest = longest.max(get);
        }
        Ok::<_, sheaf::Error>(())
    })?;
    FieldFigure::new("get: median", all.quantile(0.5), "us").report();
    FieldFigure::new("get: p99.9", all.quantile(0.999), "us").report();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    FieldFigure::new("get: longest", ms(longest.elapsed), "ms").report();
    let stolen = stolen_time().saturating_sub(stolen_before);
    FieldFigure::new("time that the hypervisor gave to others", ms(stolen), "ms").report();
    // The required value is that of the default engine. The scheduler may let a reader wait while
    // other programs run, and a hypervisor while other machines run. The database cannot prevent
    // either.
    let figure = FieldFigure::new("get: longest, less waits for a processor", ms(longest.unqueued), "ms");
    let figure = figure.slack(4.0 * SHORT_RUN_SLACK);
    if context.engine == "flex" { figure.at_most(5.0) } else { figure }.report();
    FieldFigure::new("the same get: time on a processor", ms(longest.ran), "ms").report();
    FieldFigure::new("long gets that read the device", longest.device_gets as f64, "").report();
    FieldFigure::new("the longest of these", ms(longest.from_device), "ms").report();
    drop(data);
    Ok(db.close()?)
}
