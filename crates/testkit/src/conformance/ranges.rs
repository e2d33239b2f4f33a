//! # Ranges: many keys, sorted if the engine is ordered

use std::ops::Bound;

use super::{KeyValue, bytes, key, pairs, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace};

fn filled(fixture: &Fixture, count: usize) -> (Database, Keyspace, Vec<KeyValue>) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    let mut all: Vec<KeyValue> =
        (0..count).map(|index| (key(index).into_bytes(), bytes(index % 50, index as u64))).collect();
    for (index, extra) in [&b""[..], b"\0", b"\xff", b"\xff\xff", b"key", b"key-"].into_iter().enumerate() {
        all.push((extra.to_vec(), vec![b'v'; index]));
    }
    // In descending order; each key is written twice, and extra keys are removed again.
    for (index, (key, value)) in all.iter().enumerate().rev() {
        ks.insert(key, "old").unwrap();
        ks.insert([key, &b"-gone"[..]].concat(), "x").unwrap();
        ks.insert(key, value).unwrap();
        if index % 2 == 0 {
            ks.remove([key, &b"-gone"[..]].concat()).unwrap();
        }
    }
    for (key, _) in &all {
        ks.remove([key, &b"-gone"[..]].concat()).unwrap();
    }
    all.sort();
    (db, ks, all)
}

pub fn iteration_yields_every_pair_once(fixture: &Fixture) {
    let (_db, ks, all) = filled(fixture, 300);
    assert_eq!(sorted(&ks), all);
    let mut keys: Vec<Vec<u8>> = ks.keys().unwrap().map(|key| key.unwrap().to_vec()).collect();
    keys.sort();
    assert!(keys.iter().eq(all.iter().map(|(key, _)| key)));
    let mut whole = pairs(ks.range::<&[u8]>(..).unwrap());
    whole.sort();
    assert_eq!(whole, all);
    let mut whole = pairs(ks.prefix("").unwrap());
    whole.sort();
    assert_eq!(whole, all);
    let mut of_snapshot = pairs(_db.snapshot().unwrap().keyspace("ranges").unwrap().iter().unwrap());
    of_snapshot.sort();
    assert_eq!(of_snapshot, all);
}

pub fn an_ordered_engine_iterates_in_the_order_of_bytes_both_ways(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (_db, ks, mut all) = filled(fixture, 300);
    assert_eq!(pairs(ks.iter().unwrap()), all);
    assert!(ks.keys().unwrap().map(|key| key.unwrap().to_vec()).eq(all.iter().map(|(k, _)| k.clone())));
    all.reverse();
    assert_eq!(pairs(ks.iter().unwrap().rev()), all);
    assert!(ks.keys().unwrap().rev().map(|key| key.unwrap().to_vec()).eq(all.iter().map(|(k, _)| k.clone())));
}

/// Checks iteration over flushed pairs between new pairs, at all positions within the groups in
/// which an engine may read either.
pub fn iteration_merges_flushed_and_new_pairs(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    for stride in [13, 16] {
        let name = format!("every {stride}");
        // Flushed values are so large that no engine keeps them in memory.
        let value = |index: usize| bytes(if index.is_multiple_of(stride) { 600 } else { 8 }, index as u64);
        let all: Vec<KeyValue> =
            (0..2000).map(|index| (format!("{index:04}").into_bytes(), value(index))).collect();
        let write = |keyspace: &Keyspace, is_first: bool| {
            for (_, (key, value)) in
                all.iter().enumerate().filter(|(index, _)| index.is_multiple_of(stride) == is_first)
            {
                keyspace.insert(key, value).unwrap();
            }
        };
        let db = fixture.open();
        write(&fixture.keyspace(&db, &name), true);
        db.close().unwrap();
        let db = fixture.open();
        let ks = fixture.keyspace(&db, &name);
        write(&ks, false);
        assert_eq!(ks.len().unwrap(), all.len() as u64);
        assert_eq!(pairs(ks.iter().unwrap()), all);
        let mut down = pairs(ks.iter().unwrap().rev());
        down.reverse();
        assert_eq!(down, all);
    }
}

