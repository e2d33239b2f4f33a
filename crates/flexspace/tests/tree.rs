//! The tree compared with a flat array: every operation, versions held and dropped, offsets beyond
//! 2^32 and 2^48.

use std::sync::Arc;

use proptest::prelude::*;
use sheaf_flexspace::tree::{ShiftTree, TreeEntry, TreeItem, TreeSnapshot};

/// Bytes from `skip` on of value `id`. A hole has id 0 and joins with any other hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestItem {
    id: u64,
    skip: u64,
}

impl TreeItem for TestItem {
    type Pivot = u64;
    fn pivot(&self) -> u64 {
        self.id
    }
    fn suffix(self, at: u64) -> TestItem {
        TestItem { skip: if self.id == 0 { 0 } else { self.skip + at }, ..self }
    }
    fn is_contiguous(&self, len: u64, next: &TestItem) -> bool {
        self.id == next.id && self.suffix(len).skip == next.skip
    }
}

/// Model of the tree: a flat list of runs. Every operation is O(N).
#[derive(Clone, Debug, Default, PartialEq)]
struct FlatModel(Vec<(u64, TestItem)>);

impl FlatModel {
    fn len(&self) -> u64 {
        self.0.iter().map(|(len, _)| len).sum()
    }

    /// Splits runs so that one starts at `at`. Returns its index in the list.
    fn cut(&mut self, at: u64) -> usize {
        let mut start = 0;
        for index in 0..self.0.len() {
            let (len, piece) = self.0[index];
            if at <= start {
                return index;
            }
            if at < start + len {
                self.0[index].0 = at - start;
                self.0.insert(index + 1, (start + len - at, piece.suffix(at - start)));
                return index + 1;
            }
            start += len;
        }
        self.0.len()
    }

    fn insert(&mut self, at: u64, len: u64, piece: TestItem) {
        let index = self.cut(at);
        self.0.insert(index, (len, piece));
    }

    fn collapse(&mut self, at: u64, len: u64) -> FlatModel {
        let (from, to) = (self.cut(at), self.cut(at + len));
        FlatModel(self.0.drain(from..to).collect())
    }

    /// Returns the list with contiguous runs joined. Lists with equal content are then equal.
    fn joined(&self) -> FlatModel {
        let mut joined: Vec<(u64, TestItem)> = Vec::new();
        for (len, piece) in &self.0 {
            match joined.last_mut() {
                Some((before, last)) if last.is_contiguous(*before, piece) => *before += len,
                _ => joined.push((*len, *piece)),
            }
        }
        FlatModel(joined)
    }

    fn of(tree: &TreeSnapshot<TestItem>) -> FlatModel {
        FlatModel(tree.range(0).map(|entry| (entry.len, entry.item)).collect())
    }
}

#[derive(Clone, Debug)]
enum TreeOp {
    Insert(u64, u64),
    Append(u64),
    Hole(u64, u64),
    Collapse(u64, u64),
    Remap(u64, u64),
    Replace(u64, u64, u64),
    Extend(u64, u64),
    Publish,
    Release(u8),
}

fn op() -> impl Strategy<Value = TreeOp> {
    let (at, len) = (any::<u64>(), 1..40u64);
    prop_oneof![
        6 => (at, len.clone()).prop_map(|(at, len)| TreeOp::Insert(at, len)),
        2 => len.clone().prop_map(TreeOp::Append),
        1 => (at, len.clone()).prop_map(|(at, len)| TreeOp::Hole(at, len)),
        3 => (at, len.clone()).prop_map(|(at, len)| TreeOp::Collapse(at, len)),
        1 => (at, 0..3000u64).prop_map(|(at, len)| TreeOp::Collapse(at, len)),
        3 => (at, len.clone()).prop_map(|(at, len)| TreeOp::Remap(at, len)),
        3 => (at, 0..200u64, len).prop_map(|(at, len, new)| TreeOp::Replace(at, len, new)),
        2 => (any::<u64>(), 1..40u64).prop_map(|(at, len)| TreeOp::Extend(at, len)),
        1 => Just(TreeOp::Publish),
        1 => any::<u8>().prop_map(TreeOp::Release),
    ]
}

