//! # Queues, stacks and sliding windows: a constant number of keys, with changing names

use std::time::Instant;

use super::{MIN_STEADY_RATE, PERIODS, SHORT_RUN_SLACK, fill, key, report_last_period, run_steady};
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase, ORDERED_ENGINES};
use crate::figure::FieldFigure;
use crate::machine::Latencies;

/// Keys in a queue or window at any time.
const DEPTH: u64 = 1_000;
/// Minimum number of removals per second of a queue.
const MIN_POPS_PER_SECOND: f64 = 30_000.0;
/// Bytes of a value.
const VALUE: usize = 100;

pub(super) fn cases() -> Vec<FieldCase> {
    let case = |name, run| FieldCase { name, engines: ORDERED_ENGINES, short: &[], deadline_s: 180, run };
    vec![
        FieldCase { short: &["flex", "kreon", "delsm"], ..case("queue", queue) },
        case("stack", stack),
        case("sliding-window", sliding_window),
    ]
}

/// Inserts at the tail, and finds and removes the first key.
fn queue(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    fill(&data, 0..DEPTH, VALUE)?;
    let mut firsts = Latencies::default();
    let counted = run_steady("take", context.size(6, 60), |number| {
        data.insert(key(DEPTH + number), [1; VALUE])?;
        let began = Instant::now();
        let first = data.first()?;
        if number % 16 == 0 {
            firsts.add(began.elapsed());
        }
        let (found, _) = first.expect("a queue that is never empty");
        assert_eq!(&found[..], &key(number)[..], "the oldest key is taken");
        data.remove(&found)
    })?;
    report_last_period("take", &counted, MIN_POPS_PER_SECOND);
    let rates = counted.rates(PERIODS as usize);
    let steadiness = rates[rates.len() - 1] / rates[0].max(1.0);
    FieldFigure::new("take: last period / first", steadiness, "x")
        .at_least(MIN_STEADY_RATE)
        .slack(2.0)
        .report();
    let p99 = FieldFigure::new("first(): p99", firsts.quantile(0.99), "us");
    p99.at_most(50.0).slack(SHORT_RUN_SLACK).report();
    drop(data);
    Ok(db.close()?)
}

/// Pushes two keys and pops two by `last`.
fn stack(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    fill(&data, 0..DEPTH, VALUE)?;
    let counted = run_steady("push and pop", context.size(6, 60), |number| {
        let depth = DEPTH + number % 2;
        data.insert(key(depth), [1; VALUE])?;
        let (found, _) = data.last()?.expect("a stack that is never empty");
        if number % 2 == 1 {
            data.remove(&found)?;
            data.remove(key(DEPTH))?;
        }
        Ok(())
    })?;
    report_last_period("push and pop", &counted, MIN_POPS_PER_SECOND);
    drop(data);
    Ok(db.close()?)
}

/// Inserts the newest key, removes the oldest by its name, and reads ten keys in the middle.
fn sliding_window(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    fill(&data, 0..DEPTH, VALUE)?;
    run_steady("slide", context.size(6, 60), |number| {
        data.insert(key(DEPTH + number), [1; VALUE])?;
        data.remove(key(number))?;
        if number % 10 == 0 {
            let middle = key(number + DEPTH / 2);
            let seen = data.range(&middle[..]..)?.take(10).count();
            assert_eq!(seen, 10, "the window has keys behind its middle");
        }
        Ok(())
    })?;
    drop(data);
    Ok(db.close()?)
}
