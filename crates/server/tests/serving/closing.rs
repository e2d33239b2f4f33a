//! # Closing under load

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sheaf::Database;
use sheaf_client::{Client, ClientError, Durability, Reply, ReplyMode, Ticket};

use crate::support::{ServedDatabase, TRANSPORTS, limits, options};

/// Writes until the server ends, every `every`-th write durably. Returns the numbers of the writes
/// that got a reply.
fn write_until_gone(mut client: Client, name: &str, every: u64, started: &AtomicBool) -> Vec<u64> {
    let Ok(keyspace) = client.keyspace(name) else { return Vec::new() };
    let mut answered = Vec::new();
    let mut tickets = Vec::new();
    let mut note = |tickets: &mut Vec<(Ticket, u64)>, ticket| {
        let at = tickets.iter().position(|(t, _)| *t == ticket).expect("one of them");
        answered.push(tickets.swap_remove(at).1);
    };
    for number in 0u64.. {
        let key = number.to_be_bytes();
        let durability = if number.is_multiple_of(every) { Durability::Sync } else { Durability::Buffer };
        match client.submit(&keyspace.write(&key, Some(&key), durability)) {
            Ok(ticket) => tickets.push((ticket, number)),
            Err(ClientError::ConnectionLost(_)) => break,
            Err(other) => panic!("{other}"),
        }
        if number == 20 {
            started.store(true, Ordering::SeqCst);
        }
        if client.unanswered() >= 16 {
            match client.next_reply() {
                Ok(Some((ticket, Ok(Reply::Done { .. })))) => note(&mut tickets, ticket),
                Err(ClientError::ConnectionLost(_)) => break,
                other => panic!("{other:?}"),
            }
        }
    }
    // Replies that arrived before the end can still be taken.
    while let Ok(Some((ticket, Ok(Reply::Done { .. })))) = client.next_reply() {
        note(&mut tickets, ticket);
    }
    answered
}

#[test]
fn a_server_that_closes_under_load_loses_no_acknowledged_write() {
    for workers in [1, 2] {
        let ServedDatabase { dir, db, server } = ServedDatabase::new(limits(workers));
        let addresses = server.addresses().to_vec();
        let started: Vec<AtomicBool> = TRANSPORTS.iter().map(|_| AtomicBool::new(false)).collect();
        let answered = std::thread::scope(|scope| {
            let writers: Vec<_> = TRANSPORTS
                .iter()
                .enumerate()
                .map(|(index, way)| {
                    let client = Client::connect(&addresses[way.0], &options(way.1)).expect("a client");
                    let started = &started[index];
                    scope.spawn(move || write_until_gone(client, &format!("k{index}"), 5, started))
                })
                .collect();
            crate::support::until("they write", || started.iter().all(|s| s.load(Ordering::SeqCst)));
            std::thread::sleep(Duration::from_millis(50));
            server.close().expect("an orderly end");
            writers.into_iter().map(|w| w.join().expect("no panic")).collect::<Vec<_>>()
        });
        db.close().expect("an orderly end");
        let db = Database::open(dir.path().join("db")).expect("it opens");
        for (index, numbers) in answered.iter().enumerate() {
            let keyspace = db.open_keyspace(&format!("k{index}")).expect("open").expect("there");
            assert!(!numbers.is_empty());
            for number in numbers {
                let key = number.to_be_bytes();
                assert_eq!(keyspace.get(key).expect("a get").as_deref(), Some(&key[..]), "{index} {number}");
            }
        }
    }
}

#[test]
fn a_closing_server_replies_to_every_durable_commit_that_it_made() {
    for round in 0..20 {
        let ServedDatabase { dir: _dir, db, server } = ServedDatabase::new(limits(2));
        let client = Client::connect(&server.addresses()[0], &options(ReplyMode::Agent)).expect("a client");
        let started = AtomicBool::new(false);
        let mut answered = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_gone(client, "k", 1, &started));
            crate::support::until("it writes", || started.load(Ordering::SeqCst));
            server.close().expect("an orderly end");
            writer.join().expect("no panic")
        });
        answered.sort_unstable();
        let keyspace = db.open_keyspace("k").expect("open").expect("there");
        let number = |key: &[u8]| u64::from_be_bytes(key.try_into().expect("eight bytes"));
        let made: Vec<u64> =
            keyspace.iter().expect("a walk").map(|pair| number(&pair.expect("a pair").0)).collect();
        assert_eq!(made, answered, "round {round}");
    }
}

#[test]
fn a_client_of_a_closed_server_gets_an_error_at_once() {
    for way in TRANSPORTS {
        let house = ServedDatabase::new(limits(2));
        let mut client = house.client(way);
        client.ping().expect("an answer");
        house.server.close().expect("an orderly end");
        assert!(matches!(client.ping(), Err(ClientError::ConnectionLost(_))));
        assert!(matches!(client.ping(), Err(ClientError::ConnectionLost(_))));
    }
}

#[test]
fn a_request_to_a_closed_database_returns_closed() {
    let house = ServedDatabase::new(limits(1));
    let mut client = Client::connect(house.address(0), &options(TRANSPORTS[0].1)).expect("a client");
    let keyspace = client.keyspace("k").expect("a keyspace");
    house.db.clone().close().expect("an orderly end");
    assert!(matches!(client.insert(keyspace, b"a", b"b"), Err(ClientError::Database(sheaf::Error::Closed))));
    assert!(matches!(client.persist(), Err(ClientError::Database(sheaf::Error::Closed))));
}
