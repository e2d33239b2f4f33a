//! Sketches as wholes.

use super::*;
use crate::types::{KeyspaceId, StoreId};

/// A million calls of a known mix.
fn mixed() -> (Load, [u64; 4]) {
    restart();
    let (load, mut truth, mut state) = (Load::default(), [0; 4], 3u64);
    for _ in 0..1_000_000 {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let key = (state >> 44).to_be_bytes();
        let (which, call) = match (state >> 33) % 10 {
            0..5 => (0, Call::new(Kind::GetFound, &key).value(Some(100))),
            5..7 => (1, Call::new(Kind::GetMissing, &key)),
            7..9 => (2, Call::new(Kind::Insert, &key).value(Some(1000))),
            _ => (3, Call::new(Kind::Scan, &[])),
        };
        truth[which] += 1;
        if is_due() {
            let served = [Served::Read, Served::Read, Served::Write, Served::Scan][which];
            load.record(&call, Some((served, Duration::from_nanos(500))));
            if which == 3 {
                load.record_scan(50);
            }
        }
    }
    (load, truth)
}

fn near(got: u64, wanted: u64, within: f64) {
    assert!((got as f64 / wanted as f64 - 1.0).abs() < within, "{got}, {wanted}");
}

#[test]
fn what_is_sampled_stands_for_all() {
    let (load, truth) = mixed();
    let stats = load.stats(1 << 20);
    near(stats.operations(), 1_000_000, 0.05);
    let got = [stats.gets_found, stats.gets_missing, stats.inserts, stats.scans];
    got.iter().zip(truth).for_each(|(got, truth)| near(*got, truth, 0.1));
    near(got[0], truth[0], 0.05);
    assert!((stats.scan_pairs.mean - 50.0).abs() < 0.01, "{:?}", stats.scan_pairs);
    assert!((64..=127).contains(&stats.value_bytes.p50), "{:?}", stats.value_bytes);
    assert!((512..=1023).contains(&stats.value_bytes.p99), "{:?}", stats.value_bytes);
    assert_eq!(stats.key_bytes, Spread { mean: 8.0, p50: 11, p99: 14 }, "within a factor of two");
    assert!(stats.skew.unwrap().zipf < 0.3, "{:?}", stats.skew);
    assert!(stats.sequential_share < 0.1, "{}", stats.sequential_share);
    assert!(stats.reading.p50 <= Duration::from_nanos(500), "{:?}", stats.reading);
    assert!(stats.reading.p50 >= Duration::from_nanos(400), "{:?}", stats.reading);
}

#[test]
fn inserts_in_order_are_told_from_others() {
    for (up, wanted) in [(true, 1.0), (false, 0.0)] {
        let load = Load::default();
        for n in 0..1000u64 {
            let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let key = if up { n } else { mixed ^ (mixed >> 31) };
            load.record(&Call::new(Kind::Insert, &key.to_be_bytes()), None);
        }
        assert!((load.stats(0).sequential_share - wanted).abs() < 0.1, "{}", load.stats(0).sequential_share);
    }
}

#[test]
fn it_describes_the_recent_past() {
    let load = Load::default();
    for _ in 0..FULL {
        load.record(&Call::new(Kind::GetFound, b"old"), None);
    }
    for _ in 0..4 * FULL {
        load.record(&Call::new(Kind::Insert, b"new"), None);
    }
    let stats = load.stats(0);
    assert!(stats.samples < FULL, "{}", stats.samples);
    assert!(stats.gets_found * 10 < stats.inserts, "{} {}", stats.gets_found, stats.inserts);
}

#[test]
fn what_is_saved_is_what_was_there() {
    let (load, _) = mixed();
    let past = load.past().unwrap();
    let bytes = encode(StoreId(5), &[(KeyspaceId(7), past)]);
    assert!(bytes.len() < 8192, "{}", bytes.len());
    let mut found = decode(StoreId(5), &bytes).unwrap();
    let again = Load::from_past(found.remove(&KeyspaceId(7)).unwrap());
    assert_eq!(again.stats(1000), load.stats(1000));
    assert!(decode(StoreId(6), &bytes).is_none(), "of another database");
}

#[test]
fn damage_is_forgotten() {
    let (load, _) = mixed();
    let bytes = encode(StoreId(5), &[(KeyspaceId(7), load.past().unwrap())]);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(decode(StoreId(5), &damaged).is_none(), "byte {at}");
        assert!(decode(StoreId(5), &bytes[..at]).is_none(), "cut at {at}");
    }
}

#[test]
fn another_engine_has_other_latencies() {
    let (load, _) = mixed();
    let heir = load.heir().stats(0);
    assert_eq!(heir.reading, Latency::default());
    assert_eq!(heir.gets_found, load.stats(0).gets_found);
}

#[test]
fn what_is_forgotten_was_not_seen() {
    let (load, _) = mixed();
    load.record_stall(Duration::from_millis(3));
    load.forget();
    assert_eq!(load.stats(0), LoadStats::default());
    load.record(&Call::new(Kind::GetFound, b"key"), None);
    assert_eq!((load.stats(0).samples, load.stats(0).gets_found), (1, WEIGHT));
}

#[test]
fn what_is_not_used_takes_no_memory() {
    assert!(size_of::<Load>() <= 16, "{}", size_of::<Load>());
    let used =
        size_of::<[AtomicU64; cells::COUNT]>() + size_of::<Parts>() + cells::COUNT * 8 + 1024 + 4096 * 2;
    assert!(used <= 20 << 10, "{used}");
}

#[test]
fn threads_do_not_lose_calls() {
    let load = Load::default();
    #[allow(clippy::disallowed_methods, reason = "a test of what threads do")]
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20_000).for_each(|_| load.record(&Call::new(Kind::GetFound, b"key"), None)));
        }
    });
    // Each fold halves at FULL: 80,000 samples are 40,000 afterwards, about.
    let stats = load.stats(0);
    // A fold in the midst of a call may have halved one and not the other, or an odd number.
    assert!((stats.samples * WEIGHT).abs_diff(stats.gets_found) <= 4 * WEIGHT, "{stats:?}");
    assert!((80_000 - FULL..FULL).contains(&stats.samples), "{}", stats.samples);
}
