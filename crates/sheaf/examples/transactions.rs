//! Seats of a cinema: a transaction books neighbouring free seats. It reads a range of seats, so
//! that two bookings never get the same seat, and a limit for each customer. The transaction runs
//! again if another booking was faster.
//!
//! `cargo run -p sheaf-db --example transactions [DIR]`

use std::path::Path;

use sheaf::{Database, Error, Keyspace, KeyspaceOptions, Transaction};

const ROWS: u8 = 6;
const SEATS: u8 = 10;
/// Largest number of seats of a customer.
const LIMIT: u8 = 4;
const THREADS: u8 = 4;

/// Reason why a booking was refused.
#[derive(Debug)]
enum Refusal {
    /// The customer would have too many seats.
    Limit,
    /// No row has enough free seats next to each other.
    SoldOut,
    /// The database failed.
    Database(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Database(error)
    }
}

struct Cinema {
    db: Database,
    /// Customer of each seat, by row and seat.
    seats: Keyspace,
    /// Number of seats of each customer.
    customers: Keyspace,
}

impl Cinema {
    fn open(dir: &Path) -> sheaf::Result<Cinema> {
        let db = Database::open(dir)?;
        let seats = db.keyspace("seats", KeyspaceOptions::default())?;
        let customers = db.keyspace("customers", "flat")?;
        seats.clear()?;
        customers.clear()?;
        let mut batch = db.batch();
        for (row, seat) in (0..ROWS).flat_map(|row| (0..SEATS).map(move |seat| (row, seat))) {
            batch.insert(&seats, [row, seat], ""); // free
        }
        batch.commit()?;
        Ok(Cinema { db, seats, customers })
    }

    /// Books `count` neighbouring seats. Returns their row and the first of them.
    fn book(&self, customer: &str, count: u8) -> Result<(u8, u8), Refusal> {
        self.db.transact(|tx| {
            let booked = tx.get(&self.customers, customer)?.map_or(0, |value| value[0]) + count;
            if booked > LIMIT {
                return Err(Refusal::Limit);
            }
            for row in 0..ROWS {
                if let Some(first) = self.find_free(tx, row, count)? {
                    for seat in first..first + count {
                        tx.insert(&self.seats, [row, seat], customer)?;
                    }
                    tx.insert(&self.customers, customer, [booked])?;
                    return Ok((row, first));
                }
            }
            Err(Refusal::SoldOut)
        })
    }

    /// Returns the first of `count` free seats of a row.
    fn find_free(&self, tx: &Transaction, row: u8, count: u8) -> sheaf::Result<Option<u8>> {
        let mut free = 0;
        for seat in tx.prefix(&self.seats, [row])? {
            let (place, customer) = seat?;
            free = if customer.is_empty() { free + 1 } else { 0 };
            if free == count {
                return Ok(Some(place[1] + 1 - count));
            }
        }
        Ok(None)
    }

    /// Gives all seats of a customer back. Returns how many there were.
    fn cancel(&self, customer: &str) -> sheaf::Result<u8> {
        self.db.transact(|tx| {
            let mut given_back = 0;
            for seat in tx.iter(&self.seats)? {
                let (place, owner) = seat?;
                if *owner == *customer.as_bytes() {
                    tx.insert(&self.seats, place, "")?;
                    given_back += 1;
                }
            }
            tx.remove(&self.customers, customer)?;
            Ok(given_back)
        })
    }

    /// Returns the number of booked seats: by the seats, and by the customers.
    fn count(&self) -> sheaf::Result<(usize, usize)> {
        let now = self.db.snapshot()?;
        let (mut by_seat, mut by_customer) = (0, 0);
        for seat in now.keyspace(&self.seats)?.iter()? {
            by_seat += usize::from(!seat?.1.is_empty());
        }
        for customer in now.keyspace(&self.customers)?.iter()? {
            by_customer += usize::from(customer?.1[0]);
        }
        Ok((by_seat, by_customer))
    }
}

/// Lets several threads book until the cinema is full, and cancels some bookings. Returns the
/// number of booked seats.
fn run(dir: &Path) -> sheaf::Result<usize> {
    let cinema = &Cinema::open(dir)?;
    let sell = |thread: u8| -> sheaf::Result<()> {
        for number in 0.. {
            let (customer, count) = (format!("customer {thread}-{}", number / 2), 1 + number % 3);
            match cinema.book(&customer, count) {
                Ok((row, seat)) => println!("{customer}: row {row}, {count} seats from {seat}"),
                Err(Refusal::Limit) => println!("{customer}: no more than {LIMIT} seats"),
                Err(Refusal::SoldOut) => break,
                Err(Refusal::Database(error)) => return Err(error),
            }
        }
        let given_back = cinema.cancel(&format!("customer {thread}-0"))?;
        println!("customer {thread}-0 gave {given_back} seats back");
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || sell(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    let (by_seat, by_customer) = cinema.count()?;
    assert_eq!(by_seat, by_customer, "the two keyspaces agree");
    let stats = cinema.db.stats().transactions;
    println!("{by_seat} seats are booked; {} commits, {} conflicts", stats.committed, stats.conflicts);
    Ok(by_seat)
}

fn main() -> sheaf::Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-transactions");
    run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn seats_and_customers_agree() {
        let dir = tempfile::tempdir().unwrap();
        let booked = super::run(dir.path()).unwrap();
        assert!(booked > usize::from(super::ROWS * super::SEATS) / 2, "{booked}");
    }
}
