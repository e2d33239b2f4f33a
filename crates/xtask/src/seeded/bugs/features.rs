//! # Seeded bugs of transactions, expiry, the change feed and the removal of ranges

use super::{
    BugEffect, BugTest, COMMIT, ENGINE, SeededBug, SourceEdit, conformance_test, database_test, unit_test,
};

const CHANGE_RETENTION: &str = "crates/store/src/changes/retention.rs";
const TRANSACTION: &str = "crates/store/src/commit/transaction.rs";
const RESERVE: &str = "crates/store/src/commit/reserve.rs";
const RECENT_KEYS: &str = "crates/engine/src/window/recent_keys.rs";
const RANGE_TEST: BugTest =
    database_test(Some("flat"), "transactions::at_most_one_transaction_finds_a_keyspace_empty");
const RANGE_CHECK_TEST: BugTest = unit_test(ENGINE, "window::interleavings::a_range_check_misses_no_commit");

pub(super) const BUGS: &[SeededBug] = &[
    SeededBug {
        name: "a-transaction-takes-its-snapshot-before-it-registers",
        breaks: "W42",
        file: TRANSACTION,
        edits: &[SourceEdit {
            find: "        let mut reader = store.pipeline.recent_keys.register(&store.pipeline.progress);\n        let view = match store.view() {",
            replace: "        let view = store.view();\n        (0..200).for_each(|_| sheaf_platform::sync::thread::yield_now());\n        let mut reader = store.pipeline.recent_keys.register(&store.pipeline.progress);\n        let view = match view {",
        }],
        effect: BugEffect::Failure,
        test: RANGE_TEST,
    },
    SeededBug {
        name: "a-commit-records-its-keys-after-it-is-complete",
        breaks: "W42",
        file: COMMIT,
        edits: &[
            SourceEdit {
                find: "        if self.pipeline.recent_keys.has_readers() {",
                replace: "        let records = self.pipeline.recent_keys.has_readers();\n        if false {",
            },
            SourceEdit {
                find: "        let completed = self.pipeline.progress.complete(seq);\n        whole.complete();",
                replace: "        let completed = self.pipeline.progress.complete(seq);\n        whole.complete();\n        if records {\n            (0..200).for_each(|_| sheaf_platform::sync::thread::yield_now());\n            let keys = writes.iter().map(|write| (write.keyspace.id(), write.op.key));\n            self.pipeline.recent_keys.record(seq, keys, &self.context.memory);\n        }",
            },
        ],
        effect: BugEffect::Failure,
        test: RANGE_TEST,
    },
    SeededBug {
        name: "a-range-check-does-not-wait-for-commits",
        breaks: "W42",
        file: TRANSACTION,
        edits: &[SourceEdit { find: "        self.pipeline.progress.wait(last)?;\n", replace: "" }],
        effect: BugEffect::Failure,
        test: RANGE_TEST,
    },
    SeededBug {
        name: "a-transaction-reserves-without-its-range-check",
        breaks: "W42",
        file: RESERVE,
        edits: &[SourceEdit { find: "            && reads.ranges.is_empty()\n", replace: "" }],
        effect: BugEffect::Failure,
        test: RANGE_TEST,
    },
    SeededBug {
        name: "a-transaction-trusts-a-check-that-was-not-prepared",
        breaks: "R16, 13",
        file: TRANSACTION,
        edits: &[SourceEdit {
            find: "            Some(VersionCheck { is_prepared: false, .. }) => true,",
            replace: "            Some(VersionCheck { is_prepared: false, .. }) => false,",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "transactions::transactions_next_to_updates_all_count"),
    },
    SeededBug {
        name: "a-key-keeps-its-first-recorded-commit",
        breaks: "W42",
        file: RECENT_KEYS,
        edits: &[SourceEdit {
            find: "            Some(newest) => *newest = seq.max(*newest),",
            replace: "            Some(_) => {}",
        }],
        effect: BugEffect::Failure,
        test: RANGE_CHECK_TEST,
    },
    SeededBug {
        name: "a-removal-trusts-its-hint",
        breaks: "P14",
        file: "crates/store/src/maintenance/expiry.rs",
        edits: &[SourceEdit {
            find: "matches!(stored, Some(Some(time)) if time <= now)",
            replace: "(stored.is_some() || now.0 == 0)",
        }],
        effect: BugEffect::Failure,
        test: conformance_test("conformance::flat::a_pair_that_got_another_time_stays"),
    },
    SeededBug {
        name: "a-removal-does-not-expect-its-pair",
        breaks: "P14",
        file: "crates/store/src/maintenance/expiry.rs",
        edits: &[SourceEdit {
            find: "let expectations = due.iter().map(",
            replace: "let expectations = due.iter().take(0).map(",
        }],
        effect: BugEffect::Failure,
        test: conformance_test("conformance::flat::an_overwrite_next_to_the_removal_stays"),
    },
    SeededBug {
        name: "a-snapshot-reads-with-the-present-time",
        breaks: "P14",
        file: "crates/store/src/expiry/mod.rs",
        edits: &[SourceEdit {
            find: "        at.now.unwrap_or_else(|| self.clock.unix_millis())",
            replace: "        at.now.map_or_else(|| self.clock.unix_millis(), |_| self.clock.unix_millis())",
        }],
        effect: BugEffect::Failure,
        test: conformance_test(
            "conformance::flat::snapshots_and_transactions_decide_with_the_time_of_their_creation",
        ),
    },
    SeededBug {
        name: "a-put-writes-no-hint",
        breaks: "P14",
        file: "crates/store/src/expiry/commit.rs",
        edits: &[SourceEdit {
            find: "            let index = write.keyspace.expiry().and_then(KeyspaceExpiry::index);",
            replace: "            let index = write.keyspace.expiry().and_then(KeyspaceExpiry::index).filter(|_| false);",
        }],
        effect: BugEffect::Failure,
        test: conformance_test(
            "conformance::flat::the_background_removes_expired_pairs_and_frees_their_space",
        ),
    },
    SeededBug {
        name: "a-retained-segment-is-freed",
        breaks: "R19, W43",
        file: CHANGE_RETENTION,
        edits: &[SourceEdit {
            find: "            true => PendingFree::RetainedSlot(segment),",
            replace: "            true => PendingFree::Segment(log.id, segment),",
        }],
        effect: BugEffect::Failure,
        test: conformance_test("conformance::flat::gc_and_checkpoints_take_no_change_from_the_feed"),
    },
    SeededBug {
        name: "a-trim-does-not-raise-the-start-of-the-feed",
        breaks: "R19, W43",
        file: CHANGE_RETENTION,
        edits: &[SourceEdit {
            find: "        self.start = self.start.max(oldest.segment.last_seq);\n",
            replace: "",
        }],
        effect: BugEffect::Failure,
        test: conformance_test("conformance::flat::a_slow_consumer_is_too_old_and_can_start_again"),
    },
    SeededBug {
        name: "consumers-of-changes-are-woken-before-the-durable-mark",
        breaks: "the waits of the change feed",
        file: "crates/store/src/commit/group_commit.rs",
        edits: &[SourceEdit {
            find: "        self.sync.mark_durable(seq);\n        self.changes.signal.wake_durable();\n",
            replace: "        self.changes.signal.wake_durable();\n        self.sync.mark_durable(seq);\n",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "changes::a_consumer_of_durable_changes_is_woken"),
    },
    SeededBug {
        name: "the-removal-of-a-range-takes-one-stripe",
        breaks: "R20, W44",
        file: COMMIT,
        edits: &[SourceEdit {
            find: "                true => self.pipeline.stripes.lock_all(), // (R20)",
            replace: "                true => self.pipeline.stripes.lock(&stripes),",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flex"), "range_removal::a_swap_next_to_a_removal_of_its_range"),
    },
    SeededBug {
        name: "a-removed-range-hides-later-puts",
        breaks: "R20, W44",
        file: "crates/engine/src/memtable/memtables.rs",
        edits: &[SourceEdit {
            find: "                Some(version) if version.seq >= removed => return Some((memtable, version)),",
            replace: "                Some(version) if removed == Seq::ZERO => return Some((memtable, version)),",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("delsm"), "range_removal::puts_next_to_removals_of_their_range"),
    },
    SeededBug {
        name: "a-get-does-not-look-again-behind-a-range-tombstone",
        breaks: "R20, W44",
        file: "crates/engine/src/memtable/memtables.rs",
        edits: &[SourceEdit {
            find: "                return Ok(found);\n            }\n            waited = version.seq;",
            replace: "                return Ok(found);\n            }\n            return Ok(found);",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flex"), "range_removal::a_get_next_to_batches_that_replace_its_key"),
    },
    SeededBug {
        name: "a-removed-range-is-recorded-as-its-first-key",
        breaks: "R20, W44",
        file: TRANSACTION,
        edits: &[SourceEdit {
            find: "                Some((first, end)) => ChangedKey::Range(Bounds::between(first, end)),",
            replace: "                Some((first, _)) => ChangedKey::Key(first),",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flex"), "range_removal::a_transaction_next_to_a_removal_of_its_range"),
    },
];
