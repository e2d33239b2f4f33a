//! Advice for workloads with a known answer.

use super::*;
use crate::{Skewness, Spread};

fn load(change: impl FnOnce(&mut LoadStats)) -> LoadStats {
    let of = |mean: f64| Spread { mean, p50: 100, p99: 127 };
    let mut load = LoadStats::default();
    (load.samples, load.key_bytes, load.value_bytes) = (10_000, of(16.0), of(100.0));
    change(&mut load);
    load
}

fn ask(load: &LoadStats, keys: u64, memory: u64) -> Advice {
    advise(&Question { load, keys, memory })
}

#[test]
fn the_table_has_every_engine_and_every_cost() {
    let known = crate::engines();
    assert_eq!(costs().engines().iter().filter(|engine| known.contains(engine)).count(), known.len());
    let ordered = |engine: &str| costs().is_ordered(engine);
    for engine in known {
        let reads = [What::Get, What::Miss, What::Contains];
        let writes = [What::TenthOverwrites, What::HalfOverwrites, What::HalfNew, What::Append, What::Update];
        let others = [What::Batch, What::BatchNew, What::Durable, What::Device, What::Space];
        for what in reads.into_iter().chain(writes).chain(others) {
            assert!(costs().ns(engine, what, 100.0, Used::Memory) > 0.0, "{engine} {what:?}");
        }
        if ordered(engine) {
            for what in [What::Seek, What::Pair, What::PairBack] {
                assert!(costs().ns(engine, what, 100.0, Used::Memory) > 0.0, "{engine} {what:?}");
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
        load.scan_pairs = Spread { mean: 50.0, p50: 50, p99: 60 };
    });
    let advice = ask(&load, 1_000_000, 1 << 30);
    let out: Vec<&str> = advice.ruled_out.iter().map(|out| out.0).collect();
    assert_eq!(out, ["flat", "cedrus"]);
    assert!(advice.candidates.iter().all(|candidate| costs().is_ordered(candidate.engine)));
}

#[test]
fn long_scans_want_flex() {
    let load = load(|load| {
        (load.scans, load.inserts) = (900_000, 100_000);
        load.scan_pairs = Spread { mean: 100.0, p50: 100, p99: 127 };
    });
    assert_eq!(ask(&load, 1_000_000, 1 << 30).best().unwrap().engine, "flex");
}

#[test]
fn an_index_that_does_not_fit_rules_out() {
    let load = load(|load| load.gets_found = 1_000_000);
    let advice = ask(&load, 1_000_000_000, 1 << 30);
    assert!(advice.ruled_out.iter().any(|(engine, why)| *engine == "flat" && why.contains("index")));
}

#[test]
fn few_samples_say_nothing() {
    let load = load(|load| (load.samples, load.gets_found) = (3, 192));
    let advice = ask(&load, 1000, 1 << 30);
    assert_eq!((advice.sureness, advice.best()), (Sureness::No, None));
}

#[test]
fn a_guess_is_called_one() {
    let load = load(|load| {
        load.gets_found = 1_000_000;
        load.value_bytes.mean = 1e9;
    });
    assert_eq!(ask(&load, 1000, 1 << 50).sureness, Sureness::Outside);
}

#[test]
fn reasons_are_given_in_words() {
    let load = load(|load| (load.gets_found, load.inserts) = (500_000, 500_000));
    let advice = ask(&load, 1_000_000, 1 << 30);
    assert!(!advice.candidates[0].reasons.is_empty());
    assert!(advice.candidates.windows(2).all(|pair| pair[0].ns <= pair[1].ns));
}

#[test]
fn a_mix_costs_what_was_measured_for_it() {
    let cost = |what: What| match what {
        What::Get => 100.0,
        What::TenthOverwrites => 200.0,
        What::HalfOverwrites => 400.0,
        What::HalfNew => 800.0,
        _ => 0.0,
    };
    for (writes, mix) in [(0.1, 200.0), (0.3, 300.0), (0.5, 400.0)] {
        let single = Single::of(writes, cost);
        let sum = (1.0 - writes) * single.get + writes * single.overwrite;
        assert!((sum - mix).abs() < 1e-6, "{writes} {single:?}");
        assert!((1.0 - writes) * single.get + writes * single.new - 2.0 * mix < 1e-6, "{writes} {single:?}");
    }
    assert_eq!(Single::of(0.0, cost).get, 100.0);
}

#[test]
fn what_is_hot_fits_before_the_rest() {
    let hot = Skewness { zipf: 0.99, keys: 1e6, hottest: [0.5, 0.67, 0.83] };
    let load = load(|load| load.skew = Some(hot));
    assert!((hits(&load, 0.01) - 0.67).abs() < 1e-9);
    assert!(hits(&load, 0.05) > 0.67 && hits(&load, 0.05) < 0.83);
    assert_eq!(hits(&load, 2.0), 1.0);
    assert!(hits(&load, 0.0005) < 0.5);
}

#[test]
fn hot_keys_cost_what_was_measured_with_hot_keys() {
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
        let of = |used| costs().ns(engine, What::Get, 100.0, used);
        let nearly = |ns: f64, cost: f64, other: f64| (ns - cost).abs() <= 0.1 * (other - cost).abs();
        assert!(nearly(ns(&hot), of(Used::Hot), of(Used::Memory)), "{engine}");
        assert!(nearly(ns(&few), of(Used::Hot), of(Used::Memory)), "{engine}");
        assert!(nearly(ns(&alike), of(Used::Memory), of(Used::Hot)), "{engine}");
    }
}

#[test]
fn large_values_have_no_costs_of_their_own_with_hot_keys() {
    for engine in costs().engines() {
        let of = |used| costs().ns(engine, What::Get, 1e5, used);
        assert_eq!(of(Used::Hot), of(Used::Memory), "{engine}");
    }
}
