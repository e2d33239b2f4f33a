//! Tests of decoding. Encoded messages decode to equal values. Arbitrary bytes decode to a message
//! or to an error, without a panic and without memory allocated by an unchecked count.

use sheaf_platform::error::{IoOp, PoisonCause, StallKind};
use std::ops::Bound;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use sheaf::{ConflictKeys, Damage, Durability, Error};
use sheaf_flatrpc::handshake::{
    ClientHello, HELLO_BYTES, HandshakeStatus, ReplyMode, ServerHello, SessionJoin,
};
use sheaf_flatrpc::message::{Pair, RangeRequest, Reply, ReplyEncoder, Request};

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

fn assert_round_trip(id: u64, request: &Request<'_>) {
    let mut encoded = Vec::new();
    request.encode(id, &mut encoded);
    let decoded = Request::decode(&encoded).expect("an encoded request decodes");
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
        let _ = ClientHello::decode(&bytes);
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
    fn a_corrupted_message_decodes_or_is_an_error(
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
    fn requests_survive_a_round_trip(
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
            Request::Range(RangeRequest {
                keyspace, snapshot, low: bound(kinds.0, &key), high: bound(kinds.1, &value), reverse, limit,
            }),
        ] {
            assert_round_trip(id, &request);
        }
    }

    #[test]
    fn hellos_survive_a_round_trip(token in vec(any::<u8>(), 0..256), join in any::<Option<(u64, u128, u32)>>()) {
        let join = join.map(|(session, secret, worker)| SessionJoin { session, secret, worker });
        let hello = ClientHello { mode: ReplyMode::AllToAll, join, token };
        let encoded = hello.encode();
        for cut in 0..encoded.len() {
            prop_assert_eq!(ClientHello::decode(&encoded[..cut]), Ok(None));
        }
        prop_assert_eq!(ClientHello::decode(&encoded), Ok(Some(hello)));
    }

    #[test]
    fn any_server_hello_decodes_or_is_an_error(bytes in vec(any::<u8>(), HELLO_BYTES)) {
        let mut bytes: [u8; HELLO_BYTES] = bytes.try_into().expect("as long");
        let _ = ServerHello::decode(&bytes);
        bytes[..8].copy_from_slice(b"SHEAFRPC");
        let _ = ServerHello::decode(&bytes);
    }
}

#[test]
fn a_hello_of_another_version_gets_the_supported_version() {
    let mut encoded = ClientHello { mode: ReplyMode::Agent, join: None, token: Vec::new() }.encode();
    encoded[8] = 9;
    assert_eq!(ClientHello::decode(&encoded), Err(HandshakeStatus::Version));
}

#[test]
fn database_errors_survive_a_round_trip() {
    let path = || PathBuf::from("/some/where");
    let name = || "users".to_owned();
    let damages = [
        Damage::BadChecksum { expected: 1, got: 2 },
        Damage::BadLength { got: 3, max: 4 },
        Damage::BadMagic { expected: *b"SHEAFXYZ", got: *b"\0\xffbcdefg" },
        Damage::BadField { field: "kind", expected: (1..5).into(), got: 5 },
        Damage::BadField { field: "kind", expected: "a text".into(), got: u64::MAX },
        Damage::BadOrder { item: "key", index: 6 },
        Damage::Foreign { field: "store", expected: u128::MAX, got: 6 },
        Damage::MissingCommits { first_missing: 7, durable: 8 },
        Damage::Truncated { got: 9, expected: 10 },
    ];
    let corrupt = |damage| Error::corrupt(&path(), 11, "structure", damage);
    let mut errors: Vec<Error> = damages.into_iter().map(corrupt).collect();
    errors.extend([
        Error::Io { op: IoOp::Read, path: path(), source: std::io::Error::from_raw_os_error(5) },
        Error::NoSpace { path: path() },
        Error::Locked {
            path: path(),
            pid: Some(12),
            program: Some(name()),
            is_stopped: true,
            cause: sheaf::LockConflict::TooManyConnections,
        },
        Error::locked(&path(), None, sheaf::LockConflict::NoIpc),
        Error::TooManyFiles { path: path(), limit: Some(1024) },
        Error::TooManyFiles { path: path(), limit: None },
        Error::FileSizeLimit { path: path(), size: 1 << 28, limit: 1 << 20 },
        Error::Poisoned { cause: PoisonCause::Sync },
        Error::TooLarge { object: "key", got: 13, max: 14 },
        Error::UnsupportedVersion { path: path(), found: 15, supported: 16 },
        Error::NotADatabase { path: path(), reason: name() },
        Error::NotABackup { path: path(), reason: name() },
        Error::Cancelled,
        Error::OwnerClosed { path: path() },
        Error::DatabaseNotFound { path: path() },
        Error::KeyspaceNotFound { name: name() },
        Error::EngineMismatch { name: name(), found: "flat".into(), requested: "flex".into() },
        Error::Unsupported { engine: "flat", feature: "ranges" },
        Error::conflict("users", ConflictKeys::Key(b"ada".to_vec())),
        Error::MemoryBudgetExceeded { budget: 17 },
        Error::Busy { waiting_for: StallKind::Throttle },
        Error::ReadOnly,
        Error::Closed,
        Error::InvalidArgument { argument: "name", reason: "why not".into() },
    ]);
    for error in errors {
        let mut encoded = Vec::new();
        ReplyEncoder::new(3, &mut encoded).failed(&error);
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
