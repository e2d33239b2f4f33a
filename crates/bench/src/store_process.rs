//! # Store process: one open store in a child process
//!
//! The bench starts itself again as `sheaf-bench host`. The child opens one store and executes
//! requests: it reads a JSON line and writes a JSON line. The memory of each store can therefore be
//! measured and capped, and CPU time counts only the threads of this store. A crash or kill of one
//! store affects no other.
//!
//! ## Picture
//!
//! ```text
//!   bench (parent)                            child
//!   StoreProcess::start ------- spawn ----->  waits, opens nothing
//!   MemoryCgroup::add_process(pid)            (now capped)
//!   Open, Run, Check, Close --------------->  store
//!               <------- HostReply ---------
//!   kill_during_writes -------- SIGKILL --->  during writes
//! ```
//!
//! ## Crash
//!
//! A child dies with the parent (`PR_SET_PDEATHSIG`). After a signal, [`kill_all_children`] kills
//! the children before the directory of the run is removed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::data::DataSpec;
use crate::drive::{PhaseLength, SYNC_INTERVAL};
use crate::keys::KeyMaker;
use crate::measure::{self, DeviceCounters};
use crate::memory_cgroup::MemoryCgroup;
use crate::phase_spec::{self, KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::record::{LatencyPoints, PhaseOutcome};
use crate::subjects::{BenchStore, BenchSubject, StoreSetting};

/// Request of the parent to the child.
#[derive(Debug, Serialize, Deserialize)]
enum HostRequest {
    /// Opens a store. With `first`, gets its first pair.
    Open {
        subject: String,
        dir: PathBuf,
        setting: StoreSetting,
        first: Option<DataSpec>,
    },
    /// Runs a phase. Then waits at most `settle` until the store is idle.
    Run {
        phase_spec: Box<PhaseSpec>,
        settle: Duration,
    },
    /// Gets every pair, and some missing ones.
    Check {
        data: DataSpec,
    },
    Close,
}

/// Reply to one request: an error, or the result of that request.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HostReply {
    error: Option<String>,
    outcome: Option<PhaseOutcome>,
    opened: Option<OpenResult>,
}

/// Result of opening a store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OpenResult {
    /// Seconds until the first get returned.
    pub(crate) seconds: f64,
    pub(crate) is_ordered: bool,
    pub(crate) memory_bytes: u64,
}

/// Process ids of the running children, for the thread that handles signals.
static CHILD_PIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Kills all children.
pub(crate) fn kill_all_children() {
    let running = CHILD_PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for pid in running.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
        // SAFETY: the call takes no pointer, so that it cannot violate memory safety. The number is
        // that of a child, which its `StoreProcess` removes from the list soon after it has waited
        // for it.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Parent's handle of a child with a store.
pub(crate) struct StoreProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StoreProcess {
    /// Starts a child, in the control group `cap` if there is one.
    pub(crate) fn start(cap: Option<&MemoryCgroup>) -> Result<StoreProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("host")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        CHILD_PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(child.id());
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child without pipes".into());
        };
        let host = StoreProcess { child, input, output: BufReader::new(output) };
        if let Some(cap) = cap {
            cap.add_process(host.child.id())?;
        }
        Ok(host)
    }

    /// Opens or creates a store. With `first`, the child gets the first pair, which must exist.
    pub(crate) fn open(
        &mut self,
        subject: BenchSubject,
        dir: &Path,
        setting: StoreSetting,
        first: Option<&DataSpec>,
    ) -> Result<OpenResult> {
        let (subject, dir) = (subject.name().to_owned(), dir.to_path_buf());
        let answer = self.request(&HostRequest::Open { subject, dir, setting, first: first.cloned() })?;
        answer.opened.ok_or_else(|| "the host opened nothing".into())
    }

    /// Runs a phase.
    pub(crate) fn run(&mut self, phase_spec: &PhaseSpec, settle: Duration) -> Result<PhaseOutcome> {
        let answer = self.request(&HostRequest::Run { phase_spec: Box::new(phase_spec.clone()), settle })?;
        answer.outcome.ok_or_else(|| "the host ran nothing".into())
    }

    /// Gets every pair, and some missing ones.
    pub(crate) fn check(&mut self, data: &DataSpec) -> Result<()> {
        self.request(&HostRequest::Check { data: data.clone() }).map(|_| ())
    }

    /// Closes the store without a kill, and ends the child.
    pub(crate) fn close(mut self) -> Result<()> {
        self.request(&HostRequest::Close).map(|_| ())
    }

    /// Makes the child write pairs of a Zipf distribution, and kills it `after` the first second
    /// while it writes.
    pub(crate) fn kill_during_writes(mut self, data: &DataSpec, after: Duration) -> Result<()> {
        let write = |time| PhaseSpec {
            sync_every: Some(SYNC_INTERVAL),
            ..PhaseSpec::new(
                data.clone(),
                OperationMix::only(PairOperation::Update),
                KeyChoice::Zipf,
                2,
                PhaseLength::Time(time),
            )
        };
        self.run(&write(Duration::from_secs(1)), Duration::ZERO)?;
        let endless = Box::new(write(Duration::from_secs(600)));
        self.send_request(&HostRequest::Run { phase_spec: endless, settle: Duration::ZERO })?;
        std::thread::sleep(after);
        if self.child.try_wait()?.is_some() {
            return Err("the writer ended before it was killed".into());
        }
        Ok(()) // `drop` kills the child
    }

    fn send_request(&mut self, ask: &HostRequest) -> Result<()> {
        writeln!(self.input, "{}", serde_json::to_string(ask)?)?;
        Ok(self.input.flush()?)
    }

    fn request(&mut self, ask: &HostRequest) -> Result<HostReply> {
        let mut line = String::new();
        if self.send_request(ask).is_err() || self.output.read_line(&mut line)? == 0 {
            return Err(format!("its process ended: {}", self.child.wait()?).into());
        }
        let answer: HostReply = serde_json::from_str(&line)?;
        match answer.error {
            Some(error) => Err(error.into()),
            None => Ok(answer),
        }
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        // An error means that the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let pid = self.child.id();
        CHILD_PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).retain(|other| *other != pid);
    }
}

