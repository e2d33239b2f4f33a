//! # The table of seeded bugs
//!
//! All are in the code of the commit window or in structures that several commits change at the
//! same time (decisions/0027). W1 to W13 are its rules, W25 to W40 its scenarios (docs/commit.md).

/// A bug, and the test that must find it.
#[derive(Debug)]
pub(super) struct Bug {
    /// Plain English, unique.
    pub(super) name: &'static str,
    /// The rules and scenarios that it breaks.
    pub(super) breaks: &'static str,
    /// Path from the root.
    pub(super) file: &'static str,
    pub(super) edits: &'static [Edit],
    pub(super) effect: Effect,
    pub(super) test: Test,
}

/// Replaces a text that occurs once in the file.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) find: &'static str,
    pub(super) replace: &'static str,
}

/// How the test ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Failure,
    /// A wait without end. Under the scheduler this is a failure, since it reports a deadlock.
    Hang,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    /// With `--cfg shuttle`.
    pub(super) is_shuttle: bool,
    pub(super) package: &'static str,
    /// The integration test; `None` for the unit tests.
    pub(super) target: Option<&'static str>,
    /// The full name.
    pub(super) name: &'static str,
    /// The only engine, for a test that runs on each.
    pub(super) engine: Option<&'static str>,
}

impl Test {
    /// Returns the package and the name, for a line of output.
    pub(super) fn show(&self) -> String {
        let engine = self.engine.map_or(String::new(), |engine| format!(" on {engine}"));
        format!("{} {}{engine}", self.package, self.name)
    }
}

/// Returns a unit test under the scheduler.
const fn unit(package: &'static str, name: &'static str) -> Test {
    Test { is_shuttle: true, package, target: None, name, engine: None }
}

/// Returns a test of the whole database under the scheduler.
const fn whole(engine: Option<&'static str>, name: &'static str) -> Test {
    let target = Some("interleavings");
    Test { is_shuttle: true, package: "sheaf-testkit", target, name, engine }
}

const PROGRESS: &str = "crates/base/src/window/progress.rs";
const STRIPES: &str = "crates/base/src/window/stripes.rs";
const WINDOW: &str = "crates/base/src/window/mod.rs";
const VIEWS: &str = "crates/base/src/views.rs";
const ORDER: &str = "crates/base/src/store/order.rs";

const BASE: &str = "sheaf-base";
const VISIBLE: Test = unit(BASE, "window::interleavings::each_commit_becomes_visible_and_every_wait_ends");
const EXCLUDE: Test = unit(BASE, "window::interleavings::stripes_exclude_and_nobody_waits_for_ever");
const IN_SEGMENT: Test = unit(BASE, "window::interleavings::a_reservation_is_in_the_segment_of_its_offset");
const VIEW: Test =
    unit(BASE, "views::interleavings::a_view_finds_its_versions_while_commits_run_and_versions_are_freed");
