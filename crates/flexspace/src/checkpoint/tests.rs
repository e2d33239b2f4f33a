//! Tests of node files: hostile references and values.

use sheaf_engine::contract::ImageSink;
use sheaf_sim::SimDisk;

use super::node_format::{NodePlace, NodeStarts, decode_inner, decode_leaf, decode_serials, encode_inner};
use super::node_format::{encode_leaf, encode_serials};
use super::node_writer::{NodeFile, NodeWriter};
use super::*;
use crate::tree::{CAPACITY, MAX_LEN};
use sheaf_platform::codec::FieldWriter;
use sheaf_platform::disk::OpenMode;

const SPACE: StoreId = StoreId(7);
const FILE: u64 = 3;
const BLOCK: u64 = 512;

/// Returns a disk with a node file that `write` fills, and the root that it returns.
fn node_file(write: impl FnOnce(&mut NodeWriter<'_>) -> NodeRoot) -> (SimDisk, NodeRoot) {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/tree")).unwrap();
    let path = node_path(Path::new("/"), FILE);
    let file = disk.open(&path, OpenMode::Create).unwrap();
    let file = NodeFile { file, path, space: SPACE, number: FILE };
    let kept = BlockSet::new(BLOCK);
    let mut writer = NodeWriter::new(&file, &kept, BlockSet::new(BLOCK));
    writer.write_header().unwrap();
    let root = write(&mut writer);
    writer.flush().unwrap();
    (disk, root)
}

fn load(disk: &SimDisk, root: &NodeRoot, entries: u64) -> Result<LoadedNodes> {
    CheckpointState::load(disk, Path::new("/"), SPACE, root, (entries, BLOCK))
}

fn root_of(root: StoredNodeRef, len: u64, height: usize) -> NodeRoot {
    NodeRoot { file: FILE, len, height, root, next_number: 1000, groups: Vec::new() }
}

/// Returns a leaf of holes with these starts.
fn leaf(starts: &[u64], len: u64) -> Vec<u8> {
    let mut tree = ShiftTree::new(Extent::HOLE);
    for (n, start) in starts.iter().enumerate() {
        let end = starts.get(n + 1).copied().unwrap_or(len);
        // Chunks that are not adjacent.
        tree.insert(*start, end - start, Extent::new(n as u64 * 800));
    }
    let mut node = Vec::new();
    tree.read(|tree| encode_leaf(&tree.root_node(), &mut node));
    node
}

fn inner(starts: &[u64], children: &[StoredNodeRef]) -> Vec<u8> {
    let mut node = Vec::new();
    encode_inner(starts, children, &mut node);
    node
}

#[test]
fn stored_nodes_give_the_same_tree() {
    let (disk, root) = node_file(|writer| {
        let mut leaves = Vec::new();
        for number in 1..=3 {
            leaves.push(writer.put(number, &mut leaf(&[0, 5, 9], 20)).unwrap());
        }
        let root = writer.put(4, &mut inner(&[0, 20, 40], &leaves)).unwrap();
        let mut serials = Vec::new();
        encode_serials(&[(256, 9), (511, 1 << 40)], &mut serials);
        let group = writer.put(5, &mut serials).unwrap();
        NodeRoot { groups: vec![StoredNodeRef::default(), group], ..root_of(root, 70, 2) }
    });
    let loaded = load(&disk, &root, 9).unwrap();
    loaded.tree.read(|tree| {
        tree.check().unwrap();
        let lens: Vec<u64> = tree.range(0).map(|entry| entry.len).collect();
        assert_eq!(lens, [5, 4, 11, 5, 4, 11, 5, 4, 21], "the last leaf is as long as the space");
    });
    assert_eq!(loaded.serials, [(256, 9), (511, 1 << 40)]);
    assert_eq!(verify_nodes(&disk, Path::new("/"), SPACE, &root, 9).unwrap(), loaded.bytes);
    assert!(load(&disk, &root, 10).is_err_and(|error| error.is_corrupt()), "another number of entries");
    assert!(load(&disk, &NodeRoot { height: 3, ..root.clone() }, 9).is_err_and(|error| error.is_corrupt()));
    assert!(load(&disk, &NodeRoot { len: 40, ..root.clone() }, 9).is_err_and(|error| error.is_corrupt()));
    // A node has one number.
    let renumbered = StoredNodeRef { number: 5, ..root.root };
    assert!(load(&disk, &NodeRoot { root: renumbered, ..root }, 9).is_err_and(|error| error.is_corrupt()));
}

/// References that share nodes, or form a circle, describe a tree that is larger than the file.
#[test]
fn shared_nodes_are_damage() {
    let (disk, root) = node_file(|writer| {
        let mut below = writer.put(1, &mut leaf(&[0], 1)).unwrap();
        for level in 0..10 {
            let len = 64u64.pow(level);
            let starts: Vec<u64> = (0..64).map(|n| n * len).collect();
            below = writer.put(u64::from(level) + 2, &mut inner(&starts, &[below; 64])).unwrap();
        }
        root_of(below, 64u64.pow(10), 11)
    });
    assert!(load(&disk, &root, 64u64.pow(10)).is_err_and(|error| error.is_corrupt()));
    let (disk, root) = node_file(|writer| {
        let mut own = StoredNodeRef { place: NodePlace::new(BLOCK, 0), number: 1 };
        let len = inner(&[0, 1], &[own, own]).len() as u64;
        own.place = NodePlace::new(BLOCK, len);
        let starts = [0, 1 << 60];
        let len = inner(&starts, &[own, own]).len() as u64;
        own.place = NodePlace::new(BLOCK, len);
        let root = writer.put(1, &mut inner(&starts, &[own, own])).unwrap();
        assert_eq!(root, own);
        root_of(root, MAX_LEN, MAX_HEIGHT)
    });
    assert!(load(&disk, &root, 1).is_err_and(|error| error.is_corrupt()));
}

#[test]
fn references_outside_of_the_file_are_damage() {
    for (offset, len) in [(0, 50), (30, 50), (BLOCK, 0), (BLOCK, 5), (BLOCK, 4096), (1 << 47, 40)] {
        let (disk, root) = node_file(|writer| {
            writer.put(1, &mut leaf(&[0, 3], 9)).unwrap();
            root_of(StoredNodeRef { place: NodePlace::new(offset, len), number: 1 }, 9, 1)
        });
        assert!(load(&disk, &root, 2).is_err_and(|error| error.is_corrupt()), "{offset} {len}");
    }
}

/// Collects the bytes of an image.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl ImageSink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn impossible_root_records_are_damage() {
    let good = NodeRoot {
        file: 1,
        len: 5,
        height: 1,
        root: StoredNodeRef { place: NodePlace::new(512, 30), number: 1 },
        next_number: 2,
        groups: vec![StoredNodeRef::default(); 3],
    };
    let decode = |root: &NodeRoot, groups: u32| {
        let mut w = FieldWriter::default();
        root.encode(&mut w);
        w.0[48..52].copy_from_slice(&groups.to_le_bytes());
        NodeRoot::decode(&w.0[..52])
    };
    assert_eq!(decode(&good, 3).unwrap().1, 3);
    assert!(decode(&good, u32::MAX).is_err(), "more groups than segments");
    for bad in [
        NodeRoot { file: 0, ..good.clone() },
        NodeRoot { len: 0, ..good.clone() },
        NodeRoot { len: MAX_LEN + 1, ..good.clone() },
        NodeRoot { height: 0, ..good.clone() },
        NodeRoot { height: MAX_HEIGHT + 1, ..good.clone() },
        NodeRoot { next_number: u64::MAX, ..good.clone() },
    ] {
        assert!(decode(&bad, 3).is_err(), "{bad:?}");
    }
    let mut bytes = Bytes::default();
    let summary = format::CheckpointHeader { seq: 1, mark: 0, entries: 2, serials: Vec::new() };
    format::write_node_checkpoint(&summary, &good, &mut bytes).unwrap();
    assert_eq!(bytes.0.len(), 32 + 52 + 3 * 16);
}

