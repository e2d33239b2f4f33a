//! # The table of seeded bugs
//!
//! All are in the code of the commit window or in structures that several commits change at the
//! same time (decisions/0027), or in expiry; `merge_bugs` has those of merges. W1 to W13 are its
//! rules, W25 to W44 its scenarios (docs/commit.md). P14 is a promise of
//! docs/reliability/PROMISES.md.

/// A bug, and the test that must find it.
#[derive(Debug)]
pub(super) struct SeededBug {
    /// Unique name in plain English.
    pub(super) name: &'static str,
    /// Rules and scenarios that the bug breaks.
    pub(super) breaks: &'static str,
    /// Path from the root.
    pub(super) file: &'static str,
    pub(super) edits: &'static [SourceEdit],
    pub(super) effect: BugEffect,
    pub(super) test: BugTest,
}

/// Replaces a text that occurs once in the file.
#[derive(Debug)]
pub(super) struct SourceEdit {
    pub(super) find: &'static str,
    pub(super) replace: &'static str,
}

/// Effect on the test.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BugEffect {
    Failure,
    /// A wait without end. Under the scheduler this is a failure, since it reports a deadlock.
    Hang,
}

/// Test that finds a bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BugTest {
    /// True if the test is built with `--cfg shuttle`.
    pub(super) is_shuttle: bool,
    pub(super) package: &'static str,
    /// Name of the integration test; `None` for unit tests.
    pub(super) target: Option<&'static str>,
    /// Full name of the test.
    pub(super) name: &'static str,
    /// The only engine for a test that otherwise runs on each engine.
    pub(super) engine: Option<&'static str>,
}

impl BugTest {
    /// Returns the package and the name, for a line of output.
    pub(super) fn show(&self) -> String {
        let engine = self.engine.map_or(String::new(), |engine| format!(" on {engine}"));
        format!("{} {}{engine}", self.package, self.name)
    }
}

/// Returns a unit test under the scheduler.
const fn unit_test(package: &'static str, name: &'static str) -> BugTest {
    BugTest { is_shuttle: true, package, target: None, name, engine: None }
}

/// Returns a test of the whole database under the scheduler.
pub(super) const fn database_test(engine: Option<&'static str>, name: &'static str) -> BugTest {
    let target = Some("interleavings");
    BugTest { is_shuttle: true, package: "sheaf-testkit", target, name, engine }
}

/// Returns a test of the conformance suite, for `flat` and without the scheduler.
pub(super) const fn conformance_test(name: &'static str) -> BugTest {
    let target = Some("suites");
    BugTest { is_shuttle: false, package: "sheaf-testkit", target, name, engine: None }
}

const CHANGE_RETENTION: &str = "crates/store/src/changes/retention.rs";
const PROGRESS: &str = "crates/engine/src/window/progress.rs";
const STRIPES: &str = "crates/engine/src/window/stripes.rs";
const WINDOW: &str = "crates/engine/src/window/mod.rs";
const VIEWS: &str = "crates/engine/src/views.rs";
const COMMIT: &str = "crates/store/src/commit/mod.rs";
const EXECUTE: &str = "crates/store/src/commit/execute.rs";

const TRANSACTION: &str = "crates/store/src/commit/transaction.rs";
const RESERVE: &str = "crates/store/src/commit/reserve.rs";
const RECENT_KEYS: &str = "crates/engine/src/window/recent_keys.rs";

const ENGINE: &str = "sheaf-engine";
const VISIBLE_TEST: BugTest =
    unit_test(ENGINE, "window::interleavings::each_commit_becomes_visible_and_every_wait_ends");
const STRIPES_TEST: BugTest = unit_test(ENGINE, "window::interleavings::stripes_exclude_and_every_wait_ends");
const SEGMENT_TEST: BugTest =
    unit_test(ENGINE, "window::interleavings::a_reservation_is_in_the_segment_of_its_offset");