pub fn ranges_honour_their_ends(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks, all) = filled(fixture, 40);
    let snapshot = db.snapshot().unwrap().keyspace("ranges").unwrap();
    let ends: Vec<Vec<u8>> =
        [&b""[..], b"\0", b"key-00007", b"key-00007\0", b"key-00020", b"key-0003", b"\xff", b"\xff\xff\xff"]
            .map(<[u8]>::to_vec)
            .to_vec();
    let bounds = || {
        let each = ends.iter().flat_map(|end| [Bound::Included(end), Bound::Excluded(end)]);
        each.chain([Bound::Unbounded]).map(|bound| bound.cloned())
    };
    for low in bounds() {
        for high in bounds() {
            let range = (low.clone(), high.clone());
            let within = |key: &[u8]| {
                let above = match &low {
                    Bound::Included(low) => key >= low.as_slice(),
                    Bound::Excluded(low) => key > low.as_slice(),
                    Bound::Unbounded => true,
                };
                above
                    && match &high {
                        Bound::Included(high) => key <= high.as_slice(),
                        Bound::Excluded(high) => key < high.as_slice(),
                        Bound::Unbounded => true,
                    }
            };
            let mut expected: Vec<KeyValue> = all.iter().filter(|(key, _)| within(key)).cloned().collect();
            assert_eq!(pairs(ks.range(range.clone()).unwrap()), expected, "{range:?}");
            assert_eq!(pairs(snapshot.range(range.clone()).unwrap()), expected, "{range:?}");
            expected.reverse();
            assert_eq!(pairs(ks.range(range.clone()).unwrap().rev()), expected, "{range:?} back");
        }
    }
}

pub fn prefixes_yield_their_families(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks, all) = filled(fixture, 130);
    let snapshot = db.snapshot().unwrap().keyspace("ranges").unwrap();
    for prefix in
        [&b""[..], b"k", b"key", b"key-0001", b"key-00012", b"key-00012x", b"\xff", b"\xff\xff", b"\0", b"z"]
    {
        let mut expected: Vec<KeyValue> =
            all.iter().filter(|(key, _)| key.starts_with(prefix)).cloned().collect();
        assert_eq!(pairs(ks.prefix(prefix).unwrap()), expected, "{prefix:?}");
        assert_eq!(pairs(snapshot.prefix(prefix).unwrap()), expected, "{prefix:?}");
        expected.reverse();
        assert_eq!(pairs(ks.prefix(prefix).unwrap().rev()), expected, "{prefix:?} back");
    }
}

pub fn first_and_last_are_the_ends(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    assert!(ks.first().unwrap().is_none() && ks.last().unwrap().is_none());
    let own =
        |pair: Option<(sheaf::Value, sheaf::Value)>| pair.map(|(key, value)| (key.to_vec(), value.to_vec()));
    for key in ["m", "t", "c"] {
        ks.insert(key, key.to_uppercase()).unwrap();
    }
    assert_eq!(own(ks.first().unwrap()), Some((b"c".to_vec(), b"C".to_vec())));
    assert_eq!(own(ks.last().unwrap()), Some((b"t".to_vec(), b"T".to_vec())));
    ks.remove("c").unwrap();
    ks.remove("t").unwrap();
    assert_eq!(own(ks.first().unwrap()), own(ks.last().unwrap()));
    ks.insert("", "").unwrap();
    assert_eq!(own(ks.first().unwrap()), Some((vec![], vec![])), "the empty key is the lowest");
}

pub fn pop_takes_each_pair_once_from_its_end(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    if !ks.capabilities().unwrap().ordered {
        refused!(ks.pop_first(), Error::Unsupported { .. });
        refused!(ks.pop_last(), Error::Unsupported { .. });
        return;
    }
    for n in 0..40 {
        ks.insert(key(n), bytes(9, n as u64)).unwrap();
        if n == 20 {
            ks.compact().unwrap();
        }
    }
    let model = sorted(&ks);
    let pair = |pair: Option<(sheaf::Value, sheaf::Value)>| pair.map(|(k, v)| (k.to_vec(), v.to_vec()));
    for n in 0..20 {
        assert_eq!(pair(ks.pop_first().unwrap()).as_ref(), model.get(n));
        assert_eq!(pair(ks.pop_last().unwrap()).as_ref(), model.get(39 - n));
    }
    assert_eq!(ks.pop_first().unwrap(), None);
    assert_eq!(ks.pop_last().unwrap(), None);
    assert!(ks.is_empty().unwrap());
}