const LEARNED: Test = whole(Some("flat"), "committing::what_a_thread_committed_or_read_survives_a_kill");
const OPPOSITE: Test = whole(Some("flat"), "committing::batches_with_keys_in_opposite_orders_all_commit");
const DURABLE: Test =
    whole(Some("flat"), "committing::what_was_acknowledged_as_durable_survives_a_power_cut");

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "visible-is-the-newest-complete-commit",
        breaks: "W3, W26",
        file: PROGRESS,
        edits: &[Edit {
            find: "&& self.visible.compare_exchange(seq.0 - 1, seq.0, Ordering::SeqCst, Ordering::Relaxed).is_ok();",
            replace: "&& self.visible.fetch_max(seq.0, Ordering::SeqCst) < seq.0;",
        }],
        effect: Effect::Failure,
        test: VISIBLE,
    },
    Bug {
        name: "the-ring-does-not-distinguish-its-laps",
        breaks: "W3, W26",
        file: PROGRESS,
        edits: &[Edit {
            find: "while self.complete[place(end + 1)].load(Ordering::SeqCst) == end + 1 {",
            replace: "while self.complete[place(end + 1)].load(Ordering::SeqCst) % PLACES as u64 == (end + 1) % PLACES as u64 {",
        }],
        effect: Effect::Failure,
        test: VISIBLE,
    },
    Bug {
        name: "a-place-of-the-ring-is-used-again-too-early",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[Edit { find: "self.wait(Seq(seq.0.saturating_sub(PLACES as u64)))?; // (I2)", replace: "" }],
        effect: Effect::Failure,
        test: unit(
            BASE,
            "window::interleavings::a_place_of_the_ring_is_used_again_when_its_commit_is_visible",
        ),
    },
    Bug {
        name: "a-commit-behind-a-hole-does-not-look-again",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[Edit {
            find: "        self.advance();\n        Ok(())",
            replace: "        if is_next {\n            self.advance();\n        }\n        Ok(())",
        }],
        effect: Effect::Failure,
        test: VISIBLE,
    },
    Bug {
        name: "a-waiting-commit-sleeps-without-a-second-look",
        breaks: "W3, W33",
        file: PROGRESS,
        edits: &[Edit {
            find: "word.sleep_unless(moved, is_over);",
            replace: "word.sleep_unless(moved, || { let _ = is_over; false });",
        }],
        effect: Effect::Failure,
        test: VISIBLE,
    },
    Bug {
        name: "a-failed-commit-wakes-no-waiting-thread",
        breaks: "W9, W34",
        file: PROGRESS,
        edits: &[Edit {
            find: "self.failed.fetch_min(seq.0, Ordering::SeqCst);\n        self.moved.wake_all();",
            replace: "self.failed.fetch_min(seq.0, Ordering::SeqCst);",
        }],
        effect: Effect::Failure,
        test: unit(BASE, "window::interleavings::a_failed_commit_ends_every_wait_for_later_ones"),
    },
    Bug {
        name: "a-stripe-is-taken-by-a-plain-store",
        breaks: "W2, W29",
        file: STRIPES,
        edits: &[Edit {
            find: "|| word.compare_exchange(seen, seen | HELD, Ordering::SeqCst, Ordering::Relaxed).is_err()",
            replace: "|| { word.store(seen | HELD, Ordering::SeqCst); false }",
        }],
        effect: Effect::Failure,
        test: EXCLUDE,
    },
    Bug {
        name: "a-released-stripe-wakes-no-waiting-thread",
        breaks: "W2, W33",
        file: STRIPES,
        edits: &[Edit {
            find: "            self.stripes.released.of(u64::from(*stripe)).wake();\n",
            replace: "",
        }],
        effect: Effect::Hang,
        test: Test {
            is_shuttle: false,
            ..unit(BASE, "window::stripes::tests::a_thread_alone_waits_for_commits_and_keeps_them_out")
        },
    },
    Bug {
        name: "a-commit-reads-the-gate-before-it-holds-its-stripes",
        breaks: "W8, W11, W38",
        file: STRIPES,
        edits: &[
            Edit {
                find: "            list.iter().for_each(|stripe| self.take(*stripe));",
                replace: "            let is_closed = self.is_closed.load(Ordering::SeqCst);\n            list.iter().for_each(|stripe| self.take(*stripe));",
            },
            Edit {
                find: "if !self.is_closed.load(Ordering::SeqCst) {\n                return held;",
                replace: "if !is_closed {\n                return held;",
            },
        ],
        effect: Effect::Failure,
        test: EXCLUDE,
    },
    Bug {
        name: "a-thread-alone-does-not-wait-for-held-stripes",
        breaks: "W8, W11",
        file: STRIPES,
        edits: &[Edit {
            find: "(0..STRIPES).for_each(|stripe| self.wait_released(stripe));",
            replace: "(0..0).for_each(|stripe| self.wait_released(stripe));",
        }],
        effect: Effect::Failure,
        test: EXCLUDE,
    },
    Bug {
        name: "a-commit-reserves-in-a-closed-window",
        breaks: "W1",
        file: WINDOW,
        edits: &[Edit {
            find: "            if before.is_closed() {\n                return None;\n            }\n",
            replace: "",
        }],
        effect: Effect::Failure,
        test: unit(BASE, "window::interleavings::a_closed_window_gives_each_seq_once"),
    },
    Bug {
        name: "a-commit-reserves-with-the-segments-of-an-older-word",
        breaks: "W1, W30",
        file: WINDOW,
        edits: &[Edit { find: "if !std::ptr::eq(shape, self.shape.load(guard)) {", replace: "if false {" }],
        effect: Effect::Failure,
        test: IN_SEGMENT,
    },
    Bug {
        name: "the-window-opens-before-its-segments-are-published",
        breaks: "W1, W30",
        file: WINDOW,
        edits: &[Edit {
            find: "            self.window.shape.replace(&guard, |_| shape);\n",
            replace: "            let closed = if self.ends { CLOSED } else { 0 };\n            self.window.word.store(self.word.0 | closed, Ordering::SeqCst);\n            self.window.shape.replace(&guard, |_| shape);\n            return;\n",
        }],
        effect: Effect::Failure,
        test: IN_SEGMENT,
    },
    Bug {
        name: "the-end-of-another-segment-is-read",
        breaks: "W6, W30",
        file: WINDOW,
        edits: &[Edit { find: "if word.generation() != shape.generation {", replace: "if false {" }],
        effect: Effect::Failure,
        test: unit(BASE, "window::interleavings::the_end_of_a_segment_is_never_that_of_another_segment"),
    },
    Bug {
        name: "a-view-does-not-wait-for-commits-that-missed-it",
        breaks: "W10, W27, W35",
        file: VIEWS,
        edits: &[Edit { find: "if progress.is_seen(reserved(), visible) {", replace: "if true {" }],
        effect: Effect::Failure,
        test: VIEW,
    },
    Bug {
        name: "a-view-reads-the-last-reserved-seq-before-it-registers",
        breaks: "W10, W35",
        file: VIEWS,
        edits: &[
            Edit {
                find: "        let visible = progress.visible();\n        let Some(slot)",
                replace: "        let visible = progress.visible();\n        let last = reserved();\n        let Some(slot)",
            },
            Edit {
                find: "if progress.is_seen(reserved(), visible) {",
                replace: "if progress.is_seen(last, visible) {",
            },
        ],
        effect: Effect::Failure,
        test: VIEW,
    },
    Bug {
        name: "a-view-registers-an-older-state-than-it-reads",
        breaks: "W10, W35",
        file: VIEWS,
        edits: &[Edit {
            find: "self.at(slot).store(encode(seq), Ordering::Release);",
            replace: "self.at(slot).store(encode(visible), Ordering::Release);",
        }],
        effect: Effect::Failure,
        test: VIEW,
    },
    Bug {
        name: "two-writers-change-one-leaf-of-a-memtable",
        breaks: "W2, parallel apply",
        file: "crates/base/src/memtable/order.rs",
        edits: &[Edit {
            find: "        locked.is_ok()\n",
            replace: "        let _ = locked;\n        true\n",
        }],
        effect: Effect::Failure,
        test: unit(
            BASE,
            "memtable::interleavings::what_two_writers_add_is_found_beside_the_split_of_the_only_leaf",
        ),
    },
    Bug {
        name: "a-slot-of-the-hash-index-is-set-by-a-plain-store",
        breaks: "W7, parallel apply",
        file: "crates/engines/flat/src/hash/table.rs",
        edits: &[Edit {
            find: "match self.0[slot].compare_exchange(before, now, Ordering::SeqCst, Ordering::Relaxed) {",
            replace: "self.0[slot].store(now, Ordering::SeqCst);\n            match Ok::<u64, u64>(now) {",
        }],
        effect: Effect::Failure,
        test: unit("sheaf-flat", "hash::interleavings::changes_of_two_writers_outlive_splits"),
    },
    Bug {
        name: "an-entry-that-missed-the-copy-of-its-table-is-not-repeated",
        breaks: "parallel apply",
        file: "crates/engines/flat/src/hash/mod.rs",
        edits: &[Edit {
            find: "                if head.keeps_changes() {\n                    return;",
            replace: "                if true {\n                    return;",
        }],
        effect: Effect::Failure,
        test: unit("sheaf-flat", "hash::interleavings::changes_of_two_writers_outlive_splits"),
    },
    Bug {
        name: "a-key-is-added-to-a-leaf-without-its-latch",
        breaks: "parallel apply",
        file: "crates/engines/flat/src/ordered/mod.rs",
        edits: &[Edit {
            find: "            let Some(_latch) = leaf.latch() else { continue };\n",
            replace: "",
        }],
        effect: Effect::Failure,
        test: unit("sheaf-flat", "ordered::interleavings::changes_of_two_writers_outlive_splits"),
    },
    Bug {
        name: "a-commit-returns-before-it-is-visible",
        breaks: "W3, W25",
        file: ORDER,
        edits: &[Edit { find: "self.progress.wait(upto)?;", replace: "let _ = upto;" }],
        effect: Effect::Failure,
        test: LEARNED,
    },
    Bug {
        name: "a-read-of-a-missing-key-does-not-wait",
        breaks: "W4, W26",
        file: ORDER,
        edits: &[Edit {
            find: "self.progress.wait(self.stripes.last(stripe_of(kept.id(), key)))",
            replace: "let _ = (kept, key);\n        Ok(())",
        }],
        effect: Effect::Failure,
        test: whole(Some("flat"), "committing::a_key_that_a_thread_did_not_find_stays_missing_after_a_kill"),
    },
    Bug {
        name: "a-read-of-a-found-key-does-not-wait",
        breaks: "W4, W26",
        file: "crates/base/src/ground.rs",
        edits: &[Edit { find: "self.progress.wait(seq)\n", replace: "let _ = seq;\n        Ok(())\n" }],
        effect: Effect::Failure,
        test: LEARNED,
    },
    Bug {
        name: "stripes-are-taken-in-the-order-of-the-batch",
        breaks: "W2, W28",
        file: ORDER,
        edits: &[Edit {
            find: "        stripes.sort_unstable();\n        stripes.dedup();",
            replace: "        let mut seen = std::collections::BTreeSet::new();\n        stripes.retain(|stripe| seen.insert(*stripe));",
        }],
        effect: Effect::Failure,
        test: OPPOSITE,
    },
    Bug {
        name: "a-batch-takes-a-stripe-twice",
        breaks: "W2, W28",
        file: ORDER,
        edits: &[Edit {
            find: "        stripes.sort_unstable();\n        stripes.dedup();",
            replace: "        stripes.sort_unstable();",
        }],
        effect: Effect::Failure,
        test: OPPOSITE,
    },
    Bug {
        name: "a-commit-checks-its-keys-before-it-holds-their-stripes",
        breaks: "W2, W29",
        file: ORDER,
        edits: &[
            Edit {
                find: "            let held = self.stripes.hold(&stripes);",
                replace: "            let first = writes.iter().position(is_outdated);\n            let held = self.stripes.hold(&stripes);",
            },
            Edit {
                find: "if let Some(first) = writes.iter().position(is_outdated) {",
                replace: "if let Some(first) = first {",
            },
        ],
        effect: Effect::Failure,
        test: whole(Some("flat"), "writing::updates_of_three_threads_all_count"),
    },
    Bug {
        name: "a-commit-releases-its-stripes-before-it-is-applied",
        breaks: "W2, W29, W31",
        file: ORDER,
        edits: &[Edit {
            find: "            let seq = self.carry_out(placed, writes, encoded, &held)?;",
            replace: "            held.set_last(placed.seq());\n            drop(held);\n            let none = self.stripes.hold(&[]);\n            let seq = self.carry_out(placed, writes, encoded, &none)?;",
        }],
        effect: Effect::Failure,
        test: whole(Some("flat"), "writing::updates_of_three_threads_all_count"),
    },
    Bug {
        name: "a-commit-is-complete-before-it-is-applied",
        breaks: "W3, W27",
        file: ORDER,
        edits: &[
            Edit {
                find: "        whole.is_begun = true;\n        let views = self.view_slots.collect();",
                replace: "        whole.is_begun = true;\n        let completed = self.progress.complete(seq);\n        let views = self.view_slots.collect();",
            },
            Edit {
                find: "        self.note_unsynced();\n        let completed = self.progress.complete(seq);\n        whole.reached();\n        completed?;\n        Ok(seq)",
                replace: "        self.note_unsynced();\n        whole.reached();\n        completed?;\n        Ok(seq)",
            },
        ],
        effect: Effect::Failure,
        test: whole(None, "writing::views_show_whole_batches_in_order"),
    },
    Bug {
        name: "a-commit-reads-the-views-before-it-reserves",
        breaks: "W10, W35",
        file: ORDER,
        edits: &[
            Edit {
                find: "            let placed = match self.place(",
                replace: "            let views = self.view_slots.collect();\n            let placed = match self.place(",
            },
            Edit {
                find: "self.carry_out(placed, writes, encoded, &held)?",
                replace: "self.carry_out(placed, writes, encoded, &held, views)?",
            },
            Edit {
                find: "        held: &HeldStripes<'_>,\n",
                replace: "        held: &HeldStripes<'_>,\n        views: crate::views::Views,\n",
            },
            Edit {
                find: "        let views = self.view_slots.collect();\n        let mut counts",
                replace: "        let mut counts",
            },
        ],
        effect: Effect::Failure,
        test: whole(Some("flat"), "reading::a_view_repeats_what_it_showed"),
    },
    Bug {
        name: "a-failed-copy-ends-no-wait",
        breaks: "W9, W34",
        file: ORDER,
        edits: &[Edit { find: "        self.progress.fail(seq, reason);\n", replace: "" }],
        effect: Effect::Failure,
        test: whole(None, "committing::a_failed_copy_ends_every_commit_and_no_thread_waits_for_ever"),
    },
    Bug {
        name: "a-round-does-not-wait-for-its-commits",
        breaks: "W5, W6, W30, W37",
        file: "crates/base/src/store/round.rs",
        edits: &[Edit { find: "        self.progress.wait(seq)?;\n", replace: "" }],
        effect: Effect::Failure,
        test: DURABLE,
    },
    Bug {
        name: "a-round-marks-what-became-visible-during-its-syncs-as-durable",
        breaks: "W5, W40",
        file: "crates/base/src/store/round.rs",
        edits: &[Edit {
            find: "self.durable.store(seq.0, Ordering::Release);",
            replace: "self.durable.store(self.visible().0, Ordering::Release);",
        }],
        effect: Effect::Failure,
        test: DURABLE,
    },
    Bug {
        name: "the-end-of-a-log-is-published-before-its-frames-are-copied",
        breaks: "W6, W30",
        file: "crates/base/src/store/view.rs",
        edits: &[Edit { find: "self.progress.wait(reserved)?;", replace: "let _ = reserved;" }],
        effect: Effect::Failure,
        test: whole(Some("flat"), "committing::a_verification_during_commits_finds_no_damage"),
    },
    Bug {
        name: "garbage-collection-repoints-without-the-stripe",
        breaks: "W7, W31",
        file: "crates/base/src/store/clean.rs",
        edits: &[Edit {
            find: "            let _held = self.stripes.hold(&stripe);\n",
            replace: "            let _ = stripe;\n",
        }],
        effect: Effect::Failure,
        test: whole(Some("flat"), "committing::a_commit_supersedes_an_entry_that_garbage_collection_moves"),
    },
    Bug {
        name: "a-checkpoint-takes-its-position-while-commits-run",
        breaks: "W8, W32",
        file: "crates/base/src/store/checkpoint.rs",
        edits: &[Edit {
            find: "        let _alone = self.stripes.alone();\n        let order = self.order.lock();",
            replace: "        let order = self.order.lock();",
        }],
        effect: Effect::Failure,
        test: whole(Some("flex"), "committing::commits_during_a_checkpoint_survive_a_kill"),
    },
    Bug {
        name: "a-conversion-takes-its-view-while-commits-run",
        breaks: "W11, W38",
        file: "crates/base/src/store/view.rs",
        edits: &[Edit { find: "        let _alone = self.stripes.alone();\n", replace: "" }],
        effect: Effect::Failure,
        test: whole(Some("flat"), "committing::a_conversion_keeps_commits_behind_a_hole"),
    },
    Bug {
        name: "replay-keeps-the-record-that-it-reads-last",
        breaks: "W12, W36",
        file: "crates/engines/flat/src/engine.rs",
        edits: &[Edit {
            find: "let wins = newest.is_none_or(|newest| newest < record.seq);",
            replace: "let wins = newest.is_none_or(|newest| newest != record.seq);",
        }],
        effect: Effect::Failure,
        test: whole(None, "opening::threads_that_replay_meet_at_the_same_keys"),
    },
    Bug {
        name: "a-forked-child-takes-itself-for-its-parent",
        breaks: "W13, W39",
        file: "crates/base/src/fork.rs",
        edits: &[Edit {
            find: "    GENERATION.fetch_add(1, Ordering::Relaxed);\n",
            replace: "    GENERATION.fetch_add(0, Ordering::Relaxed);\n",
        }],
        effect: Effect::Failure,
        test: unit(BASE, "fork::tests::child_knows_it_is_one_and_parent_stays_parent"),
    },
];
