//! # Merge groups: one commit for merges of one key that run at the same time
//!
//! ## Picture
//!
//! ```text
//!   caller ─> slot of the key: not led ─> leads: takes the open group ─> reads the base, applies
//!                              led     ─> joins the open group  ┐       all operands in order,
//!                                                  ▲ waits      ┘       commits once ─> done
//! ```
//!
//! ## Invariants
//!
//! 1. An operand is in one group, and the leader takes a group once. The commit has the condition
//!    that the key is unchanged since the base (R16), so each operand is applied exactly once.
//! 2. A slot is led until its open group is taken. A leader that ends, also by a panic, completes
//!    the group that it took, and passes the open group to one of its members.
//! 3. A group of which the commit failed, or an operator panicked, wrote nothing or poisoned the
//!    database. Its members then commit alone and get errors or panics of their own.
//! 4. A refused operand changes nothing for the other members.
//! 5. The base that a slot keeps is the value of its last commit. It is used only under the
//!    condition that no commit has changed the key since.
//!
//! ## Threads
//!
//! No lock is held while an operator runs or a commit waits. A member waits only for its leader.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use sheaf_engine::contract::{Action, EngineOp};
use sheaf_engine::window::stripe_of;
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::sync::atomic::{AtomicU8, Ordering};
use sheaf_platform::sync::{Mutex, WaitWord, thread};
use sheaf_store::{CommitOutcome, CommitWrite, Expires, VersionCheck};

use super::{MergeRefusal, read_base};
use crate::{Error, Keyspace, Result};

/// Number of slots. Keys of different slots never share one.
const SLOTS: usize = 64;
/// Most groups that one caller commits for others.
const MAX_ROUNDS: usize = 32;
/// Largest key and value, in bytes, that a slot keeps.
const MAX_KEPT_BASE: usize = 1024;
/// Number of polls of a group before a member yields.
const SPINS: u32 = if cfg!(shuttle) { 0 } else { 300 };
/// Number of yields before it sleeps.
const YIELDS: u32 = if cfg!(shuttle) { 1 } else { 8 };

const WAITING: u8 = 0;
const LEADERLESS: u8 = 1;
const DONE: u8 = 2;

/// Groups of the merges of a database.
#[derive(Default)]
pub(crate) struct MergeGroups {
    slots: OnceLock<Box<[MergeSlot]>>,
}

#[derive(Default)]
struct MergeSlot {
    state: Mutex<GroupSlotState>,
    /// Wakes members when a group is done or needs a leader.
    changed: WaitWord,
}

#[derive(Default)]
struct GroupSlotState {
    /// Key that the slot is used for.
    key: Option<(KeyspaceId, Vec<u8>)>,
    is_led: bool,
    open: Option<OpenGroup>,
    base: Option<RetainedBase>,
}

#[derive(Default)]
struct OpenGroup {
    group: Arc<MergeGroup>,
    operands: Vec<Vec<u8>>,
}

#[derive(Default)]
struct MergeGroup {
    phase: AtomicU8,
    outcome: OnceLock<GroupOutcome>,
}

/// Commit of a group, and the operands that were refused; `None` if the commit failed.
type GroupOutcome = Option<MergedCommit>;

/// Result of a commit of operands.
struct MergedCommit {
    seq: Seq,
    refused: Vec<(usize, MergeRefusal)>,
}

/// Value of a key after a commit.
struct RetainedBase {
    keyspace: KeyspaceId,
    seq: Seq,
    value: Vec<u8>,
}

/// Leadership of a slot.
struct Leader<'s> {
    slot: &'s MergeSlot,
    /// Group that was taken and is not done.
    taken: Option<Arc<MergeGroup>>,
}

impl Leader<'_> {
    /// Completes the group that was taken.
    fn complete(&mut self, outcome: GroupOutcome) {
        if let Some(group) = self.taken.take() {
            drop(group.outcome.set(outcome));
            group.phase.store(DONE, Ordering::SeqCst);
            self.slot.changed.wake();
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.complete(None);
        let mut state = self.slot.state.lock();
        match &state.open {
            Some(open) => {
                open.group.phase.store(LEADERLESS, Ordering::SeqCst);
                drop(state);
                self.slot.changed.wake();
            }
            None => {
                state.is_led = false;
                if state.base.is_none() {
                    state.key = None;
                }
            }
        }
    }
}

impl MergeGroups {
    /// Merges `operand` into the value of `key`. Returns the seq of the commit.
    pub(crate) fn merge(&self, keyspace: &Keyspace, key: &[u8], operand: &[u8]) -> Result<Seq> {
        let id = {
            let state = keyspace.state()?;
            keyspace.handle().merge_registry().of(&state)?;
            state.id()
        };
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| MergeSlot::default()).collect());
        let slot = &slots[slot_of(id, key)];
        let (group, index, leads) = {
            let mut state = slot.state.lock();
            let is_same = state.key.as_ref().is_some_and(|(of, same)| *of == id && same == key);
            if !is_same && state.is_led {
                drop(state);
                return commit_alone(keyspace, key, operand);
            }
            if !is_same {
                state.key = Some((id, key.to_vec()));
                state.base = None;
            }
            let leads = !mem::replace(&mut state.is_led, true);
            let open = state.open.get_or_insert_default();
            open.operands.push(operand.to_vec());
            (Arc::clone(&open.group), open.operands.len() - 1, leads)
        };
        if leads || wait(slot, &group) {
            lead(slot, &group, keyspace, key)?;
        }
        match group.outcome.get() {
            Some(Some(done)) => match done.refused.iter().find(|(of, _)| *of == index) {
                None => Ok(done.seq),
                Some((_, refusal)) => {
                    Err(keyspace.handle().merge_registry().of(&*keyspace.state()?)?.refused(refusal))
                }
            },
            _ => commit_alone(keyspace, key, operand),
        }
    }
}