/// Decoding of changed nodes returns an error or a node within its length.
#[test]
fn changed_nodes_never_panic() {
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let starts: Vec<u64> = (0..64).map(|n| n * 1000).collect();
    let mut serials = Vec::new();
    encode_serials(&(0..256).map(|n| (n, u64::from(n) << 33)).collect::<Vec<_>>(), &mut serials);
    let nodes = [leaf(&starts, 64_000), inner(&starts, &[StoredNodeRef::default(); 64]), serials];
    let (mut decoded, mut children) = (NodeStarts::new(), Vec::new());
    let mut items = [Extent::HOLE; CAPACITY];
    for round in 0..200_000 {
        let mut node = nodes[round % 3].clone();
        for _ in 0..1 + next() % 3 {
            let at = usize::try_from(next()).unwrap() % (node.len() - 4) + 4;
            node[at] = next().to_le_bytes()[0];
        }
        if next() % 4 == 0 {
            node.truncate(6 + usize::try_from(next()).unwrap() % (node.len() - 6));
        }
        let len = 1 + next() % 100_000;
        let results = [
            decode_leaf(&node, len, &mut decoded, &mut items),
            decode_inner(&node, len, &mut decoded, &mut children),
        ];
        if results.iter().any(Result::is_ok) {
            let starts = decoded.as_slice();
            assert!(starts[0] == 0 && starts.is_sorted() && starts.iter().all(|start| *start < len));
        }
        let _ = decode_serials(&node, (1 << 24) - 1);
    }
}
