//! # Every request, over every address and in every mode

use sheaf_client::{Client, ClientBatch, ClientError, ClientKeyspace, Durability, Reply, Request};
use sheaf_server::ServerLimits;

use crate::support::{ServedDatabase, TRANSPORTS, limits};

fn on_every_transport(workers: usize, test: impl Fn(&ServedDatabase, &mut Client)) {
    within(limits(workers), test);
}

fn within(limits: ServerLimits, test: impl Fn(&ServedDatabase, &mut Client)) {
    for way in TRANSPORTS {
        let house = ServedDatabase::new(limits);
        let mut client = house.client(way);
        test(&house, &mut client);
        drop(client);
        house.server.close().expect("an orderly end");
        house.db.close().expect("an orderly end");
    }
}

fn database_error(result: Result<impl std::fmt::Debug, ClientError>) -> sheaf::Error {
    match result {
        Err(ClientError::Database(error)) => error,
        other => panic!("not the database's error: {other:?}"),
    }
}

#[test]
fn a_written_value_is_read_with_every_engine_address_and_mode() {
    for workers in [1, 3] {
        on_every_transport(workers, |house, client| {
            for engine in sheaf::engines() {
                let keyspace = client.keyspace_with_engine(engine, engine).expect("a keyspace");
                assert_eq!(client.get(keyspace, b"a").expect("a get"), None);
                for len in [0, 1, 7, 8, 9, 100, 5000] {
                    let (key, value) = (vec![b'k'; len], vec![len as u8; len * 3]);
                    client.insert(keyspace, &key, &value).expect("an insert");
                    assert_eq!(client.get(keyspace, &key).expect("a get"), Some(value.clone()));
                    let here = house.db.open_keyspace(engine).expect("open").expect("there");
                    assert_eq!(here.get(&key).expect("a get").as_deref(), Some(&value[..]));
                    client.remove(keyspace, &key).expect("a remove");
                    assert_eq!(client.get(keyspace, &key).expect("a get"), None);
                }
            }
            client.persist().expect("it is on the device");
            client.ping().expect("an answer");
        });
    }
}

#[test]
fn messages_longer_than_a_ring_arrive_in_both_directions() {
    on_every_transport(2, |_, client| {
        let keyspace = client.keyspace("big").expect("a keyspace");
        let value: Vec<u8> = (0..1_500_000u32).map(|at| at as u8).collect();
        client.insert(keyspace, b"v", &value).expect("an insert");
        assert_eq!(client.get(keyspace, b"v").expect("a get"), Some(value));
        let huge = vec![0; 5 << 20];
        assert!(matches!(
            database_error(client.insert(keyspace, b"w", &huge)),
            sheaf::Error::TooLarge { object: "message", .. }
        ));
        client.ping().expect("the connection stays usable");
    });
}

#[test]
fn a_value_longer_than_a_message_is_an_error_that_keeps_the_session() {
    let house = ServedDatabase::new(limits(1));
    let local = house.db.keyspace("k", sheaf::KeyspaceOptions::default()).expect("a keyspace");
    local.insert("huge", vec![1; 5 << 20]).expect("an insert");
    let mut client = house.client(TRANSPORTS[0]);
    let keyspace = client.open_keyspace("k").expect("a keyspace");
    assert!(matches!(
        database_error(client.get(keyspace, "huge")),
        sheaf::Error::TooLarge { object: "reply", got: 5_242_880, .. }
    ));
    client.ping().expect("the connection stays usable");
}

#[test]
fn batches_are_atomic_and_need_their_expectations() {
    on_every_transport(2, |_, client| {
        let a = client.keyspace_with_engine("a", "flat").expect("a keyspace");
        let b = client.keyspace_with_engine("b", "flex").expect("a keyspace");
        client.insert(a, b"x", b"1").expect("an insert");
        let mut batch = ClientBatch::default();
        batch.expect_value(a, b"x", Some(b"1")).expect_value(b, b"y", None);
        batch.insert(b, b"y", b"2").remove(a, b"x").insert(a, b"z", b"3").insert(a, b"z", b"4");
        let first = client.commit(&batch).expect("a commit");
        assert_eq!(client.get(a, b"x").expect("a get"), None);
        assert_eq!(client.get(a, b"z").expect("a get").as_deref(), Some(&b"4"[..]));
        assert!(matches!(database_error(client.commit(&batch)), sheaf::Error::Conflict { .. }));
        let mut durable = ClientBatch::default();
        durable.durability(Durability::Sync).insert(a, b"d", b"5");
        assert!(client.commit(&durable).expect("a commit") > first);
    });
}

