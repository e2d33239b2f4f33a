//! # Fill: what a keyspace in the making is filled with
//!
//! ```text
//!  in order, engine with files of its own, more than a commit ──> ingest: straight into them          ┐ then commits
//!  else ──────────────────────────────────────────────────────> commits of some hundred operations    ┘ for what changed meanwhile
//! ```
//!
//! Of engines whose data is the flat log there is nothing to skip: their records go where they stay, each once. Those of the journal
//! would write everything twice, and more where it is moved again.
//!
//! ## Invariants
//!
//! 1. A staged value that is ingested is durable before the engine hears of it: no record names it, so no opening would notice.
//! 2. A commit has no key twice.
//!
//! ## Costs
//!
//! Memory: one commit. A large value goes through a buffer into the place where it is staged.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use super::incoming::Incoming;
use super::making::Making;
use super::order::Write;
use super::{Kept, Outcome, Store};
use crate::blob::{BlobRef, Staged, Unsynced};
use crate::engine::{Action, Ingest, Op};
use crate::error::{Error, Result};
use crate::record::Content;
use crate::types::{MAX_KEY, MAX_VALUE, Seq};
use crate::value::{Stored, ValueFile};

/// Bytes of one piece of a value on its way.
const PIECE: usize = 64 << 10;

/// Limits of a commit.
#[derive(Clone, Copy, Debug)]
struct Limits {
    operations: usize,
    bytes: usize,
    /// Files that stay open until it is done.
    staged: usize,
}

impl Limits {
    fn new(tiny: bool) -> Limits {
        match tiny {
            true => Limits { operations: 5, bytes: 2 << 10, staged: 2 },
            false => Limits { operations: 512, bytes: 256 << 10, staged: 64 },
        }
    }
}

/// What an operation does.
#[derive(Clone, Debug)]
enum What {
    Put(Range<usize>),
    Staged(BlobRef),
    Remove,
}

/// A keyspace in the making, and what is on its way into it.
pub(super) struct Filling {
    // Goes before what it fills.
    ingest: Option<Box<dyn Ingest>>,
    making: Making,
    /// The engine has made files: there is more than one commit of it.
    has_begun: bool,
    limits: Limits,
    bytes: Vec<u8>,
    operations: Vec<(Range<usize>, What)>,
    staged: SmallVec<[Staged; 1]>,
}

impl Filling {
    /// Fills what is being made; in the order of keys if `is_sorted`.
    pub(super) fn new(mut making: Making, is_sorted: bool) -> Result<Filling> {
        let store = Arc::clone(&making.store);
        let mut ingest = None;
        if is_sorted {
            // A commit that exists once the keyspace has its name.
            let seq = store.visible().max(Seq(1));
            ingest = Arc::clone(making.kept.engine()?).ingest(seq)?;
        }
        if ingest.is_none() {
            making.enroll();
        }
        let limits = Limits::new(store.options.tiny);
        let (bytes, operations, staged) = (Vec::new(), Vec::new(), SmallVec::new());
        Ok(Filling { making, ingest, has_begun: false, limits, bytes, operations, staged })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.making.store
    }

    pub(super) fn kept(&self) -> &Arc<Kept> {
        &self.making.kept
    }

    /// Whether pairs can go past the log: until the end of that they must come in the order of their keys.
    pub(super) fn is_ordered(&self) -> bool {
        self.ingest.is_some()
    }

    /// Whether they went there.
    pub(super) fn is_direct(&self) -> bool {
        self.has_begun
    }

