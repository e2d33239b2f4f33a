//! # Swaps: writes that depend on what is there
//!
//! A key is read, what is to become of it is decided without a lock, and the commit goes through only if the key is still as it was read;
//! else all of it is done again.

use sheaf_base::engine::{Action, Engine, Op};
use sheaf_base::load::{Call, Kind, Sample, Served};
use sheaf_base::store::{Outcome, Store, Write};
use sheaf_base::types::Seq;

use super::Keyspace;
use crate::{Durability, Error, Result, Value};

impl Keyspace {
    /// Replaces the value of `key` by what `change` makes of it (`None`: not there, or remove it), and
    /// returns the new value. Atomic: `change` runs again if the key changed meanwhile, so it should
    /// have no effects beside its result. No lock is held while it runs.
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value>> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        loop {
            let mut new = None;
            let done = self.swap_once(key, |old| {
                new = change(old);
                Some(new.clone())
            })?;
            if done == Swapped::Yes {
                if let Some(sample) = sample {
                    self.observe_update(sample, key, new.as_deref());
                }
                return Ok(new.map(Value::from));
            }
        }
    }

    /// Sets `key` to `new` if its value is `expected` (`None`: not there). False, and nothing changed,
    /// if it is another.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        loop {
            let done = self.swap_once(key, |old| (old == expected).then(|| new.map(<[u8]>::to_vec)))?;
            if done == Swapped::Changed {
                continue;
            }
            if let Some(sample) = sample {
                self.observe_update(sample, key, new);
            }
            return Ok(done == Swapped::Yes);
        }
    }

    #[cold]
    #[inline(never)]
    fn observe_update(&self, sample: Sample, key: &[u8], new: Option<&[u8]>) {
        self.observe(sample, Some(Served::Update), &Call::new(Kind::Update, key).value(new.map(<[u8]>::len)));
        self.shared.kept.load().load().record_durability(self.store().durability() == Durability::Sync);
    }

    /// One attempt at read, decide, write. `decide` returns `None` to write nothing.
    fn swap_once(
        &self,
        key: &[u8],
        decide: impl FnOnce(Option<&[u8]>) -> Option<Option<Vec<u8>>>,
    ) -> Result<Swapped> {
        let kept = self.kept()?;
        self.store().check_open()?;
        let found = kept.engine().and_then(|engine| expect_now(self.store(), &**engine, key));
        if kept.is_gone() {
            return Ok(Swapped::Changed); // it may have been half gone when it was looked at
        }
        let (expect, old) = found?;
        let Some(new) = decide(old.as_deref()) else { return Ok(Swapped::Unwanted) };
        let action = match &new {
            Some(value) => Action::Put(value),
            None => Action::Remove,
        };
        let mut writes = [Write { kept: &kept, op: expect }, Write { kept: &kept, op: Op::new(key, action) }];
        match self.store().commit(&mut writes) {
            // A keyspace that was given up meanwhile has changed; one that was dropped is found out next.
            Ok(Outcome::Stale) | Err(Error::NoKeyspace { .. }) => Ok(Swapped::Changed),
            Ok(Outcome::Done(seq)) => {
                self.store().acknowledge(seq, self.store().durability())?;
                Ok(Swapped::Yes)
            }
            Err(other) => Err(other),
        }
    }
}

/// How an attempt at read, decide, write ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swapped {
    /// It is written.
    Yes,
    /// Nothing was to be written.
    Unwanted,
    /// The key, or the keyspace, changed in between.
    Changed,
}

/// The value of `key`, and an operation that makes a commit stale once it is another.
pub(crate) fn expect_now<'k>(
    store: &Store,
    engine: &dyn Engine,
    key: &'k [u8],
) -> Result<(Op<'k>, Option<Value>)> {
    loop {
        let mut expect = Op::new(key, Action::Expect);
        engine.prepare(&mut expect)?; // before the read: a later change makes the commit stale
        // A commit under way may show its number before its value.
        store.wait_visible(expect.prior);
        let mut value = None;
        engine.get(Seq::LATEST, key, &mut |bytes| value = Some(Value::new(bytes)))?;
        // Absent at the first look and there at the second: the commit would not notice its going again.
        if expect.prior != Seq::ZERO || value.is_none() {
            return Ok((expect, value));
        }
    }
}