/// The tree, the model, and the held versions with their expected content.
struct TreeAndModel {
    tree: ShiftTree<TestItem>,
    flat: FlatModel,
    held: Vec<(Arc<TreeSnapshot<TestItem>>, FlatModel)>,
    /// Unit of all lengths and offsets.
    unit: u64,
    next: u64,
}

impl TreeAndModel {
    fn new(unit: u64) -> TreeAndModel {
        let tree = ShiftTree::new(TestItem { id: 0, skip: 0 });
        TreeAndModel { tree, flat: FlatModel::default(), held: Vec::new(), unit, next: 1 }
    }

    fn piece(&mut self) -> TestItem {
        self.next += 1;
        TestItem { id: self.next, skip: 0 }
    }

    fn insert(&mut self, at: u64, len: u64, piece: TestItem) {
        self.tree.insert(at, len, piece);
        self.flat.insert(at, len, piece);
    }

    fn apply(&mut self, op: &TreeOp) {
        let units = self.tree.len() / self.unit;
        let piece = self.piece();
        match *op {
            TreeOp::Extend(at, len) => {
                let entry = self.tree.get(at % self.tree.len().max(1));
                if let Some(TreeEntry { start, len: before, item }) = entry.filter(|entry| entry.item.id > 0)
                {
                    self.tree.extend(start + before, len * self.unit);
                    // Items of a model are bytes of a value, so the added bytes continue it. Bytes
                    // that continued it before do not any more.
                    self.flat.insert(start + before, len * self.unit, item.suffix(before));
                }
            }
            TreeOp::Insert(at, len) => self.insert(at % (units + 1) * self.unit, len * self.unit, piece),
            TreeOp::Append(len) => self.insert(units * self.unit, len * self.unit, piece),
            TreeOp::Hole(at, len) => {
                self.insert(at % (units + 1) * self.unit, len * self.unit, TestItem { id: 0, skip: 0 })
            }
            TreeOp::Collapse(at, len) => {
                let at = at % (units + 1);
                let len = len.min(units - at) * self.unit;
                let mut gone = FlatModel::default();
                self.tree.collapse(at * self.unit, len, |len, piece| gone.0.push((len, piece)));
                let expected = self.flat.collapse(at * self.unit, len);
                assert_eq!(gone.joined(), expected.joined());
            }
            TreeOp::Remap(at, len) => {
                let at = at % (units + 1);
                let len = len.min(units - at) * self.unit;
                if len > 0 {
                    let mut gone = FlatModel::default();
                    self.tree.remap(at * self.unit, len, piece, |len, piece| gone.0.push((len, piece)));
                    let expected = self.flat.collapse(at * self.unit, len);
                    assert_eq!(gone.joined(), expected.joined());
                    self.flat.insert(at * self.unit, len, piece);
                }
            }
            TreeOp::Replace(at, len, new) => {
                let at = at % (units + 1);
                let (at, len, new) = (at * self.unit, len.min(units - at) * self.unit, new * self.unit);
                let mut gone = FlatModel::default();
                self.tree.replace(at, len, new, piece, |len, piece| gone.0.push((len, piece)));
                assert_eq!(gone.joined(), self.flat.collapse(at, len).joined());
                self.flat.insert(at, new, piece);
            }
            TreeOp::Publish => {
                let version = self.tree.publish(self.next);
                assert_eq!(version.version(), self.next);
                self.held.push((version, self.flat.clone()));
            }
            TreeOp::Release(which) if !self.held.is_empty() => {
                let index = usize::from(which) % self.held.len();
                self.held.remove(index);
            }
            TreeOp::Release(_) => {}
        }
    }

    fn check(&self) {
        self.tree.read(|now| check_state(now, &self.flat, self.unit));
        for (version, flat) in &self.held {
            check_state(version, flat, self.unit);
        }
    }
}