    /// Sets `key` to `value`.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check(key, value.len())?;
        if value.len() > self.store().stages_above(self.kept().stages_above()) {
            let adopts = self.kept().engine()?.adopts_files();
            let staged = self.store().stage_value(value, adopts)?;
            return self.put_staged(key, staged);
        }
        self.flush_if_full()?;
        let (key, value) = (self.keep(key), self.keep(value));
        self.operations.push((key, What::Put(value)));
        Ok(())
    }

    /// Sets `key` to what was found for it somewhere.
    pub(super) fn put_stored(&mut self, key: &[u8], stored: Stored<'_>) -> Result<()> {
        match stored {
            Stored::Bytes(value) => self.put(key, value),
            Stored::File(file) => self.put_file(key, file),
        }
    }

    /// Sets `key` to the value in `file`, piece by piece.
    fn put_file(&mut self, key: &[u8], file: ValueFile) -> Result<()> {
        let store = Arc::clone(self.store());
        let mut pieces = store.pieces(file)?;
        let mut incoming = store.begin_value(self.kept())?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let got = pieces.read_at(at, &mut piece)?;
            if got == 0 {
                break;
            }
            store.extend_value(&mut incoming, &piece[..got])?;
            at += got as u64;
        }
        self.put_incoming(key, incoming)
    }

    /// Sets `key` to the value in `file`, which is another database's and was checked: piece by piece.
    pub(super) fn put_foreign(&mut self, key: &[u8], file: &ValueFile) -> Result<()> {
        check(key, usize::try_from(file.len()).unwrap_or(usize::MAX))?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_value(self.kept())?;
        file.go_through(|_, bytes| store.extend_value(&mut incoming, bytes))?;
        self.put_incoming(key, incoming)
    }

    /// Sets `key` to what `value` gives until its end, piece by piece; returns the bytes of it.
    pub(super) fn put_reader(&mut self, key: &[u8], value: &mut dyn io::Read) -> Result<u64> {
        check(key, 0)?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_value(self.kept())?;
        let mut piece = vec![0; PIECE];
        loop {
            match value.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => store.extend_value(&mut incoming, &piece[..got])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", Path::new("a value"), error)),
            }
        }
        let bytes = incoming.len();
        self.put_incoming(key, incoming)?;
        Ok(bytes)
    }

    fn put_incoming(&mut self, key: &[u8], incoming: Incoming) -> Result<()> {
        let mut whole = self.store().end_value(incoming)?;
        match whole.staged.pop() {
            Some(staged) => self.put_staged(key, staged),
            None => match whole.action() {
                Action::Put(value) => self.put(key, value),
                _ => Ok(()),
            },
        }
    }

    fn put_staged(&mut self, key: &[u8], staged: Staged) -> Result<()> {
        self.flush_if_full()?;
        let key = self.keep(key);
        self.operations.push((key, What::Staged(staged.blob)));
        self.staged.push(staged);
        Ok(())
    }

    /// Removes `key`.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.flush_if_full()?;
        let key = self.keep(key);
        self.operations.push((key, What::Remove));
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Before anything is added, so that an operation which was refused is not there.
    fn flush_if_full(&mut self) -> Result<()> {
        let Limits { operations, bytes, staged } = self.limits;
        let is_full =
            self.operations.len() >= operations || self.bytes.len() >= bytes || self.staged.len() >= staged;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Hands over what is there.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.operations.is_empty() {
            return Ok(());
        }
        match self.ingest.is_some() {
            true => self.push_all()?,
            false => self.commit_all()?,
        }
        self.operations.clear();
        self.bytes.clear();
        Ok(())
    }

    fn push_all(&mut self) -> Result<()> {
        let Some(ingest) = &mut self.ingest else { return Ok(()) };
        let store = &self.making.store;
        store.check_writable()?; // once it is closed, the files belong to whoever opens it next
        self.has_begun = true;
        store.leave_room(2 * self.bytes.len() as u64)?;
        let _at_work = store.at_work.read();
        store.check_writable()?; // not a moment later: the end waits for who is at work
        let mut unsynced = Unsynced::default();
        self.staged.drain(..).for_each(|staged| unsynced.add(staged));
        store.ground.blobs.sync(&unsynced).map_err(|_| store.poison("sync"))?; // I1
        for (key, what) in &self.operations {
            let content = match what {
                What::Put(value) => Content::Put(&self.bytes[value.clone()]),
                What::Staged(blob) => Content::Staged(*blob),
                What::Remove => continue, // nothing is there
            };
            match ingest.push(&self.bytes[key.clone()], content) {
                Err(Error::Poisoned { op }) => return Err(store.poison(op)),
                other => other?,
            }
        }
        Ok(())
    }

    fn commit_all(&mut self) -> Result<()> {
        let (kept, bytes) = (&self.making.kept, &self.bytes);
        let write = |(key, what): &(Range<usize>, What)| {
            let action = match what {
                What::Put(value) => Action::Put(&bytes[value.clone()]),
                What::Staged(blob) => Action::Staged(*blob),
                What::Remove => Action::Remove,
            };
            Write { kept, op: Op::new(&bytes[key.clone()], action) }
        };
        let mut writes: Vec<Write<'_>> = self.operations.iter().map(write).collect();
        match self.making.store.commit_staged(&mut writes, &mut self.staged)? {
            Outcome::Done(_) => Ok(()),
            Outcome::Stale => Err(Error::Conflict), // nothing is expected
        }
    }

    /// The end of what comes in order: from now on all goes by commits, in any order. What is no more than one commit was not worth
    /// files.
    pub(super) fn end_order(&mut self) -> Result<()> {
        if self.has_begun {
            self.flush()?;
            if let Some(ingest) = self.ingest.take() {
                match ingest.finish() {
                    Err(Error::Poisoned { op }) => return Err(self.store().poison(op)),
                    other => other?,
                }
            }
        }
        self.ingest = None;
        self.making.enroll();
        self.flush()
    }

    /// All is there: see [`Making::publish`].
    pub(super) fn publish(mut self, before: Option<&Kept>) -> Result<Arc<Kept>> {
        self.end_order()?;
        self.making.publish(before)
    }
}

fn check(key: &[u8], value: usize) -> Result<()> {
    for (what, got, max) in [("key", key.len(), MAX_KEY), ("value", value, MAX_VALUE)] {
        if got > max {
            return Err(Error::TooLarge { what, got: got as u64, max: max as u64 });
        }
    }
    Ok(())
}
