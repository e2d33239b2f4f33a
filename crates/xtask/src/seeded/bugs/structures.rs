//! # Seeded bugs of shared structures: window, stripes, views, memtables and indexes

use super::{BugEffect, BugTest, ENGINE, SeededBug, SourceEdit, unit_test};

const PROGRESS: &str = "crates/engine/src/window/progress.rs";
const STRIPES: &str = "crates/engine/src/window/stripes.rs";
const WINDOW: &str = "crates/engine/src/window/mod.rs";
const VIEWS: &str = "crates/engine/src/views.rs";
const VISIBLE_TEST: BugTest =
    unit_test(ENGINE, "window::interleavings::each_commit_becomes_visible_and_every_wait_ends");
const STRIPES_TEST: BugTest = unit_test(ENGINE, "window::interleavings::stripes_exclude_and_every_wait_ends");
const SEGMENT_TEST: BugTest =
    unit_test(ENGINE, "window::interleavings::a_reservation_is_in_the_segment_of_its_offset");
const VIEW_TEST: BugTest = unit_test(
    ENGINE,
    "views::interleavings::a_view_finds_its_versions_while_commits_run_and_versions_are_freed",
);

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
