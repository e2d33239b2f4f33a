//! # Lifetimes: the names of keyspaces at each commit
//!
//! A record has the number of its keyspace. A consumer of the feed needs the name, and only records
//! between the commit that gave the keyspace its name and the one that removed it: earlier records
//! are those of a conversion or a bulk load. A keyspace that was renamed has a lifetime for each of
//! its names; the next one begins with the commit that ends the one before.

use std::collections::HashMap;
use std::sync::Arc;

use crate::expiry::header::HEADER_LEN;
use sheaf_log::compression::ValueForm;
use sheaf_log::root_changes::KeyspaceLifetime;
use sheaf_log::types::{KeyspaceId, Seq};
use smallvec::SmallVec;

/// Dropped keyspaces and earlier names that are remembered at most. More of them end the retention
/// of older changes.
pub(super) const MAX_DROPPED: usize = 4096;

/// Lifetime of one name of a keyspace.
#[derive(Clone, Debug)]
struct Lifetime {
    name: Arc<str>,
    form: ValueForm,
    created: Seq,
    dropped: Seq,
}

/// Lifetimes of the live keyspaces, and of those that were dropped after the start of the feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lifetimes(HashMap<KeyspaceId, SmallVec<[Lifetime; 1]>>);

impl Lifetimes {
    /// Returns the lifetimes in ROOT.
    pub(crate) fn from_root(keyspaces: &[KeyspaceLifetime]) -> Lifetimes {
        let mut lifetimes = Lifetimes::default();
        for k in keyspaces {
            let header_len = if k.has_expiry { HEADER_LEN } else { 0 };
            let form = ValueForm { header_len, is_compressed: k.is_compressed };
            let lifetime =
                Lifetime { name: k.name.as_str().into(), form, created: k.created, dropped: k.dropped };
            lifetimes.0.entry(k.id).or_default().push(lifetime);
        }
        lifetimes
    }

    /// Adds a name of a keyspace, unless the keyspace has one that has not ended.
    pub(crate) fn add(&mut self, id: KeyspaceId, name: &str, form: ValueForm, created: Seq) {
        let of_keyspace = self.0.entry(id).or_default();
        if of_keyspace.iter().all(|k| k.dropped != Seq::LATEST) {
            of_keyspace.push(Lifetime { name: name.into(), form, created, dropped: Seq::LATEST });
        }
    }

    fn all(&self) -> impl Iterator<Item = &Lifetime> {
        self.0.values().flatten()
    }

    /// Ends the lifetime with this name at commit `seq`.
    pub(crate) fn end(&mut self, name: &str, seq: Seq) {
        let all = self.0.values_mut().flatten();
        let mut live = all.filter(|k| k.dropped == Seq::LATEST && k.created < seq);
        if let Some(found) = live.find(|k| *k.name == *name) {
            found.dropped = seq;
        }
    }

    /// Returns the name of the keyspace at commit `seq` and the form of its values, or `None` if it
    /// had no name.
    pub(super) fn at(&self, id: KeyspaceId, seq: Seq) -> Option<(&Arc<str>, ValueForm)> {
        let found = self.0.get(&id)?.iter().find(|k| k.created < seq && seq < k.dropped)?;
        Some((&found.name, found.form))
    }

    /// Returns the name that the keyspace had until commit `seq`, which gave it another one.
    pub(super) fn renamed_from(&self, id: KeyspaceId, seq: Seq) -> Option<&Arc<str>> {
        self.0.get(&id)?.iter().find(|k| k.dropped == seq).map(|k| &k.name)
    }

    /// Returns the lifetimes that ROOT must have with this floor and start.
    pub(super) fn as_of(&self, floor: Seq, start: Seq) -> Vec<KeyspaceLifetime> {
        let at_floor = |dropped: Seq| if dropped > floor { Seq::LATEST } else { dropped };
        let is_needed =
            |k: &Lifetime| k.created <= floor && (k.created > start || at_floor(k.dropped) != Seq::LATEST);
        let mut found: Vec<_> = self
            .0
            .iter()
            .flat_map(|(id, names)| names.iter().map(move |k| (id, k)))
            .filter(|(_, k)| is_needed(k))
            .map(|(id, k)| KeyspaceLifetime {
                id: *id,
                name: k.name.to_string(),
                has_expiry: k.form.header_len > 0,
                is_compressed: k.form.is_compressed,
                created: k.created,
                dropped: at_floor(k.dropped),
            })
            .collect();
        found.sort_by_key(|k| (k.id, k.created));
        found
    }

    /// Forgets the keyspaces that were dropped at or before `start`.
    pub(super) fn forget(&mut self, start: Seq) {
        self.0.values_mut().for_each(|names| names.retain(|k| k.dropped > start));
        self.0.retain(|_, names| !names.is_empty());
    }

    /// Returns whether a keyspace was dropped at or before `start`.
    pub(super) fn has_dropped_before(&self, start: Seq) -> bool {
        self.all().any(|k| k.dropped <= start)
    }

    /// Returns the start of the feed that leaves at most [`MAX_DROPPED`] dropped keyspaces.
    pub(super) fn least_start(&self) -> Seq {
        let mut dropped: Vec<Seq> =
            self.all().map(|k| k.dropped).filter(|dropped| *dropped != Seq::LATEST).collect();
        match dropped.len().checked_sub(MAX_DROPPED + 1) {
            Some(at) => *dropped.select_nth_unstable(at).1,
            None => Seq::ZERO,
        }
    }
}
