//! Output of the features `tracing` and `metrics`.

#![cfg(all(feature = "tracing", feature = "metrics"))]
#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use sheaf::{Database, Durability, KeyspaceOptions};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

/// Names of the spans and texts of the events that were published.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<BTreeSet<String>>>);

impl tracing::field::Visit for Told {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().insert(format!("{value:?}"));
        }
    }
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sheaf"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().insert(span.metadata().name().to_owned());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The last value of each metric, by its name and labels.
#[derive(Clone, Default)]
struct Last(Arc<Mutex<BTreeMap<String, f64>>>);

struct Cell(Last, String);

impl CounterFn for Cell {
    fn increment(&self, _: u64) {
        unreachable!("counters are set");
    }

    #[allow(clippy::cast_precision_loss)] // the values are small
    fn absolute(&self, value: u64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn set(&self, value: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl Last {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels = key.labels().filter(|label| label.key() != "database");
        let labels: Vec<&str> = labels.map(|label| label.value()).collect();
        Arc::new(Cell(self.clone(), [&[key.name()], &labels[..]].concat().join(" ")))
    }
}

impl Recorder for Last {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn spans_events_and_metrics_are_published() {
    let dir = std::env::temp_dir().join(format!("sheaf-operators-{}", std::process::id()));
    std::fs::remove_dir_all(&dir).ok();
    let (told, last) = (Told::default(), Last::default());
    tracing::subscriber::with_default(told.clone(), || {
        let db = Database::builder().durability(Durability::Sync).open(dir.join("db")).unwrap();
        let people = db.keyspace("people", KeyspaceOptions::default()).unwrap();
        people.insert("ada", "lovelace").unwrap();
        db.backup(dir.join("copy"), sheaf::BackupOptions::default()).unwrap();
        metrics::with_local_recorder(&last, || sheaf::metrics::publish(&db));
        drop(people);
        db.close().unwrap();
    });
    let told = told.0.lock().unwrap();
    for name in ["open", "opened", "sync round", "backup"] {
        assert!(told.contains(name), "{name}: {told:?}");
    }
    let last = last.0.lock().unwrap();
    assert!(last["sheaf_commits"] >= 2.0 && last["sheaf_commits"] == last["sheaf_commits_durable"]);
    assert!(last["sheaf_memory_bytes index"] > 0.0 && last["sheaf_log_appended_bytes journal"] > 0.0);
    assert_eq!((last["sheaf_poisoned"], last["sheaf_stalls throttle"]), (0.0, 0.0));
    assert!(last.contains_key("sheaf_cache_bytes people"));
    let documented = include_str!("../src/metrics.rs");
    for name in last.keys().map(|name| name.split(' ').next().unwrap()) {
        assert!(documented.contains(&format!("`{name}`")), "{name} is in no list");
    }
    std::fs::remove_dir_all(&dir).ok();
}
