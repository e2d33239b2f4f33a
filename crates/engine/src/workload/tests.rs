//! Tests of whole recorders.

use super::*;
use sheaf_log::types::{KeyspaceId, StoreId};

/// Records a million calls of a known mix.
fn mixed() -> (WorkloadRecorder, [u64; 4]) {
    reseed();
    let (load, mut truth, mut state) = (WorkloadRecorder::default(), [0; 4], 3u64);
    for _ in 0..1_000_000 {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let key = (state >> 44).to_be_bytes();
        let (which, call) = match (state >> 33) % 10 {
            0..5 => (0, SampledCall::new(CallKind::GetFound, &key).value(Some(100))),
            5..7 => (1, SampledCall::new(CallKind::GetMissing, &key)),
            7..9 => (2, SampledCall::new(CallKind::Insert, &key).value(Some(1000))),
            _ => (3, SampledCall::new(CallKind::Scan, &[])),
        };
        truth[which] += 1;
        if is_sample_due() {
            let served = [LatencyKind::Read, LatencyKind::Read, LatencyKind::Write, LatencyKind::Scan][which];
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
fn samples_estimate_all_calls() {
    let (load, truth) = mixed();
    let stats = load.stats(1 << 20);
    near(stats.operations(), 1_000_000, 0.05);
    let got = [stats.gets_found, stats.gets_missing, stats.inserts, stats.scans];
    got.iter().zip(truth).for_each(|(got, truth)| near(*got, truth, 0.1));
    near(got[0], truth[0], 0.05);
    assert!((stats.scan_pairs.mean - 50.0).abs() < 0.01, "{:?}", stats.scan_pairs);
    assert!((64..=127).contains(&stats.value_bytes.p50), "{:?}", stats.value_bytes);
    assert!((512..=1023).contains(&stats.value_bytes.p99), "{:?}", stats.value_bytes);
    assert_eq!(stats.key_bytes, LengthStats { mean: 8.0, p50: 11, p99: 14 }, "within a factor of two");
    assert!(stats.skew.unwrap().zipf < 0.3, "{:?}", stats.skew);
    assert!(stats.sequential_share < 0.1, "{}", stats.sequential_share);
    assert!(stats.read_latency.p50 <= Duration::from_nanos(500), "{:?}", stats.read_latency);
    assert!(stats.read_latency.p50 >= Duration::from_nanos(400), "{:?}", stats.read_latency);
}

#[test]
fn inserts_in_order_are_told_from_others() {
    for (up, wanted) in [(true, 1.0), (false, 0.0)] {
        let load = WorkloadRecorder::default();
        for n in 0..1000u64 {
            let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let key = if up { n } else { mixed ^ (mixed >> 31) };
            load.record(&SampledCall::new(CallKind::Insert, &key.to_be_bytes()), None);
        }
        assert!((load.stats(0).sequential_share - wanted).abs() < 0.1, "{}", load.stats(0).sequential_share);
    }
}

#[test]
fn it_describes_the_recent_past() {
    let load = WorkloadRecorder::default();
    for _ in 0..HALVE_AFTER {
        load.record(&SampledCall::new(CallKind::GetFound, b"old"), None);
    }
    for _ in 0..4 * HALVE_AFTER {
        load.record(&SampledCall::new(CallKind::Insert, b"new"), None);
    }
    let stats = load.stats(0);
    assert!(stats.samples < HALVE_AFTER, "{}", stats.samples);
    assert!(stats.gets_found * 10 < stats.inserts, "{} {}", stats.gets_found, stats.inserts);
}

#[test]
fn encoding_and_decoding_round_trip() {
    let (load, _) = mixed();
    let past = load.history().unwrap();
    let bytes = encode(StoreId(5), &[(KeyspaceId(7), past)]);
    assert!(bytes.len() < 8192, "{}", bytes.len());
    let mut found = decode(StoreId(5), &bytes).unwrap();
    let again = WorkloadRecorder::from_history(found.remove(&KeyspaceId(7)).unwrap());
    assert_eq!(again.stats(1000), load.stats(1000));
    assert!(decode(StoreId(6), &bytes).is_none(), "of another database");
}

#[test]
fn a_damaged_file_is_ignored() {
    let (load, _) = mixed();
    let bytes = encode(StoreId(5), &[(KeyspaceId(7), load.history().unwrap())]);
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
    let heir = load.for_new_engine().stats(0);
    assert_eq!(heir.read_latency, Latency::default());
    assert_eq!(heir.gets_found, load.stats(0).gets_found);
}

#[test]
fn reset_clears_all_counts() {
    let (load, _) = mixed();
    load.record_stall(Duration::from_millis(3));
    load.reset();
    assert_eq!(load.stats(0), WorkloadStats::default());
    load.record(&SampledCall::new(CallKind::GetFound, b"key"), None);
    assert_eq!((load.stats(0).samples, load.stats(0).gets_found), (1, SAMPLE_WEIGHT));
}

#[test]
fn an_unused_recorder_allocates_nothing() {
    assert!(size_of::<WorkloadRecorder>() <= 16, "{}", size_of::<WorkloadRecorder>());
    let used = size_of::<[AtomicU64; counters::COUNT]>()
        + size_of::<RecorderParts>()
        + counters::COUNT * 8
        + 1024
        + 4096 * 2;
    assert!(used <= 20 << 10, "{used}");
}

#[test]
fn threads_do_not_lose_calls() {
    let load = WorkloadRecorder::default();
    #[allow(clippy::disallowed_methods, reason = "a test of concurrent threads")]
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..20_000).for_each(|_| load.record(&SampledCall::new(CallKind::GetFound, b"key"), None))
            });
        }
    });
    // Each fold halves the counts at `HALVE_AFTER`: about 40,000 of 80,000 samples remain.
    let stats = load.stats(0);
    // A fold during a call may have halved only one of the two counts, or an odd number.
    assert!((stats.samples * SAMPLE_WEIGHT).abs_diff(stats.gets_found) <= 4 * SAMPLE_WEIGHT, "{stats:?}");
    assert!((80_000 - HALVE_AFTER..HALVE_AFTER).contains(&stats.samples), "{}", stats.samples);
}
