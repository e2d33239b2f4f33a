//! # The seeded bugs of merges
//!
//! P18 is a promise of docs/reliability/PROMISES.md.

use super::{BugEffect, SeededBug, SourceEdit, conformance_test, database_test};

const GROUPS: &str = "crates/sheaf/src/merge/groups.rs";
const BATCH: &str = "crates/sheaf/src/batch/commit.rs";
const BATCH_MERGE: &str = "crates/sheaf/src/batch/merge.rs";

pub(super) const BUGS: &[SeededBug] = &[
    SeededBug {
        name: "a-leader-loses-an-operand-of-its-group",
        breaks: "P18",
        file: GROUPS,
        edits: &[SourceEdit {
            find: "open.operands.iter().map(|operand| &operand[..]).collect();",
            replace: "open.operands.iter().take(1).map(|operand| &operand[..]).collect();",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "merging::merges_of_one_key_count_once"),
    },
    SeededBug {
        name: "a-merge-does-not-check-its-condition",
        breaks: "P18, R16",
        file: GROUPS,
        edits: &[SourceEdit {
            find: "        match store.commit(&mut writes) {",
            replace: "        match store.commit(&mut writes[1..]) {",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "merging::merges_of_one_key_count_once"),
    },
    SeededBug {
        name: "a-refused-operand-fails-another-call-of-its-group",
        breaks: "P18",
        file: GROUPS,
        edits: &[SourceEdit {
            find: "                Err(refusal) => refused.push((index, refusal)),",
            replace: "                Err(refusal) => refused.push((index.saturating_sub(1), refusal)),",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "merging::a_group_with_a_refused_operand"),
    },
    SeededBug {
        name: "a-batch-does-not-check-the-values-that-it-merges",
        breaks: "P18, R16",
        file: BATCH,
        edits: &[SourceEdit {
            find: "        writes.extend(conditions);",
            replace: "        writes.extend(conditions.take(0));",
        }],
        effect: BugEffect::Failure,
        test: database_test(Some("flat"), "merging::merges_of_batches_count_once"),
    },
    SeededBug {
        name: "a-merge-after-a-removed-range-reads-the-old-value",
        breaks: "P18",
        file: BATCH_MERGE,
        edits: &[SourceEdit {
            find: "            Some(BatchChange::Merge(_)) if !is_removed => {",
            replace: "            Some(BatchChange::Merge(_)) => {",
        }],
        effect: BugEffect::Failure,
        test: conformance_test(
            "conformance::flat::a_removed_range_between_merges_of_a_batch_removes_the_value",
        ),
    },
    SeededBug {
        name: "a-merge-loses-the-time-of-its-pair",
        breaks: "P18, P14",
        file: GROUPS,
        edits: &[SourceEdit {
            find: "        let mut writes = [condition, CommitWrite { expires, ..put }];",
            replace: "        let mut writes = [condition, CommitWrite { expires: Expires::Default, ..put }];",
        }],
        effect: BugEffect::Failure,
        test: conformance_test("conformance::flat::a_merge_keeps_the_time_of_its_pair"),
    },
];