fn slot_of(id: KeyspaceId, key: &[u8]) -> usize {
    usize::from(stripe_of(id, key)) % SLOTS
}

/// Waits until the group is done. Returns true if the caller must lead it.
fn wait(slot: &MergeSlot, group: &MergeGroup) -> bool {
    let mut looks = 0_u32;
    loop {
        let seen = slot.changed.load();
        match group.phase.load(Ordering::SeqCst) {
            DONE => return false,
            LEADERLESS => {
                let claim =
                    group.phase.compare_exchange(LEADERLESS, WAITING, Ordering::SeqCst, Ordering::SeqCst);
                if claim.is_ok() {
                    return true;
                }
            }
            _ if looks < SPINS => std::hint::spin_loop(),
            _ if looks < SPINS + YIELDS => thread::yield_now(),
            _ => {
                slot.changed.sleep_unless(seen, || group.phase.load(Ordering::SeqCst) != WAITING);
            }
        }
        looks = looks.saturating_add(1);
    }
}

/// Commits the open group, which is `own`, and those that form while it does. Returns the error of
/// the commit of `own`.
fn lead(slot: &MergeSlot, own: &Arc<MergeGroup>, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
    let mut leader = Leader { slot, taken: None };
    let mut result = Ok(());
    for _ in 0..MAX_ROUNDS {
        let (open, base) = {
            let mut state = slot.state.lock();
            let Some(open) = state.open.take() else { break };
            (open, state.base.take())
        };
        let is_own = Arc::ptr_eq(&open.group, own);
        leader.taken = Some(open.group);
        let operands: Vec<&[u8]> = open.operands.iter().map(|operand| &operand[..]).collect();
        let commit = AssertUnwindSafe(|| commit_operands(keyspace, key, &operands, base));
        match catch_unwind(commit) {
            Ok(Ok((done, base))) => {
                slot.state.lock().base = base;
                leader.complete(Some(done));
            }
            Ok(Err(error)) => {
                leader.complete(None);
                if is_own {
                    result = Err(error);
                }
            }
            // The caller of the operand that made the operator panic gets the panic.
            Err(_) => leader.complete(None),
        }
    }
    result
}

fn commit_alone(keyspace: &Keyspace, key: &[u8], operand: &[u8]) -> Result<Seq> {
    let (done, _) = commit_operands(keyspace, key, &[operand], None)?;
    match done.refused.first() {
        None => Ok(done.seq),
        Some((_, refusal)) => {
            Err(keyspace.handle().merge_registry().of(&*keyspace.state()?)?.refused(refusal))
        }
    }
}

/// Applies `operands` to the value of `key` and commits the result, and starts again if the key
/// changed in between. Also returns the value for the next commit, if it is small.
fn commit_operands(
    keyspace: &Keyspace,
    key: &[u8],
    operands: &[&[u8]],
    mut base: Option<RetainedBase>,
) -> Result<(MergedCommit, Option<RetainedBase>)> {
    let store = keyspace.handle().store();
    loop {
        let state = keyspace.state()?;
        store.check_writable()?; // before a read that may fail for the same cause
        let operator = keyspace.handle().merge_registry().of(&state)?;
        let kept = base.take().filter(|base| base.keyspace == state.id());
        let (condition, old, expires) = match kept {
            Some(base) => {
                let check = VersionCheck::new(base.seq, true);
                (CommitWrite::unchanged(&state, key, check), Some(base.value), Expires::Default)
            }
            None => {
                let found = read_base(store, &state, key);
                if state.is_dropped() {
                    continue; // perhaps half dropped during the read
                }
                let found = found?;
                let old = found.value.map(|value| value.to_vec());
                (CommitWrite::new(&state, found.expect), old, found.expires)
            }
        };
        let (mut value, mut refused, mut accepted) = (old, Vec::new(), 0);
        for (index, operand) in operands.iter().enumerate() {
            match operator.merge(key, value.as_deref(), operand) {
                Ok(merged) => (value, accepted) = (Some(merged), accepted + 1),
                Err(refusal) => refused.push((index, refusal)),
            }
        }
        let Some(value) = value.filter(|_| accepted > 0) else {
            return Ok((MergedCommit { seq: store.visible(), refused }, None));
        };
        let put = CommitWrite::new(&state, EngineOp::new(key, Action::Put(&value)));
        let mut writes = [condition, CommitWrite { expires, ..put }];
        match store.commit(&mut writes) {
            // A replaced keyspace counts as changed. If it was dropped, the next attempt fails.
            Ok(CommitOutcome::Conflict(_)) | Err(Error::KeyspaceNotFound { .. }) => {}
            Ok(CommitOutcome::Committed(seq)) => {
                let keyspace = state.id();
                let is_kept = !state.has_expiry() && key.len() + value.len() <= MAX_KEPT_BASE;
                let base = is_kept.then_some(RetainedBase { keyspace, seq, value });
                return Ok((MergedCommit { seq, refused }, base));
            }
            Err(other) => return Err(other),
        }
    }
}
