//! A database in the substitute of persistent memory, through the public option.

use sheaf::{Database, Durability, Error, PersistenceMode};

fn key(n: u32) -> Vec<u8> {
    format!("key {n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    let len = match n % 50 {
        0 => 100_000,
        1 => 5_000_000,
        rest => 20 * rest as usize,
    };
    vec![(n + round).to_le_bytes()[0]; len]
}

/// Every engine, with background threads, checkpoints and a low limit of descriptors. Other
/// openings of the same files, without the option, agree.
#[test]
fn a_database_in_persistent_memory_is_an_ordinary_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let builder = || Database::builder().durability(Durability::Sync).open_files(16);
    for round in 0..4 {
        let builder = match round % 2 {
            0 => builder().persistent_memory(PersistenceMode::Substitute),
            _ => builder(),
        };
        let db = builder.open(&path).unwrap();
        for engine in sheaf::engines() {
            let keyspace = db.keyspace(engine, engine).unwrap();
            for n in 0..120 {
                if round > 0 {
                    let found = keyspace.get(key(n)).unwrap().unwrap();
                    assert!(found[..] == value(n, round - 1)[..], "{engine}, key {n}, round {round}");
                }
                keyspace.insert(key(n), value(n, round)).unwrap();
            }
        }
        if round == 2 {
            db.verify(|damage| panic!("{damage}")).unwrap();
        }
        db.close().unwrap();
    }
}

#[test]
fn a_reader_attaches_to_an_owner_in_persistent_memory() {
    let dir = tempfile::tempdir().unwrap();
    let builder = || Database::builder().persistent_memory(PersistenceMode::Substitute);
    let db = builder().open(dir.path()).unwrap();
    let users = db.keyspace("users", "flat").unwrap();
    users.insert("ada", "lovelace").unwrap();
    // The option has no effect on a reader: it needs no DAX mount.
    let reader = Database::builder().persistent_memory(PersistenceMode::Dax).read_only(true);
    let reader = reader.open(dir.path()).unwrap();
    assert_eq!(&*reader.keyspace("users", "flat").unwrap().get("ada").unwrap().unwrap(), b"lovelace");
    drop(reader);
    db.close().unwrap();
}

/// On a machine with persistent memory below the temporary directory, the database opens instead.
#[test]
fn a_directory_without_dax_is_refused_and_nothing_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    match Database::builder().persistent_memory(PersistenceMode::Dax).open(&path) {
        Ok(db) => db.close().unwrap(),
        Err(Error::Io { source, path: place, .. }) => {
            assert_eq!((source.kind(), &place), (std::io::ErrorKind::Unsupported, &path), "{source}");
            assert!(!path.exists());
        }
        Err(other) => panic!("{other}"),
    }
}
