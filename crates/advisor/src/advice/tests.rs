//! Advice for workloads with a known answer.

use super::*;
use sheaf::{LengthStats, Skewness};

fn load(change: impl FnOnce(&mut WorkloadStats)) -> WorkloadStats {
    let of = |mean: f64| LengthStats { mean, p50: 100, p99: 127 };
    let mut load = WorkloadStats::default();
    (load.samples, load.key_bytes, load.value_bytes) = (10_000, of(16.0), of(100.0));
    change(&mut load);
    load
}

fn ask(load: &WorkloadStats, keys: u64, memory: u64) -> Advice {
    advise(&AdviceRequest { workload: load, key_count: keys, memory_budget: memory })
}

#[test]
fn the_table_has_every_engine_and_every_cost() {
    let known = sheaf::engines();
    assert_eq!(cost_table().engines().iter().filter(|engine| known.contains(engine)).count(), known.len());
    let ordered = |engine: &str| cost_table().is_ordered(engine);
    for engine in known {
        let reads = [CostKind::Get, CostKind::Miss, CostKind::Contains];
        let writes = [
            CostKind::TenthOverwrites,
            CostKind::HalfOverwrites,
            CostKind::HalfNew,
            CostKind::Append,
            CostKind::Update,
        ];
        let others =
            [CostKind::Batch, CostKind::BatchNew, CostKind::Durable, CostKind::Device, CostKind::Space];
        for what in reads.into_iter().chain(writes).chain(others) {
            assert!(cost_table().ns(engine, what, 100.0, KeyLocality::Memory) > 0.0, "{engine} {what:?}");
        }
        if ordered(engine) {
            for what in [CostKind::Seek, CostKind::Pair, CostKind::PairBack] {
                assert!(cost_table().ns(engine, what, 100.0, KeyLocality::Memory) > 0.0, "{engine} {what:?}");
            }
        }
    }
    let lines = COSTS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        assert_eq!(line.split('\t').count(), 6, "{line}");
    }
}

#[test]
fn scans_rule_out_engines_without_order() {
    let load = load(|load| {
        (load.gets_found, load.scans) = (1_000_000, 500);
        load.scan_pairs = LengthStats { mean: 50.0, p50: 50, p99: 60 };
    });
    let advice = ask(&load, 1_000_000, 1 << 30);
    let out: Vec<&str> = advice.excluded.iter().map(|out| out.0).collect();
    assert_eq!(out, ["flat", "cedrus"]);
    assert!(advice.candidates.iter().all(|candidate| cost_table().is_ordered(candidate.engine)));
}

#[test]
fn long_scans_recommend_flex() {
    let load = load(|load| {
        (load.scans, load.inserts) = (900_000, 100_000);
        load.scan_pairs = LengthStats { mean: 100.0, p50: 100, p99: 127 };
    });
    assert_eq!(ask(&load, 1_000_000, 1 << 30).best().unwrap().engine, "flex");
}

#[test]
fn an_index_that_does_not_fit_rules_out() {
    let load = load(|load| load.gets_found = 1_000_000);
    let advice = ask(&load, 1_000_000_000, 1 << 30);
    assert!(advice.excluded.iter().any(|(engine, why)| *engine == "flat" && why.contains("index")));
}

#[test]
fn few_samples_give_no_recommendation() {
    let load = load(|load| (load.samples, load.gets_found) = (3, 192));
    let advice = ask(&load, 1000, 1 << 30);
    assert_eq!((advice.confidence, advice.best()), (Confidence::TooFewSamples, None));
}

#[test]
fn a_workload_outside_the_measurements_is_marked_extrapolated() {
    let load = load(|load| {
        load.gets_found = 1_000_000;
        load.value_bytes.mean = 1e9;
    });
    assert_eq!(ask(&load, 1000, 1 << 50).confidence, Confidence::Extrapolated);
}

#[test]
fn reasons_are_given_in_words() {
    let load = load(|load| (load.gets_found, load.inserts) = (500_000, 500_000));
    let advice = ask(&load, 1_000_000, 1 << 30);
    assert!(!advice.candidates[0].reasons.is_empty());
    assert!(advice.candidates.windows(2).all(|pair| pair[0].ns <= pair[1].ns));
}

#[test]
fn the_cost_of_a_mix_equals_its_measurement() {
    let cost = |what: CostKind| match what {
        CostKind::Get => 100.0,
        CostKind::TenthOverwrites => 200.0,
        CostKind::HalfOverwrites => 400.0,
        CostKind::HalfNew => 800.0,
        _ => 0.0,
    };
    for (writes, mix) in [(0.1, 200.0), (0.3, 300.0), (0.5, 400.0)] {
        let single = SingleOperationCosts::with_writes(writes, cost);
        let sum = (1.0 - writes) * single.get + writes * single.overwrite;
        assert!((sum - mix).abs() < 1e-6, "{writes} {single:?}");
        assert!((1.0 - writes) * single.get + writes * single.new - 2.0 * mix < 1e-6, "{writes} {single:?}");
    }
    assert_eq!(SingleOperationCosts::with_writes(0.0, cost).get, 100.0);
}

#[test]
fn a_small_cache_holds_the_hottest_keys_first() {
    let hot = Skewness { zipf: 0.99, keys: 1e6, hottest: [0.5, 0.67, 0.83] };
    let load = load(|load| load.skew = Some(hot));
    assert!((hit_rate(&load, 0.01) - 0.67).abs() < 1e-9);
    assert!(hit_rate(&load, 0.05) > 0.67 && hit_rate(&load, 0.05) < 0.83);
    assert_eq!(hit_rate(&load, 2.0), 1.0);
    assert!(hit_rate(&load, 0.0005) < 0.5);
}

#[test]
fn hot_keys_have_the_measured_cost_of_hot_keys() {
    let ask = |skew: Option<Skewness>, keys| {
        let load = load(|load| (load.gets_found, load.skew) = (1_000_000, skew));
        ask(&load, keys, 8 << 30)
    };
    let zipf = Skewness { zipf: 0.99, keys: 1e6, hottest: [0.5, 0.67, 0.83] };
    let [hot, few, alike] = [ask(Some(zipf), 1_000_000), ask(None, 20_000), ask(None, 10_000_000)];
    for candidate in &alike.candidates {
        let engine = candidate.engine;
        let ns = |advice: &Advice| {
            advice.candidates.iter().find(|other| other.engine == engine).expect("it is not ruled out").ns
        };
        let of = |used| cost_table().ns(engine, CostKind::Get, 100.0, used);
        let nearly = |ns: f64, cost: f64, other: f64| (ns - cost).abs() <= 0.1 * (other - cost).abs();
        assert!(nearly(ns(&hot), of(KeyLocality::Hot), of(KeyLocality::Memory)), "{engine}");
        assert!(nearly(ns(&few), of(KeyLocality::Hot), of(KeyLocality::Memory)), "{engine}");
        assert!(nearly(ns(&alike), of(KeyLocality::Memory), of(KeyLocality::Hot)), "{engine}");
    }
}

#[test]
fn large_values_have_no_costs_of_their_own_with_hot_keys() {
    for engine in cost_table().engines() {
        let of = |used| cost_table().ns(engine, CostKind::Get, 1e5, used);
        assert_eq!(of(KeyLocality::Hot), of(KeyLocality::Memory), "{engine}");
    }
}
