//! # The commit protocol as state machines, explored to the end
//!
//! Sheaf's commit path is a dozen rules about what may be written, synced, freed and acknowledged
//! when. Here they are small models, and a checker (stateright) walks *every* interleaving of
//! commits, sync rounds, cleaning, checkpoints, crashes, recoveries and crashes within recoveries,
//! within bounds. With every rule on nothing breaks (`tests/all_rules.rs`); with one rule off the
//! checker finds the scenario that the rule is there for (`tests/scenarios.rs`); what the models
//! found that the design had missed is in `tests/model_findings.rs`. No code of the store runs
//! here: this is what the code has to do, not proof that it does. Change a rule only with the
//! model.
//!
//! ## Picture
//! ```text
//!   order        two logs, seqs, sync rounds, failed syncs, ROOT, recovery     I1 I2 I3 I5 I7 I8 I9
//!   cleaning     one store log: survivors, tombstones, index checkpoints       I2 I3 I4 I6 I7
//!   conditional  the commit lock: compare and swap, applying, readers          I4 I6
//!   payload      staged payloads and the frames that name them                 I3 I6 I8
//!   page         in-place pages behind a journal                               I2 I3
//!   keyspace     drop and unlink                                               I3
//!   naming       segments that ROOT or a seal names                            I3 I8 I9
//!      |
//!   parallel commits (decisions/0027):
//!   window       reserve, copy, publish: two logs, rounds, seals, poison       I3 I4 I6 I8 I10
//!   stripes      conditions, batches and GC under the locks of keys            I4 I6 I10
//!   views        registration of views without a lock                          I4
//!   freezing     checkpoints, pinned states, published names                   I2 I6 I10
//!      |
//!   disk         page cache and platter: torn, failed sync, kill, power cut, eviction
//! ```
//!
//! ## Invariants
//! 1. A commit over several logs is there whole or not at all.
//! 2. What recovery finds is a prefix of the commit order.
//! 3. What W covered (every Sync acknowledgement and all before it) survives a power cut; what was
//!    visible (every Buffer acknowledgement) survives a kill. What a finished recovery showed
//!    survives both. After a failed sync a kill may take what W did not cover.
//! 4. No kill takes back a value that was read; each read is explained by the order.
//! 5. No number of a commit stands for two contents that are both valid.
//! 6. The index after recovery is the map at the recovered prefix, and points at live bytes of the
//!    right key and number: deleted keys stay deleted.
//! 7. Recovery may be interrupted anywhere, twice, and 1-6 hold after the last one.
//! 8. Damage is reported only if something rotted.
//! 9. Rot of what the disk itself says was durable is reported.
//! 10. No thread waits for ever, unless the thread that it waits for is never scheduled.
//!
//! ## How the protocol here differs from the first draft of its rules, and why it is sound
//! - **A commit is one step under one lock** (number, frames to the kernel, index, `visible`), so
//!   `logged`, `visible` and the last number are the same whenever the lock is free. R7 and R16 ask
//!   for less (applying outside the lock, in order, under stripes); `conditional` shows what goes
//!   wrong between the two. `order` still splits a commit over two logs into its two copies,
//!   because a kill, a sync or a power cut can come between them.
//! - **Recovery does not copy the tail** (R10) but makes sure it is on the platter where it is,
//!   then seals the old segments in ROOT at the ends of what was accepted; it needs no new block.
//!   The copy had two uses: to get what only the page cache has onto the platter, and to get stale
//!   frames out of the way. [`ReopenMethod`] does the first, seals and void numbers the second.
//! - **Every frame carries W** here; the real log writes it into the first frame after a round. W
//!   is only used to tell rot from a torn tail, and a lower W found is never wrong, only less
//!   sharp.
//!
//! ## What the models found (each a rule here, each with its counterexample)
//! 1. *ROOT has to be settled before the other slot is touched* (`root_is_settled`). A kill between
//!    write and sync leaves the newest ROOT in the page cache; the reopened process writes the
//!    other slot; one power cut tears both. So an open first makes the slot it read durable.
//! 2. *Writing again in place and scenario 11 suppose different disks* ([`disk::TornSectors`]). If
//!    a sector caught in flight can become garbage (the only way scenario 11 can hurt: its old
//!    bytes and its new bytes agree), then rewriting the tail, or ROOT, kills what was
//!    acknowledged. `ReopenMethod::ReadThrough` (sync, then read ROOT and tails past the page
//!    cache, write nothing) is sound on both disks.
//! 3. *A round ends the sectors when it starts, under the commit lock*
//!    (`rounds_start_under_the_lock`). "After a sync the next frame starts at the next sector" is
//!    too late: a frame placed before the sync and copied after it shares the acknowledged sector.
//! 4. *A checkpoint must not start between judging a survivor live and re-pointing to it*
//!    (`checkpoints_wait_for_judged_survivors`, `.._copied`). Either half revives a deleted key or
//!    loses a living one.
//! 5. *A checkpoint waits for the survivors it points to* (`checkpoint_waits_for_survivors`), since
//!    W says nothing about them.
//! 6. *Recovery settles survivors too* (`recovery_syncs_survivors`): their numbers lie at or below
//!    F, so "what is above F" misses them.
//! 7. *Recovery settles the payloads that the accepted frames name* (`recovery_syncs_payloads`). In
//!    general: after an unclean open nothing read from the page cache counts as durable (raises F,
//!    lets something be freed) before it was settled, whatever file it is in.
//! 8. *Both slots past what is freed guards against rot of a slot only*, and then recovery has to
//!    write both slots before it serves (`recovery_writes_both_slots`).
//! 9. *A segment that ROOT or a seal names is durable, name and header, before it is named*
//!    (`named_segments_are_durable`); every used segment is named (`first_segment_is_listed`,
//!    `every_segment_ends_with_a_seal`). Else a deleted segment, or one with a damaged header,
//!    cannot be told from one that a power cut left half made.
//! 10. *A ready segment that the log gives up is deleted when no slot lists it*
//!     (`released_segments_are_in_no_slot`). Else a damaged slot looks like a damaged database.
//!
//! Redundant, each enough alone within these bounds, kept as two lines of defence: fresh segments
//! and numbers above the bound (scenario 1), seals and numbers above the bound (2), dropping stale
//! image entries and letting the later of two equal numbers win (9). The two syncs of payload and
//! log may run in either order as long as W waits for both.
//!
//! ## The next commit path
//! decisions/0027 has its rules, W1 to W13. The models hold with them, and changed them as follows.
//! Each change is a test in `tests/parallel_commit.rs`.
//! 1. *A stop of reservations is too late for names and memtables*
//!    (`freezing_waits_for_checked_commits`). A commit checked before the stop and reserved after
//!    it is applied to a closed target. The stop takes all stripes, so the window is empty as well.
//! 2. *Only a published name has to stop commits.* A pinned state takes its position in a
//!    reservation step and waits for `visible`. A checkpoint can do the same if commits select
//!    their memtable by their seq ([`freeze::FreezeModel::targets_by_seq`]).
//! 3. *A slot that is registering keeps every version*, also those born after its V
//!    (`registering_slots_keep_every_version`). Only the final S says which versions may be freed.
//!    V itself is redundant: a mark "registering" keeps as much.
//! 4. *Both fences of a registration are needed, and its wait too*, unless superseded versions are
//!    judged after `visible` has passed them ([`views::ViewsModel::inspects_late`]): then the wait
//!    may go.
//! 5. *A refused condition is a read*: it waits until `visible` has reached its cause
//!    (`refusals_wait_for_visible`). The same holds for each answer that depends on the index, for
//!    example a removal that found no key.
//! 6. *No thread waits for room with stripes* (`log_space_is_awaited_without_stripes`): GC makes
//!    the room.
//! 7. *No reader waits for `visible` with a latch that `apply` takes*
//!    (`readers_wait_without_latches`).
//! 8. *S and `visible` are seqs of commits* (`marks_are_seqs_of_commits`). After a recovery the
//!    last reserved seq is the recovered prefix, not the seq before the first new one.
//! 9. *A round to `visible` needs no wait, and is sound only on a disk that keeps equal bytes*
//!    (`rounds_cover_reserved_seqs`): frames of the window may share the sector of S.
//! 10. *A round closes the sectors of all logs and takes S in one step*
//!     (`rounds_close_all_logs_at_once`), as a commit over several logs reserves. If it closes them
//!     one by one it takes S before the first, and waits for the last seq reserved before the last
//!     closing ([`window::WindowBounds::waits_past_last_close`]).
//! 11. *GC needs no stripe if `apply` counts the entry dead that its exchange replaced*
//!     ([`stripes::StripesModel::exchanges`]). The limit of W2 is a matter of cost, not of
//!     soundness. The stripes may be released when the commit is complete, before `visible` has
//!     reached it.
//!
//! *Fork* (scenario 39, W13). The window, the slots of views and the stripes are private memory:
//! the child has copies, and its writes do not reach the parent. Mappings of logs are not inherited
//! (R4). A thread in the window does not exist in the child. Therefore no path of the child may
//! wait for the window, neither an operation (refused by the process id) nor the drop of the
//! database.
//!
//! *A descheduled thread* (scenario 33). `window` shows that it delays only acknowledgements of
//! later seqs, rounds with an S not below it, and reads of entries not below it. Also waiting:
//! commits that need its stripes, views that register, and a freeze. During a freeze that stops
//! commits, all commits wait for it.
//!
//! ## Scenarios
//! 1-17 are tests in `tests/scenarios.rs`, numbered in their comments. A model has nothing to say
//! on 18-24; what stands for them:
//!
//! | scenario | stands for it |
//! |---|---|
//! | 18 a value holds a frame | frame format tests: scan over a log whose values are frames |
//! | 19 a keyspace that stopped writing | the journal's bound: conformance test with a failing checkpoint |
//! | 20 disk full | simulated disk with a quota: open, delete, clean at zero free blocks |
//! | 21 long snapshots, registration | shuttle or loom test of the registry; conformance under load |
//! | 22 huge values and batches | conformance tests of the limits (`TooLarge`) |
//! | 23 one rotten sector | the corrupter of testkit |
//! | 24 fork, iterators that outlive, fds | process tests of the facade; fd lifetime in `base::disk` |
//!
//! Scenarios 25 to 40 of the issue *Many cores* are tests in `tests/parallel_commit.rs` (W25 to
//! W40).
//!
//! ## Not shown
//! - *Bytes.* Checksums are perfect (a frame is valid iff its salt is right), lengths are right,
//!   content is a number. Salting (R6) is the reason that a frame in a segment is valid only there.
//! - *Segments of many frames.* In `order` a log has one open segment per incarnation; the cut
//!   needs dense numbers, so a gap in an earlier segment ends the order whatever follows. In
//!   `cleaning` a segment is one frame; a victim of many is freed if each of its frames allows it,
//!   and a batch of survivors is one pass (4 above is about the whole batch).
//! - *Segments made ready ahead.* The position where a checkpoint starts must count a segment that
//!   exists and is not open yet as lying behind it. `cleaning` finds segments that ROOT does not
//!   list yet; real ROOTs announce them before a frame in them is acknowledged.
//! - *Names.* `naming` has one log and no second incarnation.
//! - *Extending the reserved bound*, snapshots and PINNED copies (recovery ignores them), the
//!   journal's low-water mark, more than one engine, memory order between threads (loom's and
//!   shuttle's work).
//! - *Of the next commit path*: the ring that computes `visible` (its capacity, the reuse of its
//!   entries), lost wake-ups, fairness of stripes, a full table of slots, versions freed later than
//!   by the commit that superseded them (GC must inspect the slots after the reservation of that
//!   commit, too), the seal that a switch writes, and failed syncs in `window` (`order` has them).
//!   `window` ends with the crash; `order` with a window has recovery, with one frame a sector.
//! - *More than the bounds*: 2-4 commits, 2 crashes of each kind at most, 1-2 failed syncs.
//!
//! ## Why the parts compose
//! `order` shows that any set of logs recovers to a prefix that holds everything at or below W, and
//! that each step of recovery may be interrupted. The others use just that: in them a sync round is
//! one step that moves W, and recovery up to the write of ROOT is one step; `cleaning` and
//! `keyspace` keep the writes of ROOT as steps of their own because what they free depends on them.
//! Survivors are not part of the order, so cleaning adds frames that `order` never counts, and
//! takes away only frames at or below F that nothing needs. (`order` frees nothing, so it asks for
//! every frame; a log that is cut or cleaned asks for what ROOT lists as live.) A payload is one
//! more part of its commit.
//!
//! ## Costs
//! States explored with every rule on (and floors in the tests):
//!
//! | model | bounds | states |
//! |---|---|---|
//! | order | 4 commits, 2 power cuts | 667,173 |
//! | order | 3 commits, 2 power cuts, 2 ROOTs while serving | 825,801 |
//! | order | 2 commits, 2 kills, a power cut, a failed sync, a ROOT, late failures | 273,871 |
//! | order | the same, reading through | 245,580 |
//! | order | the same, 2 failed syncs, no ROOT | 89,992 |
//! | order | 2 commits, a power cut, a checkpoint, a close, a ROOT, rot | 80,876 |
//! | order | 3 commits, kill, power cut, failed sync, garbage, shared sectors | 325,734 |
//! | order | 2 commits, kill, 2 power cuts, a ROOT, garbage, shared sectors | 134,136 |
//! | cleaning | 2 commits, 2 passes, a checkpoint, 3 ROOTs, a power cut | 825,342 |
//! | cleaning | 2 commits, a pass, 2 checkpoints, 3 ROOTs, a power cut | 409,241 |
//! | cleaning | 2 commits, a pass, a checkpoint, 2 ROOTs, 2 power cuts / a kill and a cut | 168,857 / 210,531 |
//! | cleaning | 2 commits, 2 passes, a checkpoint, 2 ROOTs, a cut, a rotten slot | 729,071 |
//! | conditional, payload, page, keyspace | | 3,588, 7,928, 339, 35,247 / 51,471 |
//! | order, a window of 2 | 2 commits, a kill, a power cut, a failed sync, a ROOT | 104,089 |
//! | order, a window of 3 | 3 commits, 2 power cuts | 75,206 |
//! | window, kill | 3 commits, 2 logs, a read / 1 log, a round, a panic | 17,690 / 12,803 |
//! | window, power cut | 2 commits, 2 logs, 2 rounds, a switch | 19,088 |
//! | window, power cut | 3 commits, 2 rounds, a switch, shared sectors, garbage | 11,770 |
//! | window | 3 commits, a descheduled thread, a round, a read, a kill | 8,361 |
//! | stripes | batches, GC / swaps | 4,751 / 19,167 |
//! | stripes | a large batch, a panic / no room | 6,489 / 1,616 |
//! | views | 4 commits, 2 views / 5 commits, a view | 208,695 / 42,014 |
//! | freezing | 3 commits, a panic; each kind | 12,330 |
//! | order, by hand | 3 commits, a kill, 2 power cuts, a failed sync, a ROOT | 4,030,188 |
//! | order, a window of 3, by hand | 3 commits, a kill, a cut, a failed sync, a ROOT | 1,751,411 |
//! | window, by hand | 3 commits, 2 logs, 2 rounds, a switch, a power cut | 979,184 |
//! | views, by hand | 5 commits, 2 views | 1,013,577 |
//! | views, by hand | 4 commits, 2 views, inspected late | 3,645,033 |
//! | order, by hand | 3 commits, a power cut, a checkpoint, a close, a ROOT, rot | 1,553,717 |
//! | cleaning, by hand | 2 commits, 2 passes, a checkpoint, 4 ROOTs, a power cut | 1,314,675 |
//! | cleaning, by hand | 3 commits, 2 passes, a checkpoint, 2 ROOTs, a power cut | 4,017,158 |
//! | cleaning, by hand | 2 keys, 2 commits, 2 passes, a checkpoint, 2 ROOTs, a power cut | 1,897,876 |
//! | cleaning, by hand | 2 commits, 3 passes, 2 checkpoints, 3 ROOTs, a power cut | 17,512,137 |
//!
//! All tests: about a minute on two cores. `cargo test -- --ignored` runs those by hand (four
//! minutes).

#![forbid(unsafe_code)]

pub mod blob;
pub mod commit_order;
pub mod conditional_commit;
pub mod disk;
pub mod explore;
pub mod freeze;
pub mod gc;
pub mod in_place_page;
pub mod keyspace_drop;
mod rules;
pub mod segment_naming;
pub mod stripes;
pub mod views;
pub mod window;

pub use rules::{ProtocolRules, ReopenMethod};
