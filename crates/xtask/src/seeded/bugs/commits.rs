//! # Seeded bugs of the commit path, sync rounds, GC, checkpoints and replay

use super::{BugEffect, BugTest, COMMIT, SeededBug, SourceEdit, database_test};

const EXECUTE: &str = "crates/store/src/commit/execute.rs";
const READ_SURVIVES_TEST: BugTest =
    database_test(Some("flat"), "committing::committed_or_read_values_survive_a_kill");
const OPPOSITE_BATCHES_TEST: BugTest =
    database_test(Some("flat"), "committing::batches_with_keys_in_opposite_orders_all_commit");
const DURABLE_TEST: BugTest =
    database_test(Some("flat"), "committing::acknowledged_durable_commits_survive_a_power_cut");

pub(super) const BUGS: &[SeededBug] = &[
    SeededBug {
        name: "a-commit-returns-before-it-is-visible",
        breaks: "W3, W25",
        file: COMMIT,
        edits: &[SourceEdit { find: "self.pipeline.progress.wait(upto)?;", replace: "let _ = upto;" }],
        effect: BugEffect::Failure,
        test: READ_SURVIVES_TEST,
    },
    SeededBug {
        name: "a-read-of-a-missing-key-does-not-wait",
        breaks: "W4, W26",
        file: COMMIT,
        edits: &[SourceEdit {
            find: "self.pipeline.progress.wait(self.pipeline.stripes.last(stripe_of(keyspace.id(), key)))",
            replace: "let _ = (keyspace, key);\n        Ok(())",
        }],
        effect: BugEffect::Failure,
        test: database_test(
            Some("flat"),
            "committing::a_key_that_a_thread_did_not_find_stays_missing_after_a_kill",
        ),
    },
    SeededBug {
        name: "a-read-of-a-found-key-does-not-wait",
        breaks: "W4, W26",
        file: "crates/engine/src/context.rs",
        edits: &[SourceEdit {
            find: "self.commit_progress.wait(seq)\n",
            replace: "let _ = seq;\n        Ok(())\n",
        }],
        effect: BugEffect::Failure,
        test: READ_SURVIVES_TEST,
    },
    SeededBug {
        name: "stripes-are-taken-in-the-order-of-the-batch",
        breaks: "W2, W28",
        file: COMMIT,
        edits: &[SourceEdit {
            find: "        stripes.sort_unstable();\n        stripes.dedup();",
            replace: "        let mut seen = std::collections::BTreeSet::new();\n        stripes.retain(|stripe| seen.insert(*stripe));",
        }],
        effect: BugEffect::Failure,
        test: OPPOSITE_BATCHES_TEST,
    },
    SeededBug {
        name: "a-batch-takes-a-stripe-twice",
        breaks: "W2, W28",
        file: COMMIT,
        edits: &[SourceEdit {
            find: "        stripes.sort_unstable();\n        stripes.dedup();",
            replace: "        stripes.sort_unstable();",
        }],
        effect: BugEffect::Failure,
        test: OPPOSITE_BATCHES_TEST,
    },
    SeededBug {
        name: "a-commit-checks-its-keys-before-it-holds-their-stripes",
        breaks: "W2, W29",
        file: COMMIT,
        edits: &[
            SourceEdit {
                find: "            let held = match has_range {",
                replace: "            let first = writes.iter().position(|write| self.is_outdated(write));\n            let held = match has_range {",
            },
            SourceEdit {
                find: "if let Some(first) = writes.iter().position(|write| self.is_outdated(write)) {",
                replace: "if let Some(first) = first {",
            },
        ],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "writing::updates_of_three_threads_all_count"),
    },
    SeededBug {
        name: "a-commit-releases-its-stripes-before-it-is-applied",
        breaks: "W2, W29, W31",
        file: COMMIT,
        edits: &[SourceEdit {
            find: "            let seq = self.execute(placed, writes, encoded, &held)?;",
            replace: "            held.set_last(placed.seq());\n            drop(held);\n            let none = self.pipeline.stripes.lock(&[]);\n            let seq = self.execute(placed, writes, encoded, &none)?;",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "writing::updates_of_three_threads_all_count"),
    },
    SeededBug {
        name: "a-commit-is-complete-before-it-is-applied",
        breaks: "W3, W27",
        file: COMMIT,
        edits: &[
            SourceEdit {
                find: "        whole.is_applying = true;\n        let views = self.view_slots.collect();",
                replace: "        whole.is_applying = true;\n        let completed = self.pipeline.progress.complete(seq);\n        let views = self.view_slots.collect();",
            },
            SourceEdit {
                find: "        self.sync.note_unsynced(&*self.clock);\n        let completed = self.pipeline.progress.complete(seq);\n        whole.complete();\n        completed?;\n        self.changes.signal.wake_visible();\n        Ok(seq)",
                replace: "        self.sync.note_unsynced(&*self.clock);\n        whole.complete();\n        completed?;\n        self.changes.signal.wake_visible();\n        Ok(seq)",
            },
        ],
        effect: BugEffect::Failure,
        test: database_test(None, "writing::views_show_whole_batches_in_order"),
    },
    SeededBug {
        name: "a-commit-reads-the-views-before-it-reserves",
        breaks: "W10, W35",
        file: COMMIT,
        edits: &[
            SourceEdit {
                find: "            let placed = match self.reserve(",
                replace: "            let views = self.view_slots.collect();\n            let placed = match self.reserve(",
            },
            SourceEdit {
                find: "self.execute(placed, writes, encoded, &held)?",
                replace: "self.execute(placed, writes, encoded, &held, views)?",
            },
            SourceEdit {
                find: "        held: &StripesGuard<'_>,\n",
                replace: "        held: &StripesGuard<'_>,\n        views: sheaf_engine::views::Views,\n",
            },
            SourceEdit {
                find: "        let views = self.view_slots.collect();\n        let mut counts",
                replace: "        let mut counts",
            },
        ],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "reading::view_reads_are_repeatable"),
    },
    SeededBug {
        name: "a-failed-copy-ends-no-wait",
        breaks: "W9, W34",
        file: EXECUTE,
        edits: &[SourceEdit { find: "        self.pipeline.progress.fail(seq, cause);\n", replace: "" }],
        effect: BugEffect::Failure,
        test: database_test(None, "committing::a_failed_copy_fails_later_commits_and_blocks_no_thread"),
    },
    SeededBug {
        name: "a-round-does-not-wait-for-its-commits",
        breaks: "W5, W6, W30, W37",
        file: "crates/store/src/commit/group_commit.rs",
        edits: &[SourceEdit { find: "        self.pipeline.progress.wait(seq)?;\n", replace: "" }],
        effect: BugEffect::Failure,
        test: DURABLE_TEST,
    },
    SeededBug {
        name: "a-round-marks-what-became-visible-during-its-syncs-as-durable",
        breaks: "W5, W40",
        file: "crates/store/src/commit/group_commit.rs",
        edits: &[SourceEdit {
            find: "self.sync.mark_durable(seq);",
            replace: "self.sync.mark_durable(self.visible());",
        }],
        effect: BugEffect::Failure,
        test: DURABLE_TEST,
    },
    SeededBug {
        name: "the-end-of-a-log-is-published-before-its-frames-are-copied",
        breaks: "W6, W30",
        file: "crates/store/src/snapshot/view.rs",
        edits: &[SourceEdit {
            find: "self.pipeline.progress.wait(reserved)?;",
            replace: "let _ = reserved;",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "committing::a_verification_during_commits_finds_no_damage"),
    },
    SeededBug {
        name: "garbage-collection-repoints-without-the-stripe",
        breaks: "W7, W31",
        file: "crates/store/src/space/gc/survivors.rs",
        edits: &[SourceEdit {
            find: "            let _held = self.pipeline.stripes.lock(&stripe);\n",
            replace: "            let _ = stripe;\n",
        }],
        effect: BugEffect::Failure,
        test: database_test(
            Some("flat"),
            "committing::a_commit_supersedes_an_entry_that_garbage_collection_moves",
        ),
    },
    SeededBug {
        name: "a-checkpoint-takes-its-position-while-commits-run",
        breaks: "W8, W32",
        file: "crates/store/src/checkpoint.rs",
        edits: &[SourceEdit {
            find: "        let _alone = self.pipeline.stripes.lock_exclusive();\n        let commit_state = self.pipeline.commit_state.lock();",
            replace: "        let commit_state = self.pipeline.commit_state.lock();",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flex"), "committing::commits_during_a_checkpoint_survive_a_kill"),
    },
    SeededBug {
        name: "a-conversion-takes-its-view-while-commits-run",
        breaks: "W11, W38",
        file: "crates/store/src/snapshot/view.rs",
        edits: &[SourceEdit {
            find: "        let _alone = self.pipeline.stripes.lock_exclusive();\n",
            replace: "",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "committing::a_conversion_keeps_commits_behind_a_hole"),
    },
    SeededBug {
        name: "replay-keeps-the-record-that-it-reads-last",
        breaks: "W12, W36",
        file: "crates/engines/flat/src/engine.rs",
        edits: &[SourceEdit {
            find: "let wins = newest.is_none_or(|newest| newest < record.seq);",
            replace: "let wins = newest.is_none_or(|newest| newest != record.seq);",
        }],
        effect: BugEffect::Failure,
        test: database_test(None, "opening::parallel_replay_of_the_same_keys_is_correct"),
    },
];
