//! Bytes of a checkpoint after a part of the pairs has changed: image of the sparse index, and
//! index of the space.

use super::*;

/// A sink that counts bytes.
struct CountingSink(u64);

impl ImageSink for CountingSink {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// Bytes that a checkpoint of the keyspace writes.
#[derive(Debug)]
struct CheckpointBytes {
    image: u64,
    /// Intervals that the image lists.
    intervals: u64,
    space: u64,
    /// Extents of the space: a checkpoint that lists all of them has 16 bytes each.
    extents: u64,
}

fn put_value(keyspace: &mut TestKeyspace, number: u64, fill: u8) {
    let key = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    keyspace.commit(key.as_bytes(), RecordContent::Put(&[fill; 100]));
}

/// Writes a checkpoint of keyspace and space.
fn measure(keyspace: &TestKeyspace) -> CheckpointBytes {
    let engine = &keyspace.engine;
    engine.freeze();
    while engine.flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest).unwrap() {}
    let mut sink = CountingSink(0);
    engine.save(&mut sink).unwrap();
    engine.image_published();
    let table = engine.table.lock();
    let space = table.space.as_ref().unwrap();
    let before = space.stats().checkpoint_bytes;
    space.checkpoint().unwrap();
    let stats = space.stats();
    let intervals = table.tree.entries();
    CheckpointBytes {
        image: sink.0,
        intervals,
        space: stats.checkpoint_bytes - before,
        extents: stats.extents,
    }
}

/// Returns the bytes of checkpoints of a keyspace with `pairs` pairs: of the second one, and after
/// changes of a hundredth of the pairs at random and next to each other.
fn checkpoints(pairs: u64) -> [CheckpointBytes; 3] {
    let blobs = Blobs::new(Arc::new(SimDisk::new()), "blobs".into(), 1, StoreId(1), true);
    let mut context = EngineContext::new(blobs, 1 << 30, 7, false);
    context.engine_dir = Some(EngineDir::new(Arc::new(SimDisk::new()), Path::new("/"), false));
    let engine = FlexEngine::new(Arc::new(context), KeyspaceId(1), &EngineOptions::default());
    let engine = Arc::new(engine);
    let mut keyspace = TestKeyspace { engine, views: Views::default(), newest: Seq::ZERO };
    for number in 0..pairs {
        put_value(&mut keyspace, number, 1);
        if number % 100_000 == 99_999 {
            measure(&keyspace);
        }
    }
    measure(&keyspace);
    let mut keys: Vec<u64> = (0..pairs).collect();
    let (mut random, mut sorted) = (Vec::new(), Vec::new());
    keys.sort_by_key(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    random.extend(keys.iter().step_by(100));
    sorted.extend(&keys[..usize::try_from(pairs / 100).unwrap()]);
    let nothing = measure(&keyspace);
    // Each pattern three times: the node files are written in turn.
    let mut after = |changed: &[u64]| {
        let mut last = None;
        for fill in 0..3 {
            changed.iter().for_each(|number| put_value(&mut keyspace, *number, fill));
            last = Some(measure(&keyspace));
        }
        last.unwrap()
    };
    let random = after(&random);
    [nothing, random, after(&sorted)]
}

#[test]
fn a_checkpoint_of_the_space_follows_the_changes() {
    let [nothing, random, sorted] = checkpoints(60_000);
    assert_eq!(nothing.space, 0, "no change");
    assert!(nothing.image > nothing.intervals, "the image lists all intervals each time");
    assert!(nothing.image < nothing.intervals * 16, "{nothing:?}: short entries");
    let list = random.extents * 16;
    assert!(random.space < list, "{random:?}: fewer bytes than a list of all extents");
    assert!(sorted.space * 4 < list, "{sorted:?}: a few leaves");
}

/// `cargo test --release -p sheaf-flex -- --ignored --nocapture a_million_pairs`
#[test]
#[ignore = "prints figures, a minute"]
fn bytes_of_a_checkpoint_of_a_million_pairs() {
    let [_, random, sorted] = checkpoints(1_000_000);
    println!("1 % at random: {random:?}");
    println!("1 % next to each other: {sorted:?}");
}
