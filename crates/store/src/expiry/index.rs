//! # Index on expiry times: a hidden keyspace of hints
//!
//! The index of keyspace `users` is the keyspace `\0expiry:users`. Names with this beginning
//! are reserved: no call of the facade returns such a keyspace. The key of a hint is the time, big
//! endian, and the user's key; its value is empty. So the hints are in the order of time.
//!
//! ## Invariants
//!
//! 1. One commit creates or drops a keyspace with its index. A conversion keeps the index.
//! 2. If an index is missing or damaged, the opening writes a new one from a scan of the pairs,
//!    before it serves requests. The new index gets its name when it is complete. If that fails,
//!    the keyspace works without an index until the next opening: its expired pairs are invisible,
//!    and their space is not freed.

use std::sync::Arc;

use super::header::HEADER_BYTES;
use super::reads::stored_form;
use super::{has_expiry, header};
use crate::keyspace::catalog::CatalogCause;
use crate::keyspace::ingest::IngestWriter;
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Bounds, Cursor, EngineFactory, Projection};
use sheaf_log::options::EngineOptions;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::{Error, Result};

/// First bytes of the name of an index.
const INDEX_PREFIX: &str = "\0expiry:";
/// Bytes of the time in a hint.
pub(crate) const HINT_TIME_BYTES: usize = 8;
/// Preferred engine of an index, if that of the keyspace is not ordered: its memory is bounded.
const PREFERRED_ENGINE: &str = "kreon";

/// Returns whether a keyspace of this name is hidden from users.
pub(crate) fn is_hidden_name(name: &str) -> bool {
    name.starts_with(INDEX_PREFIX)
}

/// Returns the name of the keyspace whose index has this name.
pub(crate) fn owner_of_index(name: &str) -> Option<&str> {
    name.strip_prefix(INDEX_PREFIX)
}

/// Returns the name of the index of keyspace `name`.
pub(crate) fn index_name(name: &str) -> String {
    format!("{INDEX_PREFIX}{name}")
}

/// Appends the hint for `key` at `time`.
pub(crate) fn encode_hint(time: UnixMillis, key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&time.0.to_be_bytes());
    out.extend_from_slice(key);
}

/// Returns the time and the key of a hint.
pub(crate) fn hint_parts(hint: &[u8]) -> Option<(UnixMillis, &[u8])> {
    let (time, key) = hint.split_first_chunk::<HINT_TIME_BYTES>()?;
    Some((UnixMillis(u64::from_be_bytes(*time)), key))
}

/// Index that a keyspace gets when it is published.
#[derive(Clone, Debug)]
pub(crate) enum IndexPlan {
    /// This unpublished one.
    New(Arc<KeyspaceState>),
    /// The one of the keyspace that it replaces.
    Keep,
    /// None: the next opening writes one.
    Rebuild,
}

impl Store {
    /// Returns the name of the engine for the index of a keyspace of `engine`.
    fn index_engine(&self, engine: &str) -> Result<&'static str> {
        let probe = |factory: &Arc<dyn EngineFactory>| {
            factory.create(KeyspaceId(u32::MAX), &EngineOptions::default(), &self.context)
        };
        let of_name = |name: &str| self.factory(name).map(probe).filter(|made| made.capabilities().ordered);
        let found = of_name(engine)
            .or_else(|| of_name(PREFERRED_ENGINE))
            .or_else(|| self.factories.iter().map(probe).find(|made| made.capabilities().ordered));
        found.map(|made| made.name()).ok_or(Error::Unsupported {
            engine: "this build",
            feature: "expiry, which needs an ordered engine",
        })
    }

    /// Returns a new index for keyspace `name` of `engine`, which is not registered or published
    /// yet. Returns `None` if `options` give it no expiry.
    pub(crate) fn new_index(
        &self,
        name: &str,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<Option<Arc<KeyspaceState>>> {
        if !has_expiry(options) {
            return Ok(None);
        }
        self.expiry.mark_used();
        let engine = self.index_engine(engine)?;
        let index = self.new_keyspace_state(&index_name(name), engine, &EngineOptions::default())?;
        Ok(Some(Arc::new(index)))
    }

    /// Returns a writer into a new index for keyspace `name` of `engine`. The index gets its name
    /// later.
    pub(crate) fn begin_index(self: &Arc<Store>, name: &str, engine: &str) -> Result<IngestWriter> {
        let engine = self.index_engine(engine)?;
        let index = self.begin_unpublished(&index_name(name), engine, &EngineOptions::default())?;
        IngestWriter::new(index, false)
    }

    /// Connects the keyspaces with their indexes. Called while the store is opened.
    pub(crate) fn connect_indexes(self: &Arc<Store>) -> Result<()> {
        let map = self.catalog.map();
        for keyspace in map.values() {
            let Some(expiry) = keyspace.expiry() else { continue };
            self.expiry.mark_used();
            let index = map.get(&index_name(&keyspace.name())).filter(|index| index.engine().is_ok());
            match index {
                Some(index) => expiry.set_index(Arc::clone(index)),
                None if self.options.read_only || keyspace.engine().is_err() => continue,
                None => match self.rebuild_index(keyspace) {
                    Ok(()) => {}
                    Err(error @ (Error::Closed | Error::Poisoned { .. })) => return Err(error),
                    Err(error) => {
                        sheaf_platform::event!(
                            WARN,
                            "no index of expiry times could be written",
                            error = error.to_string()
                        );
                        continue;
                    }
                },
            }
            self.expiry.next_due.store(0, sheaf_platform::sync::atomic::Ordering::Release);
        }
        Ok(())
    }

    /// Writes a new index for `keyspace` from its pairs. No commit may run concurrently.
    fn rebuild_index(self: &Arc<Store>, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let Some(expiry) = keyspace.expiry() else { return Ok(()) };
        sheaf_platform::event!(
            WARN,
            "the index of expiry times is written again",
            keyspace = &*keyspace.name()
        );
        let mut writer = self.begin_index(&keyspace.name(), keyspace.engine_name())?;
        let view = self.view()?;
        let engine = stored_form(&**keyspace.engine()?);
        let mut cursor = engine.cursor(view.seq(), Bounds::all(), Projection::Pairs)?;
        let mut hint = Vec::new();
        loop {
            match add_next_hint(&mut *cursor, &mut hint, &mut writer) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Error::Corrupt { .. }) => {} // the cursor continues behind the damage
                Err(error) => return Err(error),
            }
        }
        drop(cursor);
        let _changing = self.catalog.lock_changes();
        let damaged = self.catalog.map().get(&index_name(&keyspace.name())).cloned();
        expiry.set_index(writer.publish(damaged.as_deref(), &IndexPlan::Keep, CatalogCause::Loaded)?);
        Ok(())
    }
}

/// Adds a hint for the next pair. Returns false at the end.
fn add_next_hint(cursor: &mut dyn Cursor, hint: &mut Vec<u8>, writer: &mut IngestWriter) -> Result<bool> {
    if !cursor.next()? {
        return Ok(false);
    }
    let (key, value) = cursor.pair();
    // A damaged header is an error of its pair's readers.
    if let Ok(Some(time)) = header::decode(&value[..value.len().min(HEADER_BYTES)]) {
        hint.clear();
        encode_hint(time, key, hint);
        writer.put(hint, &[])?;
    }
    Ok(true)
}
