//! # Many keyspaces, and keyspaces that are created and dropped

use std::time::Duration;

use sheaf::KeyspaceOptions;

use super::SHORT_RUN_SLACK;
use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::{disk_bytes, timed, wait_until};

/// Maximum bytes on disk of a keyspace with one pair.
const MAX_KEYSPACE_BYTES: f64 = 65_536.0;

pub(super) fn cases() -> Vec<FieldCase> {
    vec![
        FieldCase {
            name: "many-keyspaces",
            engines: ALL_ENGINES,
            short: &["kreon"],
            deadline_s: 300,
            run: many_keyspaces,
        },
        FieldCase {
            name: "dropped-keyspaces",
            engines: ALL_ENGINES,
            short: &["flex", "kreon"],
            deadline_s: 120,
            run: drop_and_create,
        },
    ]
}

/// Creates 1,000 keyspaces with one pair each.
fn many_keyspaces(context: &CaseContext) -> CaseResult {
    let count = context.size(1_000, 1_000).min(1_000);
    let name = |number: u64| format!("k{number}");
    let db = context.open(64)?;
    let empty = disk_bytes(&context.db()) as f64;
    let (ms, made) = timed(|| {
        (0..count)
            .try_for_each(|number| db.keyspace(&name(number), context.options())?.insert(b"key", b"value"))
    });
    made?;
    FieldFigure::new("create one keyspace and its pair", ms / count as f64, "ms").report();
    let (ms, closed) = timed(|| db.close());
    closed?;
    FieldFigure::new("close", ms / 1e3, "s").at_most(1.0).slack(SHORT_RUN_SLACK).report();
    let each = (disk_bytes(&context.db()) as f64 - empty).max(0.0) / count as f64;
    FieldFigure::new("disk space of a keyspace", each / 1024.0, "KiB")
        .at_most(MAX_KEYSPACE_BYTES / 1024.0)
        .report();
    let (ms, db) = timed(|| context.open(64));
    let db = db?;
    FieldFigure::new("open", ms / 1e3, "s").report();
    for number in 0..count {
        let data = db.open_keyspace(&name(number))?.ok_or("a keyspace is not there")?;
        assert_eq!(data.get(b"key")?.as_deref(), Some(&b"value"[..]));
    }
    let (ms, closed) = timed(|| db.close());
    closed?;
    FieldFigure::new("close again", ms / 1e3, "s").at_most(1.0).slack(SHORT_RUN_SLACK).report();
    Ok(())
}

/// Creates, fills and drops a keyspace repeatedly under the same name.
fn drop_and_create(context: &CaseContext) -> CaseResult {
    const ROUNDS: u64 = 20;
    let db = context.open(64)?;
    let dir = context.db();
    let mut peak = 0.0_f64;
    for round in 0..context.size(ROUNDS, ROUNDS) {
        let data = db.keyspace("passing", KeyspaceOptions::default().engine(&context.engine))?;
        let mut batch = db.batch();
        for number in 0..100_u64 {
            batch.insert(&data, (round * 100 + number).to_be_bytes(), [9; 64 << 10]);
        }
        batch.commit()?;
        assert!(db.drop_keyspace("passing")?, "the keyspace was there");
        peak = peak.max(disk_bytes(&dir) as f64);
    }
    FieldFigure::new("space at most while keyspaces come and go", peak / 1e6, "MB").report();
    let took = wait_until(Duration::from_secs(10), || disk_bytes(&dir) as f64 <= 16e6);
    let disk = disk_bytes(&dir) as f64 / 1e6;
    FieldFigure::new("space 10 s after the last was dropped", disk, "MB").at_most(16.0).report();
    FieldFigure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    Ok(db.close()?)
}
