//! # Queues, stacks and sliding windows: a constant number of keys, with changing names

use std::cell::RefCell;
use std::time::Instant;

use sheaf::Keyspace;

use super::{MIN_STEADY_RATE, PERIODS, SHORT_RUN_SLACK, SteadyLoad, fill, key, report_last_period};
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase, ORDERED_ENGINES, RunSize};
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

/// Returns a load with [`DEPTH`] pairs.
fn load<'l>(
    context: &CaseContext,
    name: &'l str,
    step: &'l dyn Fn(&Keyspace, u64) -> sheaf::Result<()>,
) -> SteadyLoad<'l> {
    SteadyLoad { name, seconds: context.size(6, 60), fill: &|data| fill(data, 0..DEPTH, VALUE), step }
}

/// Inserts at the tail, and finds and removes the first key.
fn queue(context: &CaseContext) -> CaseResult {
    let firsts = RefCell::new(Latencies::default());
    let take = |data: &Keyspace, number: u64| {
        data.insert(key(DEPTH + number), [1; VALUE])?;
        let began = Instant::now();
        let first = data.first()?;
        if number.is_multiple_of(16) {
            firsts.borrow_mut().add(began.elapsed());
        }
        let (found, _) = first.expect("a queue that is never empty");
        assert_eq!(&found[..], &key(number)[..], "the oldest key is taken");
        data.remove(&found)
    };
    let (queue, counted) = load(context, "take", &take).run(context)?;
    report_last_period(context, "take", &counted, MIN_POPS_PER_SECOND);
    if context.form != RunSize::Long {
        let rates = counted.rates(PERIODS as usize);
        let steadiness = rates[rates.len() - 1] / rates[0].max(1.0);
        FieldFigure::new("take: last period / first", steadiness, "x")
            .at_least(MIN_STEADY_RATE)
            .slack(2.0)
            .report();
    }
    let p99 = FieldFigure::new("first(): p99", firsts.borrow().quantile(0.99), "us");
    p99.at_most(50.0).slack(SHORT_RUN_SLACK).report();
    Ok(queue.close()?)
}

/// Pushes two keys and pops two by `last`.
fn stack(context: &CaseContext) -> CaseResult {
    let push_and_pop = |data: &Keyspace, number: u64| {
        let depth = DEPTH + number % 2;
        data.insert(key(depth), [1; VALUE])?;
        let (found, _) = data.last()?.expect("a stack that is never empty");
        if number % 2 == 1 {
            data.remove(&found)?;
            data.remove(key(DEPTH))?;
        }
        Ok(())
    };
    let (stack, counted) = load(context, "push and pop", &push_and_pop).run(context)?;
    report_last_period(context, "push and pop", &counted, MIN_POPS_PER_SECOND);
    Ok(stack.close()?)
}

/// Inserts the newest key, removes the oldest by its name, and reads ten keys in the middle.
fn sliding_window(context: &CaseContext) -> CaseResult {
    let slide = |data: &Keyspace, number: u64| {
        data.insert(key(DEPTH + number), [1; VALUE])?;
        data.remove(key(number))?;
        if number.is_multiple_of(10) {
            let middle = key(number + DEPTH / 2);
            let seen = data.range(&middle[..]..)?.take(10).count();
            assert_eq!(seen, 10, "the window has keys behind its middle");
        }
        Ok(())
    };
    let (window, _) = load(context, "slide", &slide).run(context)?;
    Ok(window.close()?)
}