/// Executes requests in the child, until it must close or its parent has ended.
pub(crate) fn serve() -> Result<()> {
    // SAFETY: the call takes no pointer; it makes the kernel kill this process when its parent
    // ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut guest = StoreServer::default();
    for line in std::io::stdin().lines() {
        let ask: HostRequest = serde_json::from_str(&line?)?;
        let is_last = matches!(ask, HostRequest::Close);
        let answer = guest
            .handle_request(ask)
            .unwrap_or_else(|error| HostReply { error: Some(error.to_string()), ..HostReply::default() });
        println!("{}", serde_json::to_string(&answer)?);
        std::io::stdout().flush()?;
        if is_last {
            break;
        }
    }
    Ok(())
}

/// State of the child.
#[derive(Default)]
struct StoreServer {
    store: Option<Box<dyn BenchStore>>,
    dir: PathBuf,
    /// Number of inserted pairs in addition to the data.
    inserted: u64,
}

impl StoreServer {
    fn handle_request(&mut self, ask: HostRequest) -> Result<HostReply> {
        match ask {
            HostRequest::Open { subject, dir, setting, first } => {
                let opened = self.open(BenchSubject::parse(&subject)?, dir, setting, first.as_ref())?;
                Ok(HostReply { opened: Some(opened), ..HostReply::default() })
            }
            HostRequest::Run { phase_spec, settle } => {
                Ok(HostReply { outcome: Some(self.run(*phase_spec, settle)?), ..HostReply::default() })
            }
            HostRequest::Check { data } => {
                phase_spec::check(self.store()?, &data).map(|()| HostReply::default())
            }
            HostRequest::Close => {
                self.store.take().map_or(Ok(()), BenchStore::close)?;
                Ok(HostReply::default())
            }
        }
    }

    fn store(&self) -> Result<&dyn BenchStore> {
        self.store.as_deref().ok_or_else(|| "no store is open".into())
    }

    fn open(
        &mut self,
        subject: BenchSubject,
        dir: PathBuf,
        setting: StoreSetting,
        first: Option<&DataSpec>,
    ) -> Result<OpenResult> {
        let began = Instant::now();
        let store = subject.open(&dir, setting)?;
        if let Some(data) = first {
            let found = store.session()?.get(KeyMaker::new(data.keys).make(0))?;
            if store.keeps_data() && found.is_none() {
                return Err("pair 0 is missing".into());
            }
        }
        let opened = OpenResult {
            seconds: began.elapsed().as_secs_f64(),
            is_ordered: store.is_ordered(),
            memory_bytes: measure::memory_bytes(),
        };
        (self.store, self.dir) = (Some(store), dir);
        Ok(opened)
    }

    fn run(&mut self, mut phase_spec: PhaseSpec, settle: Duration) -> Result<PhaseOutcome> {
        phase_spec.inserted = self.inserted;
        let store = self.store()?;
        let before = DeviceCounters::read(&self.dir, phase_spec.mix.writes())?;
        let (sample, inserted) = phase_spec.run(store)?;
        if phase_spec.mix.writes() {
            store.sync()?;
            measure::wait_until_idle(settle);
        }
        let device = DeviceCounters::read(&self.dir, phase_spec.mix.writes())?;
        let outcome = PhaseOutcome {
            operations: sample.operations,
            seconds: sample.elapsed.as_secs_f64(),
            cpu_seconds: sample.cpu.as_secs_f64(),
            caller_seconds: sample.caller_cpu.as_secs_f64(),
            latency: sample.latencies.as_ref().map(LatencyPoints::of),
            user_bytes: sample.user_bytes,
            device_written: device.written_since(&before),
            device_read: device.read_since(&before),
            disk_bytes: measure::disk_bytes(&self.dir),
            memory_bytes: measure::memory_bytes(),
            timeline: sample.timeline,
        };
        self.inserted = inserted;
        Ok(outcome)
    }
}