#[test]
fn ranges_are_ordered_in_both_directions_and_in_parts() {
    within(ServerLimits { max_message_bytes: 1 << 17, ..limits(2) }, |_, client| {
        let ordered = client.keyspace_with_engine("o", "flat-ordered").expect("a keyspace");
        let value = vec![7; 6_000];
        for number in 0..100u32 {
            client.insert(ordered, format!("{number:03}"), &value).expect("an insert");
        }
        let keys = |pairs: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<String> {
            pairs.into_iter().map(|(key, _)| String::from_utf8(key).expect("digits")).collect()
        };
        let forward = keys(client.range(ordered, None, "010".."020", false, 1000).expect("a range"));
        assert_eq!(forward, (10..20).map(|n| format!("{n:03}")).collect::<Vec<_>>());
        // 600 kB: more than a message.
        let all = keys(client.range::<&str>(ordered, None, .., true, usize::MAX).expect("a range"));
        assert_eq!(all, (0..100).rev().map(|n| format!("{n:03}")).collect::<Vec<_>>());
        assert_eq!(client.range::<&str>(ordered, None, .., false, 7).expect("a range").len(), 7);
        let hashed = client.keyspace_with_engine("h", "flat").expect("a keyspace");
        client.insert(hashed, b"x", b"y").expect("an insert");
        assert_eq!(client.range::<&str>(hashed, None, .., false, 9).expect("a range").len(), 1);
        assert!(matches!(
            database_error(client.range(hashed, None, "a".."b", false, 9)),
            sheaf::Error::Unsupported { engine: "flat", feature: "ranges" }
        ));
    });
}

#[test]
fn snapshots_do_not_change() {
    on_every_transport(2, |house, client| {
        let keyspace = client.keyspace_with_engine("s", "flat-ordered").expect("a keyspace");
        client.insert(keyspace, b"a", b"old").expect("an insert");
        let snapshot = client.snapshot().expect("a snapshot");
        client.insert(keyspace, b"a", b"new").expect("an insert");
        client.insert(keyspace, b"b", b"new").expect("an insert");
        let old = client.get_at(&snapshot, keyspace, b"a").expect("a get");
        assert_eq!(old.as_deref(), Some(&b"old"[..]));
        let pairs = client.range::<&str>(keyspace, Some(&snapshot), .., false, 9).expect("a range");
        assert_eq!(pairs, [(b"a".to_vec(), b"old".to_vec())]);
        client.release(snapshot).expect("released");
        let unknown = Request::Release { snapshot: 77 };
        assert!(matches!(
            database_error(client.call(&unknown)),
            sheaf::Error::InvalidArgument { argument: "snapshot", .. }
        ));
        // Snapshot numbers of another client are not valid for this one.
        let mut other = house.client(TRANSPORTS[0]);
        let theirs = other.snapshot().expect("a snapshot");
        assert!(client.get_at(&theirs, keyspace, b"a").is_err());
    });
}

#[test]
fn database_errors_arrive_unchanged() {
    on_every_transport(1, |house, client| {
        let keyspace = client.keyspace_with_engine("k", "flat").expect("a keyspace");
        assert!(matches!(
            database_error(client.keyspace_with_engine("k", "flex")),
            sheaf::Error::EngineMismatch { found, requested, .. } if found == "flat" && requested == "flex"
        ));
        assert!(matches!(
            database_error(client.open_keyspace("nobody")),
            sheaf::Error::KeyspaceNotFound { name } if name == "nobody"
        ));
        assert!(matches!(
            database_error(client.insert(keyspace, vec![0; 65_536], b"")),
            sheaf::Error::TooLarge { object: "key", got: 65_536, max: 65_535 }
        ));
        house.db.drop_keyspace("k").expect("a drop");
        assert!(matches!(database_error(client.get(keyspace, b"a")), sheaf::Error::KeyspaceNotFound { .. }));
        let again = client.keyspace_with_engine("k", "flex").expect("another of this name");
        client.insert(again, b"a", b"b").expect("an insert");
    });
}

fn submit(client: &mut Client, keyspace: ClientKeyspace, number: u32) -> sheaf_client::Ticket {
    let (key, value) = (number.to_be_bytes(), [number as u8; 100]);
    let durability = if number.is_multiple_of(7) { Durability::Sync } else { Durability::Buffer };
    client.submit(&keyspace.write(&key, Some(&value), durability)).expect("submitted")
}

#[test]
fn many_requests_in_flight_get_replies_and_commits_in_their_order() {
    on_every_transport(3, |house, client| {
        let keyspace = client.keyspace("many").expect("a keyspace");
        let mut tickets: Vec<_> = (0..3000).map(|number| submit(client, keyspace, number)).collect();
        assert!(client.unanswered() <= client.window());
        let (mut last, mut busy) = ([0, 0], 0);
        let gated = tickets.clone();
        while let Some((ticket, reply)) = client.next_reply().expect("a reply") {
            let at = tickets.iter().position(|t| *t == ticket).expect("answered once");
            tickets.swap_remove(at);
            let seq = match reply {
                Ok(Reply::Done { seq }) => seq,
                // On a slow device more syncs wait than one client is allowed.
                Err(sheaf_client::ClientError::Busy) => {
                    busy += 1;
                    continue;
                }
                other => panic!("not done: {other:?}"),
            };
            let number = gated.binary_search(&ticket).expect("one of them");
            if client_is_gated(client) {
                let class = usize::from(number.is_multiple_of(7));
                // The writes of a burst are one commit; those that wait for the device are alone.
                let is_in_order = if class == 0 { seq >= last[class] } else { seq > last[class] };
                assert!(is_in_order, "{seq} behind {}", last[class]);
                last[class] = seq;
            }
        }
        assert!(tickets.is_empty());
        let here = house.db.open_keyspace("many").expect("open").expect("there");
        assert!(busy < 3000 / 7, "only syncs wait");
        assert_eq!(here.len().expect("a count"), 3000 - busy);
    });
}

fn client_is_gated(client: &Client) -> bool {
    client.mode() == sheaf_client::ReplyMode::Agent
}
