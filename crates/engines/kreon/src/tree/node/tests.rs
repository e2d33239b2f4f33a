//! Nodes compared with their items, and bytes that are not a node.

use super::*;

fn pair(key: &[u8], number: u64) -> LeafPair<'_> {
    let fingerprint = (number % 7).to_le_bytes()[0];
    let (mut value, mut entry) = (
        &[][..],
        match number % 3 {
            0 => LeafEntry::put(Address::from_bits(number * 8), number * 8 % 4096, fingerprint, 0, 0),
            1 => LeafEntry::put(Address::from_bits(number * 8), 64, fingerprint, HAS_BLOB, number),
            _ => LeafEntry::tombstone(Seq(number), fingerprint, 0),
        },
    );
    if number.is_multiple_of(6) {
        value = &b"a value that is not much longer than this"[..usize::try_from(number / 6 % 33).unwrap()];
        entry = entry.with_flags(entry.flags | INLINE);
    }
    LeafPair { key, entry, max_seq: Seq(number), value }
}

fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> =
        vec![vec![], vec![0], vec![0; 8], vec![0; 9], vec![0xff; 300], vec![7; 60_000]];
    for number in 0..600u32 {
        keys.push(format!("user{number:03}").into_bytes());
        keys.push(format!("user{number:09}/visits").into_bytes());
        keys.push([&[9; 30][..], &number.to_be_bytes()].concat());
    }
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn leaves_hold_what_they_were_made_of() {
    let keys = keys();
    let pairs: Vec<LeafPair<'_>> = keys.iter().zip(0..).map(|(key, n)| pair(key, n)).collect();
    for page in [512, 4096] {
        let mut rest = &pairs[..];
        while !rest.is_empty() {
            let (count, size) = fit_items(rest, 0, page, page);
            let (now, behind) = rest.split_at(count);
            let (bytes, used) = build_node(now, 0, 5, Seq(6), page);
            assert_eq!(size, used);
            assert!(bytes.len() == page || count == 1);
            let node = Node::parse(&bytes, 0).unwrap();
            assert_eq!((node.len(), node.stamp(), node.max_seq()), (count, 5, Seq(6)));
            for (slot, pair) in now.iter().enumerate() {
                let mut key = Vec::new();
                node.key(slot, &mut key);
                assert_eq!(key, pair.key);
                assert_eq!(node.entry(slot), pair.entry);
                assert_eq!(node.value(slot), pair.value);
                assert_eq!(node.find(pair.entry.fingerprint, pair.key), Some(slot));
                assert_eq!(
                    (node.count_before(pair.key, false), node.count_before(pair.key, true)),
                    (slot, slot + 1)
                );
            }
            for (number, key) in keys.iter().enumerate() {
                assert_eq!(
                    node.count_before(key, false),
                    now.iter().filter(|p| p.key < &key[..]).count(),
                    "{number}"
                );
            }
            rest = behind;
        }
    }
}

/// Returns entries of which one in `deaf` is a tombstone or a blob.
fn pairs_with_leaf_only(keys: &[Vec<u8>], deaf: u64) -> Vec<LeafPair<'_>> {
    let one = |(key, number): (_, u64)| {
        let (seq, fingerprint) = (Seq(number), (number % 7).to_le_bytes()[0]);
        let entry = match number % deaf {
            0 if number % 2 == 0 => LeafEntry::tombstone(seq, fingerprint, 0),
            0 => LeafEntry::put(Address::from_bits(number * 8), 64, fingerprint, HAS_BLOB, number),
            _ => LeafEntry::put(Address::from_bits(number * 8), 64, fingerprint, LOWER_UNACCOUNTED, 0),
        };
        LeafPair { key, entry, max_seq: seq, value: &[] }
    };
    keys.iter().map(|key| &key[..]).zip(1..).map(one).collect()
}

/// Returns a node of as many of the pairs as fit into it, and their number.
fn leaf_of(pairs: &[LeafPair<'_>]) -> (Vec<u8>, usize) {
    let (count, _) = fit_items(pairs, 0, 4096, 4096);
    (build_node(&pairs[..count], 0, 5, Seq(6), 4096).0, count)
}

#[test]
fn fingerprints_answer_as_the_leaf_or_report_that_only_the_leaf_knows() {
    let keys: Vec<Vec<u8>> = (0..400u32).map(|number| format!("user{number:09}").into_bytes()).collect();
    let pairs = pairs_with_leaf_only(&keys, 5);
    let (bytes, count) = leaf_of(&pairs);
    let hash = |key: &[u8]| {
        key.iter().fold(7u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    let fingerprints =
        LeafFingerprints::of_leaf(&Node::parse(&bytes, 0).unwrap(), hash).expect("most entries say it all");
    assert_eq!((fingerprints.stamp(), fingerprints.max_seq()), (5, Seq(6)));
    assert!(fingerprints.cost() < 4096 * 3 / 4);
    for (slot, pair) in pairs.iter().enumerate() {
        let is_deaf = pair.entry.is_tombstone() || pair.entry.is_blob();
        let expected = (!is_deaf).then_some(pair.entry);
        let like: Vec<Option<LeafEntry>> =
            fingerprints.matches(hash(pair.key), pair.entry.fingerprint).collect();
        assert_eq!(like.contains(&expected), slot < count, "{slot}");
    }
    let (bytes, _) = leaf_of(&pairs_with_leaf_only(&keys, 3));
    assert!(
        LeafFingerprints::of_leaf(&Node::parse(&bytes, 0).unwrap(), hash).is_none(),
        "too much is nowhere else"
    );
}

#[test]
fn children_are_found_by_the_keys_of_their_ranges() {
    let children: Vec<Child> = keys()
        .into_iter()
        .zip(1..)
        .map(|(key, page)| Child { key, child: NodeRef { page, crc: 1, pages: 1, fill: 2, count: 3 } })
        .collect();
    let mut rest = &children[..];
    while !rest.is_empty() {
        let (count, _) = fit_items(rest, 1, 4096, 4096);
        let (now, behind) = rest.split_at(count);
        let (bytes, _) = build_node(now, 1, 0, Seq::ZERO, 4096);
        let node = Node::parse(&bytes, 1).unwrap();
        for (slot, child) in now.iter().enumerate() {
            assert_eq!(node.child(slot), child.child);
            assert_eq!(node.child_containing(&child.key), slot);
            assert_eq!(node.child_containing_before(&child.key), slot.saturating_sub(1));
            let behind = [&child.key[..], &[0]].concat();
            let expected = now.iter().rposition(|other| other.key <= behind);
            assert_eq!(Some(node.child_containing(&behind)), expected);
        }
        rest = behind;
    }
}

#[test]
fn hostile_bytes_are_errors() {
    let keys = keys();
    let pairs: Vec<LeafPair<'_>> = keys.iter().take(40).zip(0..).map(|(key, n)| pair(key, n)).collect();
    let (count, _) = fit_items(&pairs, 0, 512, 512);
    let (bytes, used) = build_node(&pairs[..count], 0, 5, Seq(6), 512);
    for at in 0..used {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            if let Ok(node) = Node::parse(&bytes, 0) {
                for slot in 0..node.len() {
                    node.key(slot, &mut Vec::new());
                    node.entry(slot);
                    node.value(slot);
                }
                let is_one = |slot| node.entry(slot).fingerprint == 1;
                keys.iter().for_each(|key| assert!(node.find(1, key).is_none_or(is_one)));
            }
        }
    }
}
