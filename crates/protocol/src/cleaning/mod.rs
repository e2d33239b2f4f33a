//! # Cleaning a store log: survivors, tombstones, index checkpoints, and what ROOT still needs
//!
//! One store log whose segments hold one frame each, a cleaner, index checkpoints, the two slots of
//! ROOT. Puts and deletes of one or two keys. The index is compared with the true map after every
//! step and every recovery. How a prefix comes about is `order`'s matter: here a sync round is one
//! step, and so is recovery up to its write of ROOT.
//!
//! ## Picture
//! ```text
//!   pass:        Judge -----> CopySurvivor ----> Repoint -----> SyncSurvivor --> gone from the next ROOT
//!                (under the   (its own kind,     (if the index   (then, with both ROOT slots past it
//!                lock: live?) its own number)    still agrees)    and F over it: Free)
//!   checkpoint:  StartDump (start, position) --> DumpKey ... --> published by a ROOT once W has reached
//!                                                                its end and its survivors are synced
//!   recovery:    cut = dense above F; index = image, less entries into segments that are gone, then
//!                every frame from the image's start position on, highest number wins
//! ```
//!
//! ## Why replay from the image's start is enough
//! Let k's newest version at the start be v. If the scan reads v, or anything newer, at an address that
//! is live and durable at recovery, it is right: all newer frames lie behind the start. If the address
//! is gone, it went in a pass that ended after the scan read it, hence (finding 4) a pass that copied
//! after the start, so that the survivor lies behind the start; or v was superseded by a commit, which
//! lies behind the start as well. A frame older than v behind the start could only be a survivor, and
//! a survivor is judged live and copied with no start in between: v came later and lies behind too, or
//! is a tombstone whose number lies above the start, which therefore is not dropped.
//!
//! ## Simplifications
//! A freed segment is destroyed at once. Segments that ROOT does not know yet are found by recovery.
//! A number that was cut off is given again (that `order` gives numbers above the bound is stricter).

mod recovery;
mod steps;

use crate::Rules;
use crate::disk::{self, Crash, Fate, Page};
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// Keys of the model.
const KEYS: usize = 2;

/// The number of a commit.
pub type Seq = u8;

/// How far an exploration goes.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Keys that commits touch (1 or 2).
    pub keys: usize,
    /// Commits over the whole run.
    pub commits: u8,
    /// Passes of the cleaner.
    pub passes: u8,
    /// Index checkpoints.
    pub dumps: u8,
    /// ROOT written while serving.
    pub roots: u8,
    /// Power cuts.
    pub power_cuts: u8,
    /// Kills.
    pub kills: u8,
    /// Slots of ROOT that rot while the other is whole and the database is down.
    pub slot_rots: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Cleaning {
    /// Which rules hold.
    pub rules: Rules,
    /// How far to look.
    pub bounds: Bounds,
}

/// A frame: a segment of its own here, so its address is its place in the list of all segments.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    /// A survivor: never part of the order.
    moved: bool,
    seq: Seq,
    key: usize,
    tombstone: bool,
}

/// Where a key's newest version is.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    seq: Seq,
    at: usize,
    tombstone: bool,
}

type Index = [Option<Entry>; KEYS];

/// An index checkpoint.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Image {
    /// `visible` when the scan started, and the first segment that was not there yet.
    start: Seq,
    start_at: usize,
    /// The same when it ended.
    end: Seq,
    end_at: usize,
    entries: Index,
}

/// A slot of ROOT.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Root {
    generation: u8,
    floor: Seq,
    /// Segments that are not live: a set of bits. (The real ROOT lists those that are.)
    gone: u32,
    image: Option<Image>,
}

/// The cleaner, within a pass.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Pass {
    /// The victim was found live and is to be copied.
    Found { victim: usize },
    /// The copy is in the kernel; the index still points to the victim (or has moved on).
    Copied { victim: usize, copy: usize },
    /// The index was asked to point to the copy; the copy is not synced.
    Pointed { victim: usize },
}

/// An index checkpoint under way.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Dump {
    image: Image,
    /// Keys scanned so far; all of them: it waits to be published.
    scanned: usize,
}

/// A serving process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Serving {
    index: Index,
    visible: Seq,
    durable: Seq,
    root: Root,
    root_unsynced: bool,
    pass: Option<Pass>,
    dump: Option<Dump>,
}

/// Where the process is.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Process {
    Down,
    /// Recovery has decided and synced what it accepted.
    Recovered {
        index: Index,
        cut: Seq,
        gone: u32,
    },
    /// And has written ROOT.
    Announced {
        index: Index,
        root: Root,
        last: bool,
    },
    Serving(Serving),
}

