//! What is encoded decodes to itself, and any bytes decode to something or to an error: never a panic, never
//! memory by an unchecked count.

use std::ops::Bound;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use sheaf::{Damage, Durability, Error};
use sheaf_flatrpc::hello::{FIXED, Hello, Join, Mode, Status, Welcome};
use sheaf_flatrpc::message::{Answer, Pair, Range, Reply, Request};

type OwnedPair = (u32, Vec<u8>, Option<Vec<u8>>);

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn pairs() -> impl Strategy<Value = Vec<OwnedPair>> {
    vec((any::<u32>(), bytes(), proptest::option::of(bytes())), 0..6)
}

fn borrow(pairs: &[OwnedPair]) -> Vec<Pair<'_>> {
    pairs
        .iter()
        .map(|(keyspace, key, value)| Pair { keyspace: *keyspace, key, value: value.as_deref() })
        .collect()
}

fn bound(kind: u8, key: &[u8]) -> Bound<&[u8]> {
    match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn comes_back(id: u64, request: &Request<'_>) {
    let mut encoded = Vec::new();
    request.encode(id, &mut encoded);
    let decoded = Request::decode(&encoded).expect("what was encoded decodes");
    assert_eq!((id, request), (decoded.0, &decoded.1));
    for cut in 0..encoded.len() {
        assert!(Request::decode(&encoded[..cut]).is_err(), "cut at {cut}");
    }
    encoded.push(0);
    assert!(Request::decode(&encoded).is_err(), "something is left over");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = Hello::decode(&bytes);
    }

    #[test]
    fn any_body_behind_a_valid_kind_is_a_message_or_an_error(
        kind in 0u8..12, body in vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..120)
    ) {
        let mut bytes = vec![7; 8];
        bytes.push(kind);
        bytes.extend(body);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn a_spoilt_message_is_another_or_an_error(
        expectations in pairs(), changes in pairs(), at in any::<prop::sample::Index>(), to in any::<u8>()
    ) {
        let request = Request::Batch {
            durability: Durability::Sync, expectations: borrow(&expectations), changes: borrow(&changes),
        };
        let mut encoded = Vec::new();
        request.encode(1, &mut encoded);
        let at = at.index(encoded.len());
        encoded[at] = to;
        let _ = Request::decode(&encoded);
    }

    #[test]
    fn requests_come_back(
        id in any::<u64>(), numbers in any::<(u32, u32, u32)>(), key in bytes(), value in bytes(),
        expectations in pairs(), changes in pairs(), kinds in (0u8..3, 0u8..3), reverse in any::<bool>()
    ) {
        let (keyspace, snapshot, limit) = numbers;
        let durability = if reverse { Durability::Sync } else { Durability::Buffer };
        for request in [
            Request::Ping, Request::Snapshot, Request::Persist, Request::Release { snapshot },
            Request::Keyspace { name: "users", engine: "flat", create: reverse },
            Request::Get { keyspace, snapshot, key: &key },
            Request::Write { pair: Pair { keyspace, key: &key, value: Some(&value) }, durability },
            Request::Write { pair: Pair { keyspace, key: &key, value: None }, durability },
            Request::Batch { durability, expectations: borrow(&expectations), changes: borrow(&changes) },
            Request::Range(Range {
                keyspace, snapshot, low: bound(kinds.0, &key), high: bound(kinds.1, &value), reverse, limit,
            }),
        ] {
            comes_back(id, &request);
        }
    }

    #[test]
    fn hellos_come_back(token in vec(any::<u8>(), 0..256), join in any::<Option<(u64, u128, u32)>>()) {
        let join = join.map(|(session, secret, worker)| Join { session, secret, worker });
        let hello = Hello { mode: Mode::AllToAll, join, token };
        let encoded = hello.encode();
        for cut in 0..encoded.len() {
            prop_assert_eq!(Hello::decode(&encoded[..cut]), Ok(None));
        }
        prop_assert_eq!(Hello::decode(&encoded), Ok(Some(hello)));
    }

    #[test]
    fn any_welcome_is_one_or_an_error(bytes in vec(any::<u8>(), FIXED)) {
        let mut bytes: [u8; FIXED] = bytes.try_into().expect("as long");
        let _ = Welcome::decode(&bytes);
        bytes[..8].copy_from_slice(b"SHEAFRPC");
        let _ = Welcome::decode(&bytes);
    }
}

#[test]
fn a_hello_of_another_version_is_told_ours() {
    let mut encoded = Hello { mode: Mode::Agent, join: None, token: Vec::new() }.encode();
    encoded[8] = 9;
    assert_eq!(Hello::decode(&encoded), Err(Status::Version));
}

#[test]
fn errors_of_the_contract_travel_as_they_are() {
    let path = || PathBuf::from("/some/where");
    let name = || "users".to_owned();
    let damages = [
        Damage::BadChecksum { expected: 1, got: 2 },
        Damage::BadLength { got: 3, max: 4 },
        Damage::BadMagic,
        Damage::BadField { field: "kind", value: 5 },
        Damage::Foreign { field: "store", expected: u128::MAX, got: 6 },
        Damage::MissingCommits { first_missing: 7, durable: 8 },
        Damage::Short { got: 9, expected: 10 },
    ];
    let mut errors: Vec<Error> =
        damages.into_iter().map(|what| Error::Corrupt { path: path(), offset: 11, what }).collect();
    errors.extend([
        Error::Io { op: "read", path: path(), source: std::io::Error::from_raw_os_error(5) },
        Error::NoSpace { path: path() },
        Error::Locked {
            path: path(),
            pid: Some(12),
            program: Some(name()),
            is_stopped: true,
            cause: sheaf::InUse::Crowded,
        },
        Error::locked(&path(), None, sheaf::InUse::NoDoor),
        Error::TooManyFiles { path: path(), limit: Some(1024) },
        Error::TooManyFiles { path: path(), limit: None },
        Error::FileLimit { path: path(), size: 1 << 28, limit: 1 << 20 },
        Error::Poisoned { op: "sync" },
        Error::TooLarge { what: "key", got: 13, max: 14 },
        Error::Format { path: path(), found: 15, supported: 16 },
        Error::NotADatabase { path: path(), why: name() },
        Error::NotABackup { path: path(), why: name() },
        Error::Cancelled,
        Error::OwnerGone { path: path() },
        Error::NotFound { path: path() },
        Error::NoKeyspace { name: name() },
        Error::EngineMismatch { name: name(), found: "flat".into(), asked: "flex".into() },
        Error::Unsupported { engine: "flat", feature: "ranges" },
        Error::Conflict,
        Error::OverBudget { budget: 17 },
        Error::Busy { with: "brake" },
        Error::ReadOnly,
        Error::Closed,
        Error::Invalid { what: "name", why: "why not".into() },
    ]);
    for error in errors {
        let mut encoded = Vec::new();
        Answer::to(3, &mut encoded).failed(&error);
        let Ok((3, Reply::Failed(back))) = Reply::decode(&encoded) else {
            panic!("{error:?} does not come back")
        };
        assert_eq!(format!("{error:?}"), format!("{back:?}"));
        assert_eq!(error.to_string(), back.to_string());
        for cut in 0..encoded.len() {
            assert!(Reply::decode(&encoded[..cut]).is_err());
        }
    }
}
