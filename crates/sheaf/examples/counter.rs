//! Counters that several threads increment: `update` is atomic, so no count is lost or doubled.
//!
//! `cargo run -p sheaf-db --example counter [DIR]`: a second run continues with the stored counts.

use std::path::Path;

use sheaf::{Database, KeyspaceOptions, Result};

const THREADS: u64 = 4;
const VISITS: u32 = 1_000;
const PAGES: [&str; 3] = ["/", "/about", "/contact"];

/// Decodes a stored counter. A missing or invalid one counts from zero.
fn count_of(stored: Option<&[u8]>) -> u64 {
    stored.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Counts visits to the pages. Returns the number of visits in all runs.
fn run(dir: &Path) -> Result<u64> {
    let db = Database::open(dir)?;
    // Counters are read by whole keys only: no order is needed.
    let visits = db.keyspace("visits", KeyspaceOptions::default().engine("flat"))?;
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|_| {
            scope.spawn(|| -> Result<()> {
                for (_, page) in (0..VISITS).zip(PAGES.into_iter().cycle()) {
                    visits.update(page, |stored| Some((count_of(stored) + 1).to_be_bytes().to_vec()))?;
                }
                Ok(())
            })
        });
        // All threads are started before the first one is joined.
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    db.persist()?; // makes them survive a power cut
    let mut all = 0;
    for page in PAGES {
        let count = count_of(visits.get(page)?.as_deref());
        println!("{page:<10} {count}");
        all += count;
    }
    db.close()?;
    Ok(all)
}

fn main() -> Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-counter");
    let all = run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new))?;
    println!("{all} visits");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_visit_is_counted_once_across_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(super::run(dir.path()).unwrap(), super::THREADS * u64::from(super::VISITS));
        assert_eq!(super::run(dir.path()).unwrap(), 2 * super::THREADS * u64::from(super::VISITS));
    }
}
