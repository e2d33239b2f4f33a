//! A job queue with expiry. Jobs wait in order of their priority and number, and end by themselves
//! if no worker takes them in time. A worker leases a job: if the worker dies, the lease expires,
//! and the next worker takes the job again. Results are kept for a while and then disappear.
//!
//! `cargo run -p sheaf-db --example job_queue [DIR]`

#![allow(clippy::disallowed_methods, reason = "waits until a time is over")]

use std::path::Path;
use std::time::Duration;

use sheaf::{Database, Error, Keyspace, KeyspaceOptions, Result, Transaction, Value};

/// Time for which a worker owns a job without a renewal.
const LEASE: Duration = Duration::from_secs(30);
/// Time for which a result can be read.
const RESULT_LIFE: Duration = Duration::from_secs(3600);

struct Queue {
    db: Database,
    /// Priority and number, with the work: in order, so that the most urgent job is the first.
    waiting: Keyspace,
    /// Key of a job, with the name of the worker, while a worker has the job.
    leases: Keyspace,
    /// Key of a job, with the result.
    results: Keyspace,
    /// The last number.
    numbers: Keyspace,
}

/// Key of a job. A lower priority is more urgent.
fn job_key(priority: u8, number: u64) -> Vec<u8> {
    [&[priority][..], &number.to_be_bytes()].concat()
}

impl Queue {
    fn open(dir: &Path) -> Result<Queue> {
        let db = Database::open(dir)?;
        let waiting = db.keyspace("waiting", KeyspaceOptions::default().expiry())?;
        let leases = db.keyspace("leases", KeyspaceOptions::default().engine("flat").default_ttl(LEASE))?;
        let results = db.keyspace("results", KeyspaceOptions::default().default_ttl(RESULT_LIFE))?;
        let numbers = db.keyspace("numbers", KeyspaceOptions::default())?;
        Ok(Queue { db, waiting, leases, results, numbers })
    }

    /// Adds a job and returns its key. The job ends by itself if it waits for longer than `life`.
    fn add(&self, priority: u8, work: &str, life: Duration) -> Result<Vec<u8>> {
        self.db.transact(|tx| {
            let last = tx
                .get(&self.numbers, "last")?
                .and_then(|value| Some(u64::from_be_bytes((*value).try_into().ok()?)));
            let number = last.unwrap_or(0) + 1;
            tx.insert(&self.numbers, "last", number.to_be_bytes())?;
            let key = job_key(priority, number);
            tx.insert_with_ttl(&self.waiting, &key, work, life)?;
            Ok::<_, Error>(key)
        })
    }

    /// Leases the most urgent job that no worker has. Expired jobs and leases are absent.
    fn take(&self, worker: &str) -> Result<Option<(Value, Value)>> {
        self.db.transact(|tx: &Transaction| {
            for job in tx.iter(&self.waiting)? {
                let (key, work) = job?;
                if tx.contains_key(&self.leases, &key)? {
                    continue;
                }
                tx.insert(&self.leases, &key, worker)?; // for `LEASE`, the default of the keyspace
                return Ok(Some((key, work)));
            }
            Ok::<_, Error>(None)
        })
    }

    /// Extends the lease of a worker. Returns false if another worker has the job by now.
    fn renew(&self, key: &[u8], worker: &str) -> Result<bool> {
        // A put renews the time to live.
        self.leases.compare_and_swap(key, Some(worker.as_bytes()), Some(worker.as_bytes()))
    }

    /// Stores the result of a job and removes the job. Returns false if the lease has ended: the
    /// result of the present owner counts.
    fn finish(&self, key: &[u8], worker: &str, result: &str) -> Result<bool> {
        let mut batch = self.db.batch();
        batch
            .expect_value(&self.leases, key, Some(worker.as_bytes()))
            .remove(&self.leases, key)
            .remove(&self.waiting, key)
            .insert(&self.results, key, result);
        match batch.commit() {
            Err(Error::Conflict { .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn result(&self, key: &[u8]) -> Result<Option<Value>> {
        self.results.get(key)
    }
}

fn run(dir: &Path) -> Result<()> {
    let queue = Queue::open(dir)?;
    let minute = Duration::from_secs(60);
    let report = queue.add(5, "write the report", minute)?;
    let urgent = queue.add(1, "call the customer", minute)?;
    queue.add(1, "too late", Duration::from_millis(1))?;
    std::thread::sleep(Duration::from_millis(5));

    let Some((key, work)) = queue.take("ada")? else { return Ok(()) };
    println!("ada takes {work:?}");
    assert_eq!(key, urgent, "the most urgent job");
    let Some((key, work)) = queue.take("alan")? else { return Ok(()) };
    println!("alan takes {work:?}");
    assert_eq!(key, report, "ada has the other one, and the third has expired");
    assert_eq!(queue.take("grace")?, None);

    // Ada is slow: her lease ends, and grace takes the job again.
    queue.leases.insert_with_ttl(&urgent, "ada", Duration::from_millis(1))?;
    std::thread::sleep(Duration::from_millis(5));
    assert!(!queue.renew(&urgent, "ada")?);
    let Some((key, work)) = queue.take("grace")? else { return Ok(()) };
    println!("grace takes {work:?}");
    assert_eq!(key, urgent);
    assert!(!queue.finish(&urgent, "ada", "hello?")?, "too late");
    assert!(queue.renew(&urgent, "grace")? && queue.finish(&urgent, "grace", "done")?);
    assert!(queue.finish(&report, "alan", "42 pages")?);

    println!("the results: {:?}, {:?}", queue.result(&urgent)?, queue.result(&report)?);
    println!("a result can be read until {:?}", queue.results.expires_at(&report)?);
    assert_eq!(queue.result(&urgent)?.as_deref(), Some(&b"done"[..]));
    assert_eq!(queue.take("ada")?, None, "the queue is empty");
    queue.db.close()
}

fn main() -> Result<()> {
    match std::env::args_os().nth(1) {
        Some(dir) => run(Path::new(&dir)),
        None => run(tempfile::tempdir().expect("a temporary directory").path()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_done_once_although_a_worker_dies() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        run(dir.path()).expect("the queue works");
        let queue = Queue::open(dir.path()).expect("it opens again");
        let number = u64::from_be_bytes(
            (*queue.numbers.get("last").expect("a read").expect("a number")).try_into().expect("8 bytes"),
        );
        assert_eq!(number, 3);
        assert!(queue.result(&job_key(5, 1)).expect("a read").is_some(), "results survive");
    }
}
