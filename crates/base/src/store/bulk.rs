//! # Bulk load: pairs in the order of their keys become a keyspace
//!
//! They go into a keyspace in the making (`making`), straight into the engine's files where it has some (`fill`). At the end that has
//! its name, all at once; before it nothing is there.
//!
//! ## Crash
//!
//! The keyspace is what it was, or all that was loaded.

use std::io;
use std::sync::Arc;

use super::fill::Filling;
use super::making::Held;
use super::{Choice, Kept, Store};
use crate::error::{Error, Result};

/// A bulk load on its way. Dropped, it leaves nothing.
pub struct Loading {
    filling: Filling,
    replaces: bool,
    last: Option<Vec<u8>>,
    loaded: Loaded,
    is_broken: bool,
}

/// Result of a bulk load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Number of pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// True if the pairs were written directly to the files of the engine, without the log.
    pub direct: bool,
}

impl Store {
    /// Begins a bulk load into `name`, of what `choice` says, and where it does not of what the keyspace that is there is, or `default`. With
    /// `replaces` what is there goes, whatever its engine; without, it must be empty.
    pub fn begin_load(
        self: &Arc<Store>,
        name: &str,
        choice: Choice<'_>,
        default: &str,
        replaces: bool,
    ) -> Result<Loading> {
        self.check_writable()?;
        let before = self.existing(name)?;
        if !replaces {
            self.check_empty(before.as_deref(), choice)?;
        }
        let (engine, options) = choice.completed(before.as_deref(), default);
        let filling = Filling::new(self.begin_making(name, engine, &options)?, true)?;
        Ok(Loading { filling, replaces, last: None, loaded: Loaded::default(), is_broken: false })
    }

    /// Whether a keyspace holds nothing that a load would take away.
    fn check_empty(&self, before: Option<&Kept>, choice: Choice<'_>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        self.check_choice(before, choice)?;
        if !before.engine()?.is_empty()? {
            let why = format!("{:?} is not empty; clear it, or let the load replace it", before.name());
            return Err(Error::Invalid { what: "keyspace", why });
        }
        Ok(())
    }
}

impl Loading {
    /// Takes the next pair. One whose key is not above the last one's, or that is too large, is refused, and the load can go on with
    /// another; after any other error it can only be dropped.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_next(key)?;
        let put = self.filling.put(key, value);
        self.is_broken = put.as_ref().is_err_and(|error| !matches!(error, Error::TooLarge { .. }));
        put?;
        self.count(key, value.len() as u64);
        Ok(())
    }

    /// Takes the next pair, whose value is what `value` gives until its end, piece by piece. Returns the bytes of the value. A key that
    /// is not above the last one's is refused as by [`Loading::push`]; after any other error the load can only be dropped.
    pub fn push_reader(&mut self, key: &[u8], value: &mut dyn io::Read) -> Result<u64> {
        self.check_next(key)?;
        self.is_broken = true;
        let bytes = self.filling.put_reader(key, value)?;
        self.is_broken = false;
        self.count(key, bytes);
        Ok(bytes)
    }

    fn check_next(&self, key: &[u8]) -> Result<()> {
        self.check_whole()?;
        if self.last.as_deref().is_some_and(|last| key <= last) {
            let is_same = self.last.as_deref() == Some(key);
            let how = if is_same { "the same as" } else { "below" };
            let why =
                format!("the key of pair {} is {how} the key of the pair before", self.loaded.pairs + 1);
            return Err(Error::Invalid { what: "key", why });
        }
        Ok(())
    }

    fn count(&mut self, key: &[u8], value: u64) {
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.loaded.pairs += 1;
        self.loaded.bytes += key.len() as u64 + value;
    }

    fn check_whole(&self) -> Result<()> {
        match self.is_broken {
            true => Err(Error::Invalid {
                what: "load",
                why: "an earlier pair could not be written; start the load again".to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// What it took so far.
    #[must_use]
    pub fn so_far(&self) -> Loaded {
        self.loaded
    }

    /// Makes all of it the keyspace, durably.
    pub fn finish(mut self) -> Result<Loaded> {
        self.check_whole()?;
        self.filling.end_order()?;
        self.loaded.direct = self.filling.is_direct();
        let store = Arc::clone(self.filling.store());
        let _changing = store.catalogue.changing();
        let before = store.existing(self.filling.kept().name())?;
        let _held: Option<Held<'_>> = before.as_deref().map(|before| store.hold(before));
        if !self.replaces {
            // In full: what was made meanwhile with options is not to lose them.
            let kept = self.filling.kept();
            let options = kept.options().in_full(store.specs(kept.engine_name()));
            let choice = Choice { engine: Some(kept.engine_name()), options: &options };
            store.check_empty(before.as_deref(), choice)?;
        }
        self.filling.publish(before.as_deref())?;
        Ok(self.loaded)
    }
}