/// Disk, process, debts.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    slots: [Page<Root>; 2],
    segments: Vec<Page<Frame>>,
    process: Process,
    /// All commits that may exist, in order: (key, whether it deletes).
    history: Vec<(usize, bool)>,
    owed_to_power_cut: Seq,
    owed: Seq,
    spent: Spent,
    broken: Option<Broken>,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Spent {
    commits: u8,
    passes: u8,
    dumps: u8,
    roots: u8,
    power_cuts: u8,
    kills: u8,
    slot_rots: u8,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A put (false) or a delete (true) of a key: numbered, logged, applied, visible.
    Commit(usize, bool),
    /// A sync round: all commit segments, then W.
    Sync,
    /// A pass begins: the victim's frame is judged under the commit lock.
    Judge(usize),
    /// The survivor is appended.
    CopySurvivor,
    /// The index is re-pointed under the commit lock.
    Repoint,
    /// The survivor is synced, and the victim may leave ROOT.
    SyncSurvivor,
    /// A checkpoint begins.
    StartDump,
    /// It reads the entry of the next key.
    DumpKey,
    /// ROOT is written: F = W, without the cleaned segments, with the checkpoint if it is ready.
    WriteRoot,
    /// And synced.
    SyncRoot,
    /// The file of a segment is destroyed.
    Free(usize),
    /// The power goes.
    PowerCut(usize),
    /// The process goes.
    Kill,
    /// A slot of ROOT rots.
    RotSlot(usize),
    /// Recovery: ROOT settled, logs read, decided, the accepted synced (each step by itself is in
    /// model `order`).
    Recover,
    /// Recovery writes ROOT.
    Announce,
    /// Recovery syncs ROOT and serves.
    Serve,
}

impl State {
    fn ways(&self) -> usize {
        let slots = self.slots.iter().map(|slot| -> &dyn Fate { slot });
        let segments = self.segments.iter().map(|segment| -> &dyn Fate { segment });
        disk::ways(slots.chain(segments), Crash::PowerCut)
    }

    fn cut_power(&mut self, way: usize) {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn Fate { slot });
        let segments = self.segments.iter_mut().map(|segment| -> &mut dyn Fate { segment });
        disk::suffer(slots.chain(segments), Crash::PowerCut, way);
    }

    fn newest(&self) -> Option<usize> {
        let generation = |slot: usize| self.slots[slot].read().map(|root| root.generation);
        let best = usize::from(generation(1) > generation(0));
        generation(best).map(|_| best)
    }
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Cleaning {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![steps::created()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if state.spent.power_cuts < self.bounds.power_cuts {
            actions.extend((0..state.ways()).map(Action::PowerCut));
        }
        if state.process != Process::Down && state.spent.kills < self.bounds.kills {
            actions.push(Action::Kill);
        }
        match &state.process {
            Process::Down => {
                let whole =
                    |slot: usize| state.slots[slot].is_settled() && state.slots[slot].read().is_some();
                if state.spent.slot_rots < self.bounds.slot_rots && whole(0) && whole(1) {
                    actions.extend([0, 1].map(Action::RotSlot));
                }
                actions.push(Action::Recover);
            }
            Process::Recovered { .. } => actions.push(Action::Announce),
            Process::Announced { .. } => actions.push(Action::Serve),
            Process::Serving(serving) => {
                self.foreground(state, serving, actions);
                self.background(state, serving, actions);
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Cleaning {
    fn foreground(&self, state: &State, serving: &Serving, actions: &mut Vec<Action>) {
        if state.spent.commits < self.bounds.commits {
            for key in 0..self.bounds.keys {
                actions.push(Action::Commit(key, false));
                if serving.index[key].is_some_and(|entry| !entry.tombstone) {
                    actions.push(Action::Commit(key, true));
                }
            }
        }
        if serving.visible > serving.durable {
            actions.push(Action::Sync);
        }
    }

    fn background(&self, state: &State, serving: &Serving, actions: &mut Vec<Action>) {
        match serving.pass {
            None if state.spent.passes < self.bounds.passes => {
                let victims = 0..state.segments.len();
                let fit = victims.filter(|&at| self.judge(state, serving, at).is_some());
                actions.extend(fit.map(Action::Judge));
            }
            None => {}
            Some(Pass::Found { .. }) => actions.push(Action::CopySurvivor),
            Some(Pass::Copied { .. }) => actions.push(Action::Repoint),
            Some(Pass::Pointed { .. }) => actions.push(Action::SyncSurvivor),
        }
        match &serving.dump {
            None => {
                let may_start = match serving.pass {
                    Some(Pass::Found { .. }) => !self.rules.checkpoints_wait_for_the_judged,
                    Some(Pass::Copied { .. }) => !self.rules.checkpoints_wait_for_the_copied,
                    None | Some(Pass::Pointed { .. }) => true,
                };
                if may_start && state.spent.dumps < self.bounds.dumps {
                    actions.push(Action::StartDump);
                }
            }
            Some(dump) if dump.scanned < self.bounds.keys => actions.push(Action::DumpKey),
            Some(_) => {}
        }
        if serving.root_unsynced {
            actions.push(Action::SyncRoot);
        } else if state.spent.roots < self.bounds.roots {
            actions.push(Action::WriteRoot);
        }
        let segments = 0..state.segments.len();
        let free = segments.filter(|&at| self.may_free(state, serving, at));
        actions.extend(free.map(Action::Free));
    }
}