const VIEW_TEST: BugTest = unit_test(
    ENGINE,
    "views::interleavings::a_view_finds_its_versions_while_commits_run_and_versions_are_freed",
);
const READ_SURVIVES_TEST: BugTest =
    database_test(Some("flat"), "committing::committed_or_read_values_survive_a_kill");
const OPPOSITE_BATCHES_TEST: BugTest =
    database_test(Some("flat"), "committing::batches_with_keys_in_opposite_orders_all_commit");
const RANGE_TEST: BugTest =
    database_test(Some("flat"), "transactions::at_most_one_transaction_finds_a_keyspace_empty");
const RANGE_CHECK_TEST: BugTest = unit_test(ENGINE, "window::interleavings::a_range_check_misses_no_commit");
const DURABLE_TEST: BugTest =
    database_test(Some("flat"), "committing::acknowledged_durable_commits_survive_a_power_cut");

pub(super) const BUGS: &[SeededBug] = &[
    SeededBug {
        name: "visible-is-the-newest-complete-commit",
        breaks: "W3, W26",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "&& self.visible.compare_exchange(seq.0 - 1, seq.0, Ordering::SeqCst, Ordering::Relaxed).is_ok();",
            replace: "&& self.visible.fetch_max(seq.0, Ordering::SeqCst) < seq.0;",
        }],
        effect: BugEffect::Failure,
        test: VISIBLE_TEST,
    },
    SeededBug {
        name: "the-ring-does-not-distinguish-its-laps",
        breaks: "W3, W26",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "while self.complete[place(end + 1)].load(Ordering::SeqCst) == end + 1 {",
            replace: "while self.complete[place(end + 1)].load(Ordering::SeqCst) % PLACES as u64 == (end + 1) % PLACES as u64 {",
        }],
        effect: BugEffect::Failure,
        test: VISIBLE_TEST,
    },
    SeededBug {
        name: "a-place-of-the-ring-is-used-again-too-early",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "self.wait(Seq(seq.0.saturating_sub(PLACES as u64)))?; // (I2)",
            replace: "",
        }],
        effect: BugEffect::Failure,
        test: unit_test(
            ENGINE,
            "window::interleavings::a_place_of_the_ring_is_used_again_when_its_commit_is_visible",
        ),
    },
    SeededBug {
        name: "a-commit-behind-a-hole-does-not-look-again",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "        self.advance();\n        Ok(())",
            replace: "        if is_next {\n            self.advance();\n        }\n        Ok(())",
        }],
        effect: BugEffect::Failure,
        test: VISIBLE_TEST,
    },
    SeededBug {
        name: "a-waiting-commit-sleeps-without-a-second-look",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "word.sleep_unless(moved, is_over);",
            replace: "word.sleep_unless(moved, || { let _ = is_over; false });",
        }],
        effect: BugEffect::Failure,
        test: VISIBLE_TEST,
    },
    SeededBug {
        name: "a-failed-commit-wakes-no-waiting-thread",
        breaks: "W9, W34",
        file: PROGRESS,
        edits: &[SourceEdit {
            find: "self.failed.fetch_min(seq.0, Ordering::SeqCst);\n        self.waiters.wake_all();",
            replace: "self.failed.fetch_min(seq.0, Ordering::SeqCst);",
        }],
        effect: BugEffect::Failure,
        test: unit_test(ENGINE, "window::interleavings::a_failed_commit_ends_every_wait_for_later_ones"),
    },
    SeededBug {
        name: "a-stripe-is-taken-by-a-plain-store",
        breaks: "W2, W29",
        file: STRIPES,
        edits: &[SourceEdit {
            find: "|| word.compare_exchange(seen, seen | HELD, Ordering::SeqCst, Ordering::Relaxed).is_err()",
            replace: "|| { word.store(seen | HELD, Ordering::SeqCst); false }",
        }],
        effect: BugEffect::Failure,
        test: STRIPES_TEST,
    },
    SeededBug {
        name: "a-released-stripe-wakes-no-waiting-thread",
        breaks: "W2, W33",
        file: STRIPES,
        edits: &[SourceEdit {
            find: "            self.stripes.released.of(u64::from(*stripe)).wake();\n",
            replace: "",
        }],
        effect: BugEffect::Hang,
        test: BugTest {
            is_shuttle: false,
            ..unit_test(
                ENGINE,
                "window::stripes::tests::an_exclusive_thread_waits_for_commits_and_excludes_them",
            )
        },
    },
    SeededBug {
        name: "a-commit-reads-the-gate-before-it-holds-its-stripes",
        breaks: "W8, W11, W38",
        file: STRIPES,
        edits: &[
            SourceEdit {
                find: "            list.iter().for_each(|stripe| self.take(*stripe));",
                replace: "            let is_closed = self.is_closed.load(Ordering::SeqCst);\n            list.iter().for_each(|stripe| self.take(*stripe));",
            },
            SourceEdit {
                find: "if !self.is_closed.load(Ordering::SeqCst) {\n                return held;",
                replace: "if !is_closed {\n                return held;",
            },
        ],
        effect: BugEffect::Failure,
        test: STRIPES_TEST,
    },
    SeededBug {
        name: "a-thread-alone-does-not-wait-for-held-stripes",
        breaks: "W8, W11",
        file: STRIPES,
        edits: &[SourceEdit {
            find: "(0..STRIPES).for_each(|stripe| self.wait_released(stripe));",
            replace: "(0..0).for_each(|stripe| self.wait_released(stripe));",
        }],
        effect: BugEffect::Failure,
        test: STRIPES_TEST,
    },
    SeededBug {
        name: "a-commit-reserves-in-a-closed-window",
        breaks: "W1",
        file: WINDOW,
        edits: &[SourceEdit {
            find: "            if before.is_closed() {\n                return None;\n            }\n",
            replace: "",
        }],
        effect: BugEffect::Failure,
        test: unit_test(ENGINE, "window::interleavings::a_closed_window_gives_each_seq_once"),
    },
    SeededBug {
        name: "a-commit-reserves-with-the-segments-of-an-older-word",
        breaks: "W1, W30",
        file: WINDOW,
        edits: &[SourceEdit {
            find: "if !std::ptr::eq(shape, self.tail_set.load(guard)) {",
            replace: "if false {",
        }],
        effect: BugEffect::Failure,
        test: SEGMENT_TEST,
    },
    SeededBug {
        name: "the-window-opens-before-its-segments-are-published",
        breaks: "W1, W30",
        file: WINDOW,
        edits: &[SourceEdit {
            find: "            self.window.tail_set.replace(&guard, |_| shape);\n",
            replace: "            let closed = if self.ends { CLOSED } else { 0 };\n            self.window.word.store(self.word.0 | closed, Ordering::SeqCst);\n            self.window.shape.replace(&guard, |_| shape);\n            return;\n",
        }],
        effect: BugEffect::Failure,
        test: SEGMENT_TEST,
    },
    SeededBug {
        name: "the-end-of-another-segment-is-read",
        breaks: "W6, W30",
        file: WINDOW,
        edits: &[SourceEdit { find: "if word.generation() != shape.generation {", replace: "if false {" }],
        effect: BugEffect::Failure,
        test: unit_test(
            ENGINE,
            "window::interleavings::the_end_of_a_segment_is_never_that_of_another_segment",
        ),
    },
    SeededBug {
        name: "a-view-does-not-wait-for-commits-that-missed-it",
        breaks: "W10, W27, W35",
        file: VIEWS,
        edits: &[SourceEdit { find: "if progress.is_visible(reserved(), visible) {", replace: "if true {" }],
        effect: BugEffect::Failure,
        test: VIEW_TEST,
    },
    SeededBug {
        name: "a-view-reads-the-last-reserved-seq-before-it-registers",
        breaks: "W10, W35",
        file: VIEWS,
        edits: &[
            SourceEdit {
                find: "        let visible = progress.visible();\n        let Some(slot)",
                replace: "        let visible = progress.visible();\n        let last = reserved();\n        let Some(slot)",
            },
            SourceEdit {
                find: "if progress.is_visible(reserved(), visible) {",
                replace: "if progress.is_visible(last, visible) {",
            },
        ],
        effect: BugEffect::Failure,
        test: VIEW_TEST,
    },
    SeededBug {
        name: "a-view-registers-an-older-state-than-it-reads",
        breaks: "W10, W35",
        file: VIEWS,
        edits: &[SourceEdit {
            find: "self.at(slot).store(encode(seq), Ordering::Release);",
            replace: "self.at(slot).store(encode(visible), Ordering::Release);",
        }],
        effect: BugEffect::Failure,
        test: VIEW_TEST,
    },
    SeededBug {
        name: "two-writers-change-one-leaf-of-a-memtable",
        breaks: "W2, parallel apply",
        file: "crates/engine/src/memtable/sorted_keys/node.rs",
        edits: &[SourceEdit {
            find: "        locked.is_ok()\n",
            replace: "        let _ = locked;\n        true\n",
        }],
        effect: BugEffect::Failure,
        test: unit_test(
            ENGINE,
            "memtable::interleavings::keys_of_two_writers_are_found_during_the_split_of_the_only_leaf",
        ),
    },
    SeededBug {
        name: "a-slot-of-the-hash-index-is-set-by-a-plain-store",
        breaks: "W7, parallel apply",
        file: "crates/engines/flat/src/hash/table.rs",
        edits: &[SourceEdit {
            find: "match self.0[slot].compare_exchange(before, now, Ordering::SeqCst, Ordering::Relaxed) {",
            replace: "self.0[slot].store(now, Ordering::SeqCst);\n            match Ok::<u64, u64>(now) {",
        }],
        effect: BugEffect::Failure,
        test: unit_test("sheaf-flat", "hash::interleavings::changes_of_two_writers_outlive_splits"),
    },
    SeededBug {
        name: "an-entry-that-missed-the-copy-of-its-table-is-not-repeated",
        breaks: "parallel apply",
        file: "crates/engines/flat/src/hash/mod.rs",
        edits: &[SourceEdit {
            find: "                if head.confirm_change() {\n                    return;",
            replace: "                if true {\n                    return;",
        }],
        effect: BugEffect::Failure,
        test: unit_test("sheaf-flat", "hash::interleavings::changes_of_two_writers_outlive_splits"),
    },
    SeededBug {
        name: "a-key-is-added-to-a-leaf-without-its-latch",
        breaks: "parallel apply",
        file: "crates/engines/flat/src/ordered/mod.rs",
        edits: &[SourceEdit {
            find: "            let Some(_latch) = leaf.latch() else { continue };\n",
            replace: "",
        }],
        effect: BugEffect::Failure,
        test: unit_test("sheaf-flat", "ordered::interleavings::changes_of_two_writers_outlive_splits"),
    },
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
            find: "        let _alone = self.pipeline.stripes.lock_exclusive();\n        let order = self.pipeline.commit_state.lock();",
            replace: "        let order = self.pipeline.commit_state.lock();",
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
    SeededBug {
        name: "a-forked-child-takes-itself-for-its-parent",
        breaks: "W13, W39",
        file: "crates/platform/src/fork.rs",
        edits: &[SourceEdit {
            find: "    GENERATION.fetch_add(1, Ordering::Relaxed);\n",
            replace: "    GENERATION.fetch_add(0, Ordering::Relaxed);\n",
        }],
        effect: BugEffect::Failure,
        test: unit_test("sheaf-platform", "fork::tests::child_knows_it_is_one_and_parent_stays_parent"),
    },
];