fn check_state(state: &TreeSnapshot<TestItem>, flat: &FlatModel, unit: u64) {
    state.check().expect("every node keeps the invariants");
    assert_eq!(state.len(), flat.len());
    assert_eq!(FlatModel::of(state).joined(), flat.joined());
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(entry) = state.get(at) {
        assert_eq!(state.get(at + entry.len - 1), Some(entry), "the last byte of an entry is in it");
        assert_eq!(entry.start, at);
        assert_eq!(state.range(at + (entry.len / unit / 2) * unit).next(), Some(entry));
        at += entry.len;
        entries.push(entry);
    }
    assert_eq!(at, state.len(), "entries tile the space");
    assert!(state.range(0).eq(entries), "a walk and lookups agree");
    assert_eq!(state.range(state.len()).next(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tree_is_a_flat_array(ops in prop::collection::vec(op(), 1..400), bulk in 0..6000u64) {
        let mut pair = TreeAndModel::new(1);
        for n in 0..bulk {
            let piece = pair.piece();
            pair.insert(if n % 3 == 0 { pair.tree.len() } else { pair.tree.len() / 2 }, 1 + n % 7, piece);
        }
        for (n, op) in ops.iter().enumerate() {
            pair.apply(op);
            if n % 100 == 0 {
                pair.check();
            }
        }
        pair.check();
        pair.held.clear();
        let len = pair.tree.len();
        pair.apply(&TreeOp::Collapse(0, len));
        pair.check();
    }

    #[test]
    fn offsets_beyond_2_to_the_48_are_as_good_as_small_ones(
        ops in prop::collection::vec(op(), 1..400),
        unit in 30..52u32,
    ) {
        let mut pair = TreeAndModel::new(1 << unit);
        for op in &ops {
            pair.apply(op);
        }
        pair.check();
    }
}

#[test]
fn rebased_nodes_cross_2_to_the_32_and_2_to_the_48() {
    for border in [1u64 << 32, 1 << 48] {
        let mut pair = TreeAndModel::new(1);
        pair.insert(0, border - 5000, TestItem { id: 0, skip: 0 });
        // Splits, and therefore rebases, happen on both sides of the border and on it.
        for n in 0..10_000u64 {
            let piece = pair.piece();
            pair.insert(border - 5000 + n, 1, piece);
        }
        for n in 0..5_000u64 {
            let piece = pair.piece();
            pair.insert(border - 4000 + (n * 7919) % 9000, 1 + n % 3, piece);
        }
        pair.check();
        let removed = pair.flat.collapse(border - 4500, 9_500);
        let mut gone = FlatModel::default();
        pair.tree.collapse(border - 4500, 9_500, |len, piece| gone.0.push((len, piece)));
        assert_eq!(gone.joined(), removed.joined());
        pair.check();
    }
}

/// A crowded node moves entries to its siblings before it is split. Measures the bytes of an entry;
/// a full node takes 25 here.
#[test]
fn nodes_are_three_quarters_full_whatever_the_order() {
    let piece = |id: u64| TestItem { id: 1 + id, skip: 0 };
    let scattered = |n: u64, len: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % len;
    for in_order in [60_000, 30_000, 0u64] {
        let mut tree = ShiftTree::new(piece(0));
        for n in 0..60_000 {
            tree.insert(if n < in_order { n } else { scattered(n, n + 1) }, 1, piece(n));
        }
        tree.read(TreeSnapshot::check).unwrap();
        let each = tree.bytes() as f64 / tree.entries() as f64;
        assert!(each < 25.0 / 0.74, "{each} bytes, {in_order} in order");
    }
    // A few more random inserts leave full nodes as full as possible.
    let mut tree = ShiftTree::new(piece(0));
    for n in 0..60_000 {
        tree.insert(n, 1, piece(n));
    }
    for n in 60_000..63_000 {
        tree.insert(scattered(n, n), 1, piece(n));
    }
    let each = tree.bytes() as f64 / tree.entries() as f64;
    assert!(each < 25.0 / 0.7, "{each} bytes after 5 % more");
}

#[test]
fn unused_versions_free_their_nodes() {
    let mut pair = TreeAndModel::new(1);
    for n in 0..20_000u64 {
        let piece = pair.piece();
        pair.insert(n, 1, piece);
    }
    pair.tree.publish(1);
    let once = pair.tree.bytes();
    for n in 0..5_000u64 {
        let piece = pair.piece();
        pair.tree.remap(n * 3 % 20_000, 1, piece, |_, _| {});
        pair.tree.publish(n);
    }
    assert!(pair.tree.bytes() < once + 50_000, "{} after {once}", pair.tree.bytes());
    let held = pair.tree.publish(0);
    assert_eq!(pair.tree.versions(), 2, "the one before it is given back with the next");
    for n in 0..100u64 {
        let piece = pair.piece();
        pair.tree.remap(n * 191 % 20_000, 1, piece, |_, _| {});
        pair.tree.publish(n);
    }
    assert_eq!(pair.tree.versions_in_use(None), [0, 99]);
    assert_eq!(
        (pair.tree.versions_in_use(Some(0)), pair.tree.versions_in_use(Some(7))),
        (vec![99], vec![0, 99])
    );
    assert_eq!(pair.tree.versions_in_use(Some(99)), [0, 99], "the newest is the next reader's");
    drop(held);
    assert_eq!(pair.tree.versions_in_use(Some(99)), [99]);
    assert_eq!(pair.tree.versions(), 1);
}

#[test]
fn a_held_version_keeps_its_own_nodes_and_not_those_after_it() {
    let mut tree = ShiftTree::new(TestItem { id: 0, skip: 0 });
    for n in 0..20_000u64 {
        tree.insert(n, 1, TestItem { id: n + 1, skip: 0 });
    }
    let held = tree.publish(0);
    let once = tree.bytes();
    let mut others = Vec::new();
    for n in 1..50_000u64 {
        tree.remap(n * 7919 % 20_000, 1, TestItem { id: 1 << 40, skip: n }, |_, _| {});
        let version = tree.publish(n);
        if n % 1000 < 7 {
            others.push((n, version));
        }
        if others.len() > 20 {
            let (n, version) = others.swap_remove(usize::try_from(n % 20).expect("small"));
            assert_eq!(version.version(), n);
            assert_eq!(version.range(0).filter(|entry| entry.item.skip > n).count(), 0);
        }
    }
    // Every held version has at most all nodes for itself, here some hundred.
    assert!(tree.versions() < 60, "{} versions", tree.versions());
    assert!(tree.bytes() < once * 25, "{} after {once}", tree.bytes());
    assert!((0..).zip(held.range(0)).all(|(n, entry)| entry.item == TestItem { id: n + 1, skip: 0 }));
    drop((held, others));
    tree.reclaim_all();
    assert_eq!(tree.versions(), 1);
    assert!(tree.bytes() < once * 11 / 10, "{} after {once}", tree.bytes());
}

#[test]
fn readers_of_a_version_go_on_beside_the_writer() {
    let mut tree = ShiftTree::new(TestItem { id: 0, skip: 0 });
    for n in 0..5_000u64 {
        tree.insert(n, 1, TestItem { id: n + 1, skip: 0 });
    }
    let version = tree.publish(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for round in 0..50 {
                for (n, entry) in version.range(0).enumerate() {
                    assert_eq!(
                        entry,
                        TreeEntry { start: n as u64, len: 1, item: TestItem { id: n as u64 + 1, skip: 0 } }
                    );
                }
                assert_eq!(version.len(), 5_000, "{round}");
            }
        });
        for n in 0..20_000u64 {
            tree.insert(n % 4_000, 1, TestItem { id: 1 << 40, skip: n });
            if n % 10 == 0 {
                tree.publish(n);
            }
        }
        reader.join().expect("the reader found the published state");
    });
    assert_eq!(tree.len(), 25_000);
}

/// A sparse index: entries are intervals of keys, found by key. The tree computes their offsets.
#[test]
fn intervals_are_found_by_key_and_shift_with_their_bytes() {
    let mut tree = ShiftTree::new(TestItem { id: 0, skip: 0 });
    let mut sizes = std::collections::BTreeMap::new();
    for n in 0..20_000u64 {
        let (key, size) = (n * 7919 % 20_011 + 1, 1 + n % 97);
        let at = tree.find(|pivot| *pivot < key).map_or(0, |before| before.start + before.len);
        tree.insert(at, size, TestItem { id: key, skip: 0 });
        sizes.insert(key, size);
    }
    let mut gone = 0;
    tree.collapse(1000, 100_000, |_, _| gone += 1);
    assert!(gone > 1000);
    let mut start = 0;
    for entry in tree.read(|now| now.range(0).collect::<Vec<_>>()) {
        let found = tree.find(|pivot| *pivot <= entry.item.id).expect("the key is there");
        assert_eq!((found, entry.start), (entry, start));
        start += entry.len;
    }
    let first = tree.get(0).expect("not empty").item.id;
    assert_eq!(tree.find(|pivot| *pivot < first), None);
}
