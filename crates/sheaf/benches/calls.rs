//! # Calls: a known number of calls on a resident keyspace, to count their instructions
//!
//! `cargo bench -p sheaf-db --bench calls --no-run` builds `calls ENGINE GETS INSERTS`. The program
//! inserts 1,000 pairs, reads pairs GETS times and overwrites pairs INSERTS times. Under
//! `valgrind --tool=callgrind` the difference between two runs is the cost of the calls by which
//! they differ, without the noise of a clock.

use sheaf::{Builder, KeyspaceOptions, Result};

const PAIRS: u64 = 1000;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flat".to_owned());
    let mut number = || args.next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(PAIRS);
    let (gets, inserts) = (number(), number());
    let dir = std::env::temp_dir().join(format!("sheaf-calls-{}", std::process::id()));
    let db = Builder::default().inline(true).open(&dir)?;
    let keyspace = db.keyspace("calls", KeyspaceOptions::default().engine(&engine))?;
    for key in 0..PAIRS {
        keyspace.insert(key.to_be_bytes(), [7; 100])?;
    }
    let mut bytes = 0;
    for get in 0..gets {
        bytes += keyspace.get_with((get % PAIRS).to_be_bytes(), <[u8]>::len)?.unwrap_or(0);
    }
    for insert in 0..inserts {
        keyspace.insert((insert % PAIRS).to_be_bytes(), [8; 100])?;
    }
    println!("{engine}: {gets} gets of {bytes} bytes, {inserts} inserts");
    db.close()?;
    drop(std::fs::remove_dir_all(&dir));
    Ok(())
}
