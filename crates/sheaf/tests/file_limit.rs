//! A process that must not write large files. The limit applies to the whole process, so this test
//! is a program of its own.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheaf::{Database, Error};

fn limit(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

#[test]
fn writes_beyond_the_file_size_limit_fail_and_reads_continue() {
    let dir = tempfile::tempdir().unwrap();
    for engine in sheaf::engines() {
        let path = dir.path().join(engine);
        let db = Database::open(&path).unwrap();
        let keyspace = db.keyspace("k", engine).unwrap();
        keyspace.insert("first", "value").unwrap();
        limit(Some(64 << 10));
        let mut count = 0u32;
        let refused = loop {
            match keyspace.insert(count.to_be_bytes(), [7; 1000]) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 1 << 20, "{engine}: nothing is refused");
        };
        let text = refused.to_string();
        assert!(
            matches!(refused, Error::FileSizeLimit { limit, .. } if limit == 64 << 10),
            "{engine}: {text}"
        );
        assert!(text.contains("ulimit -f") && refused.is_no_space(), "{text}");
        assert_eq!(db.stats().poisoned, None, "{engine}");
        assert_eq!(keyspace.get("first").unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(keyspace.get(0u32.to_be_bytes()).unwrap().as_deref(), Some(&[7; 1000][..]));
        keyspace.remove("first").unwrap();
        limit(None);
        keyspace.insert(count.to_be_bytes(), [8; 1000]).unwrap();
        drop(keyspace);
        db.close().unwrap();
        let db = Database::open(&path).unwrap();
        let keyspace = db.keyspace("k", engine).unwrap();
        assert_eq!(keyspace.get("first").unwrap(), None);
        assert_eq!(keyspace.get(count.to_be_bytes()).unwrap().as_deref(), Some(&[8; 1000][..]));
    }
}