pub fn an_iterator_seeks_within_its_range_both_ways(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    if !ks.capabilities().unwrap().ordered {
        refused!(ks.iter().unwrap().seek("k"), Error::Unsupported { .. });
        return;
    }
    let name = |n: usize| format!("{n:03}");
    for n in (0..200).step_by(2) {
        ks.insert(name(n), "x").unwrap();
        if n == 100 {
            ks.compact().unwrap();
        }
    }
    let number = |pair: Option<sheaf::Result<(sheaf::Value, sheaf::Value)>>| {
        pair.map(|pair| std::str::from_utf8(&pair.unwrap().0).unwrap().parse::<usize>().unwrap())
    };
    let mut iter = ks.range(name(20)..name(180)).unwrap();
    for (target, found) in [(50, 50), (51, 52), (0, 20), (20, 20), (150, 150), (21, 22), (178, 178)] {
        iter.seek(name(target)).unwrap();
        assert_eq!(number(iter.next()), Some(found), "seek {target}");
    }
    for beyond in [179, 180, 199] {
        iter.seek(name(beyond)).unwrap();
        assert_eq!(number(iter.next()), None, "seek {beyond}");
    }
    iter.seek(name(60)).unwrap();
    for (target, found) in [(100, 100), (99, 98), (199, 178), (60, 60)] {
        iter.seek_back(name(target)).unwrap();
        assert_eq!(number(iter.next_back()), Some(found), "seek back {target}");
    }
    iter.seek_back(name(66)).unwrap();
    assert_eq!(
        [iter.next_back(), iter.next(), iter.next(), iter.next_back()].map(number),
        [Some(66), Some(60), Some(62), Some(64)]
    );
    assert_eq!([iter.next(), iter.next_back()].map(number), [None, None], "the ends have met");
    iter.seek_back(name(59)).unwrap();
    assert_eq!(number(iter.next_back()), None, "behind the front");
    // An end that has returned all pairs of an unbounded range does not begin again when the other
    // end moves.
    let mut iter = ks.iter().unwrap();
    assert_eq!(iter.by_ref().rev().count(), 100);
    iter.seek(name(60)).unwrap();
    assert_eq!([iter.next_back(), iter.next()].map(number), [None, None]);
    let mut iter = ks.iter().unwrap();
    assert_eq!(iter.by_ref().count(), 100);
    iter.seek_back(name(60)).unwrap();
    assert_eq!([iter.next(), iter.next_back()].map(number), [None, None]);
}

pub fn both_ends_of_an_iterator_meet(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (_db, ks, all) = filled(fixture, 30);
    for seed in 0..20u64 {
        let mut iter = ks.range("a"..).unwrap();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for turn in bytes(1000, seed) {
            let forward = turn & 1 == 0;
            let Some(pair) = (if forward { iter.next() } else { iter.next_back() }) else {
                break;
            };
            let (key, value) = pair.unwrap();
            let list = if forward { &mut front } else { &mut back };
            list.push((key.to_vec(), value.to_vec()));
        }
        assert!(iter.next().is_none() && iter.next_back().is_none(), "a finished iterator stays finished");
        back.reverse();
        front.extend(back);
        let expected: Vec<KeyValue> = all.iter().filter(|(key, _)| key.as_slice() >= b"a").cloned().collect();
        assert_eq!(front, expected, "seed {seed}");
    }
}

