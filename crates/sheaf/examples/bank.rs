//! Transfers between accounts: a batch has expectations with the values that were read. If another
//! thread has changed an account since then, the commit writes nothing. The transfer is then tried
//! again with the new values.
//!
//! `cargo run -p sheaf-db --example bank [DIR]`

use std::path::Path;

use sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions, Result};

const ACCOUNTS: u64 = 8;
const OPENING: u64 = 1_000;
const TRANSFERS: u64 = 150;

fn name(number: u64) -> String {
    format!("account-{:02}", number % ACCOUNTS)
}

fn amount_of(stored: &[u8]) -> u64 {
    stored.try_into().map_or(0, u64::from_be_bytes)
}

/// Moves `amount`, unless the account contains less. Returns the number of repeated tries.
fn transfer(
    db: &Database,
    [accounts, journal]: [&Keyspace; 2],
    id: &str,
    from: &str,
    to: &str,
    amount: u64,
) -> Result<u64> {
    for tries in 0.. {
        let (Some(source), Some(target)) = (accounts.get(from)?, accounts.get(to)?) else { break };
        let Some(left) = amount_of(&source).checked_sub(amount) else { break };
        let mut batch = db.batch();
        batch
            .expect_value(accounts, from, Some(&source))
            .expect_value(accounts, to, Some(&target))
            .expect_value(journal, id, None) // once only, also if called again after a crash
            .insert(accounts, from, left.to_be_bytes())
            .insert(accounts, to, (amount_of(&target) + amount).to_be_bytes())
            .insert(journal, id, format!("{from} to {to}: {amount}"))
            .durability(Durability::Sync);
        match batch.commit() {
            Err(Error::Conflict { .. }) if !journal.contains_key(id)? => {}
            Err(Error::Conflict { .. }) => return Ok(tries),
            other => return other.map(|()| tries),
        }
    }
    Ok(0)
}

/// Returns the sum of all accounts at one moment.
fn total(db: &Database) -> Result<u64> {
    let mut all = 0;
    for pair in db.snapshot()?.keyspace("accounts")?.iter()? {
        all += amount_of(&pair?.1);
    }
    Ok(all)
}

/// Opens the accounts, and moves money between them from two threads. Returns the final sum.
fn run(dir: &Path) -> Result<u64> {
    let db = Database::open(dir)?;
    let accounts = db.keyspace("accounts", KeyspaceOptions::default().engine("flat"))?;
    let journal = db.keyspace("journal", KeyspaceOptions::default())?; // by id, in order
    let mut opening = db.batch();
    for number in (0..ACCOUNTS).filter(|number| !accounts.contains_key(name(*number)).unwrap_or(true)) {
        opening.insert(&accounts, name(number), OPENING.to_be_bytes());
    }
    opening.commit()?;
    let first = journal.len()?;
    let work = |thread: u64| -> Result<u64> {
        (0..TRANSFERS).try_fold(0, |again, number| {
            let id = format!("{:08}-{thread}", first + number);
            let (from, to) = (name(number * 7 + thread), name(number * 3 + thread + 1));
            if from == to {
                return Ok(again);
            }
            Ok(again + transfer(&db, [&accounts, &journal], &id, &from, &to, number % 90)?)
        })
    };
    let again = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || work(thread)));
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that does not panic"))
            .sum::<Result<u64>>()
    })?;
    let all = total(&db)?;
    println!(
        "{} transfers are in the journal, {again} had to be tried again; {all} in all accounts",
        journal.len()?
    );
    db.close()?;
    Ok(all)
}

fn main() -> Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-bank");
    run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_money_is_made_or_lost() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            assert_eq!(super::run(dir.path()).unwrap(), super::ACCOUNTS * super::OPENING);
        }
    }
}