pub fn an_engine_refuses_exactly_what_its_capabilities_exclude(fixture: &Fixture) {
    let (db, ks, all) = filled(fixture, 10);
    let engine = fixture.subject.engine;
    assert_eq!(ks.capabilities().unwrap().ordered, fixture.subject.ordered);
    assert_eq!(ks.engine(), engine);
    if fixture.subject.ordered {
        return; // the other tests of this file check ordered engines
    }
    refused!(ks.range("a".."b"), Error::Unsupported { engine: e, .. } if e == engine);
    refused!(ks.range("a"..), Error::Unsupported { .. });
    refused!(ks.prefix("a"), Error::Unsupported { .. });
    refused!(ks.first(), Error::Unsupported { .. });
    refused!(ks.last(), Error::Unsupported { .. });
    refused!(ks.remove_range("a".."b"), Error::Unsupported { .. });
    let mut iter = ks.iter().unwrap();
    refused!(iter.next_back().unwrap(), Error::Unsupported { .. });
    assert!(iter.next().is_none(), "nothing comes after an error");
    let mut keys = ks.keys().unwrap().rev();
    refused!(keys.next().unwrap(), Error::Unsupported { .. });
    let snapshot = db.snapshot().unwrap().keyspace("ranges").unwrap();
    refused!(snapshot.range(.."b"), Error::Unsupported { .. });
    refused!(snapshot.prefix("a"), Error::Unsupported { .. });
    assert_eq!(sorted(&ks), all, "and nothing else was refused or changed");
    assert_eq!(snapshot.len().unwrap(), all.len() as u64);
}

pub fn clear_removes_everything(fixture: &Fixture) {
    let (_db, ks, _) = filled(fixture, 200);
    ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, 1)).unwrap();
    ks.clear().unwrap();
    assert!(ks.is_empty().unwrap() && sorted(&ks).is_empty());
    assert_eq!(ks.get(key(7)).unwrap(), None);
    ks.clear().unwrap();
    ks.insert(key(7), "new").unwrap();
    assert_eq!(sorted(&ks), [(key(7).into_bytes(), b"new".to_vec())]);
}

pub fn an_iterator_shows_the_snapshot_of_its_creation(fixture: &Fixture) {
    let (db, ks, all) = filled(fixture, 100);
    let (mut iter, mut keys) = (ks.iter().unwrap(), ks.keys().unwrap());
    let untouched = ks.iter().unwrap();
    let mut shown = pairs(iter.by_ref().take(10));
    let mut shown_keys = keys.by_ref().take(10).count();
    for index in 0..100 {
        match index % 3 {
            0 => ks.remove(key(index)).unwrap(),
            1 => ks.insert(key(index), "changed").unwrap(),
            _ => ks.insert(format!("{}-new", key(index)), "x").unwrap(),
        }
        db.pump().unwrap();
    }
    shown.extend(pairs(iter));
    shown.sort();
    assert_eq!(shown, all);
    shown_keys += keys.count();
    assert_eq!(shown_keys, all.len());
    let mut shown = pairs(untouched);
    shown.sort();
    assert_eq!(shown, all, "made before the changes, used after them");
}

pub fn a_compaction_changes_the_order_of_the_log_and_nothing_else(fixture: &Fixture) {
    let (db, ks, mut all) = filled(fixture, 400);
    let snapshot = db.snapshot().unwrap().keyspace("ranges").unwrap();
    let shown = all.clone();
    for (index, (key, value)) in all.iter_mut().enumerate().step_by(7) {
        let len = if index % 3 == 0 { fixture.setting.blob_threshold() + 1 } else { index % 90 };
        *value = bytes(len, index as u64);
        ks.insert(&*key, &*value).unwrap();
    }
    ks.remove(&all.pop().unwrap().0).unwrap();
    let first = ks.compact().unwrap();
    if fixture.subject.is_sorted_by_compaction() {
        assert_eq!(first.rewritten_pairs + first.skipped_pairs, all.len() as u64);
        assert!(
            first.rewritten_pairs > all.len() as u64 / 2
                && first.rewritten_bytes > 30 * first.rewritten_pairs,
            "{first:?}"
        );
    } else {
        assert_eq!(
            (first.rewritten_pairs, first.rewritten_bytes, first.skipped_pairs),
            (0, 0, 0),
            "there is no order to bring them into"
        );
    }
    let second = ks.compact().unwrap();
    assert!(second.rewritten_pairs <= first.rewritten_pairs / 2, "{first:?}, then {second:?}");
    assert_eq!(sorted(&ks), all);
    let mut still_shown = pairs(snapshot.iter().unwrap());
    still_shown.sort();
    assert_eq!(still_shown, shown);
    drop((snapshot, ks));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "ranges")), all);
    db.verify(|finding| panic!("{finding}")).unwrap();
}
