//! # Catalogue: keyspaces, created and dropped by commits
//!
//! A keyspace's creation, clearing and drop are synced commits in the journal; ROOT holds the
//! catalogue of its floor. A cleared keyspace is a new one of the same name: one record does both,
//! and so it does for one that was made beside it (`making`), maybe with another engine. What was
//! chosen of the engine's options stands beside its name, if anything was: before the first record
//! that says so, both slots of ROOT have the version that knows of it. What was dropped is kept
//! until that is durable and no view shows it (commit.md R17, scenario 12).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{EngineChoice, KeyspaceInfo, KeyspaceState, Store};
use crate::codec::{FieldReader, FieldWriter};
use crate::engine::EngineFactory;
use crate::error::{Damage, Error, Result};
use crate::options::{EngineOptions, OptionSpec};
use crate::record::{Record, RecordContent};
use crate::root::{self, CatalogEntry};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::types::{Durability, KeyspaceId, Seq};

/// Longest name in bytes.
const MAX_NAME: usize = 255;

/// Live keyspaces by name.
pub(crate) type KeyspaceMap = BTreeMap<String, Arc<KeyspaceState>>;

/// The live keyspaces.
#[derive(Debug, Default)]
struct LiveKeyspaces {
    map: Arc<KeyspaceMap>,
    /// The commit that changed them last; zero if none has since the opening.
    changed_seq: Seq,
}

/// The keyspaces there are and were.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    live: RwLock<LiveKeyspaces>,
    /// Without a name so far: see `making`.
    unpublished: Mutex<Vec<Arc<KeyspaceState>>>,
    dropped: Mutex<Vec<Arc<KeyspaceState>>>,
    next_id: AtomicU32,
    /// A keyspace was made with options, some time.
    has_options: AtomicBool,
    /// One change at a time.
    change_lock: Mutex<()>,
}

/// What a creation's record says beside the name.
pub(crate) fn encode_entry(id: KeyspaceId, engine: &str, options: &EngineOptions) -> Vec<u8> {
    let mut w = FieldWriter::default();
    w.u32(id.0);
    w.bytes(engine.as_bytes());
    if !options.is_empty() {
        options.encode(&mut w);
    }
    w.0
}

/// The keyspace that a catalogue record is about, and what it says of it (`None`: dropped).
pub(crate) fn decode_entry(record: &Record<'_>) -> Result<(String, Option<CatalogEntry>), Damage> {
    let bad = |field| Damage::BadField { field, value: record.key.len() as u64 };
    let name = String::from_utf8(record.key.to_vec()).map_err(|_| bad("name"))?;
    let RecordContent::Put(value) = record.content else { return Ok((name, None)) };
    let mut r = FieldReader::new(value);
    let id = root::keyspace(&mut r)?;
    let engine = String::from_utf8(r.bytes()?.to_vec()).map_err(|_| bad("engine"))?;
    let options = if r.rest().is_empty() { EngineOptions::default() } else { EngineOptions::decode(&mut r)? };
    r.finish()?;
    Ok((name.clone(), Some(CatalogEntry { id, name, engine, options })))
}

impl Catalog {
    pub(crate) fn new(map: KeyspaceMap, next_id: KeyspaceId, had_options: bool) -> Catalog {
        let has_options = had_options || map.values().any(|keyspace| !keyspace.options().is_empty());
        Catalog {
            live: RwLock::new(LiveKeyspaces { map: Arc::new(map), changed_seq: Seq::ZERO }),
            has_options: AtomicBool::new(has_options),
            next_id: AtomicU32::new(next_id.0),
            ..Catalog::default()
        }
    }

    /// The live ones.
    pub(crate) fn map(&self) -> Arc<KeyspaceMap> {
        Arc::clone(&self.live.read().map)
    }

    /// The live ones, and the commit that changed them last.
    pub(super) fn map_and_changed_seq(&self) -> (Arc<KeyspaceMap>, Seq) {
        let live = self.live.read();
        (Arc::clone(&live.map), live.changed_seq)
    }

    /// The live ones, and those in the making.
    pub(crate) fn live_and_unpublished(&self) -> Vec<Arc<KeyspaceState>> {
        // In this order: what is published meanwhile is found in one of them.
        let mut present = self.unpublished.lock().clone();
        present.extend(self.map().values().cloned());
        present
    }

    /// All that entries in logs may belong to, live, dropped, or in the making.
    pub(crate) fn all(&self) -> Vec<Arc<KeyspaceState>> {
        let mut all = self.live_and_unpublished();
        all.extend(self.dropped.lock().iter().cloned());
        // Who was published or dropped between two of the looks was seen twice.
        all.sort_by_key(|keyspace| keyspace.id());
        all.dedup_by_key(|keyspace| keyspace.id());
        all
    }

    /// From now on entries in logs may belong to it.
    pub(super) fn register_unpublished(&self, keyspace: Arc<KeyspaceState>) {
        self.unpublished.lock().push(keyspace);
    }

    /// While no commit runs: it has its name from commit `seq` on.
    pub(super) fn publish(&self, keyspace: &Arc<KeyspaceState>, seq: Seq) {
        self.set(keyspace.name(), Some(Arc::clone(keyspace)), seq);
        self.unpublished.lock().retain(|other| !Arc::ptr_eq(other, keyspace));
    }

    /// While no commit runs, at commit `seq`: it will never have a name.
    pub(super) fn discard(&self, keyspace: &Arc<KeyspaceState>, seq: Seq) {
        keyspace.set_dropped_seq(seq);
        self.dropped.lock().push(Arc::clone(keyspace));
        self.unpublished.lock().retain(|other| !Arc::ptr_eq(other, keyspace));
    }

    /// A number that no keyspace ever had, as far as ROOT and the journal know.
    pub(super) fn new_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// No keyspace is created, replaced or dropped while this is held.
    pub(super) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change_lock.lock()
    }

    /// Whether a keyspace was made with options, some time.
    pub(crate) fn has_options(&self) -> bool {
        self.has_options.load(Ordering::Acquire)
    }

    pub(crate) fn next_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.load(Ordering::Relaxed))
    }

    /// What ROOT says with this floor.
    pub(crate) fn entries_at(&self, floor: Seq) -> Vec<CatalogEntry> {
        let mut entries: Vec<_> = self
            .all()
            .iter()
            .filter(|keyspace| keyspace.is_visible_at(floor))
            .map(|keyspace| CatalogEntry {
                id: keyspace.id(),
                name: keyspace.name().to_owned(),
                engine: keyspace.engine_name().to_owned(),
                options: keyspace.options().clone(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    /// While no commit runs: `name` is `kept` from commit `seq` on (`None`: nothing).
    fn set(&self, name: &str, keyspace: Option<Arc<KeyspaceState>>, seq: Seq) {
        let mut live = self.live.write();
        live.changed_seq = seq;
        let map = Arc::make_mut(&mut live.map);
        let before = match keyspace {
            Some(keyspace) => {
                keyspace.set_created_seq(seq);
                map.insert(name.to_owned(), keyspace)
            }
            None => map.remove(name),
        };
        if let Some(before) = before {
            before.set_dropped_seq(seq);
            self.dropped.lock().push(before);
        }
    }

    /// Takes dropped keyspaces whose drop is durable and that no view shows.
    pub(crate) fn take_reclaimable(&self, durable: Seq, oldest_view: Option<Seq>) -> Vec<Arc<KeyspaceState>> {
        let mut dead = Vec::new();
        self.dropped.lock().retain(|keyspace| {
            let stays = keyspace.dropped_seq() > durable
                || oldest_view.is_some_and(|view| view < keyspace.dropped_seq());
            if !stays {
                dead.push(Arc::clone(keyspace));
            }
            stays
        });
        dead
    }
}

/// Whether a keyspace can have this name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        let why = format!("{} bytes; must be 1 to {MAX_NAME}", name.len());
        return Err(Error::InvalidArgument { argument: "keyspace name", reason: why });
    }
    Ok(())
}

impl Store {
    pub(super) fn factory(&self, name: &str) -> Option<&Arc<dyn EngineFactory>> {
        self.factories.iter().find(|f| f.name() == name)
    }

    /// The keyspace `name`; created as `choice` says (of the engine `default`, if it does not) if
    /// there is none.
    pub fn keyspace(
        &self,
        name: &str,
        choice: EngineChoice<'_>,
        default: &str,
    ) -> Result<Arc<KeyspaceState>> {
        self.check_open()?;
        if let Some(keyspace) = self.existing_with_choice(name, choice)? {
            return Ok(keyspace);
        }
        self.check_writable()?;
        check_name(name)?;
        let _changing = self.catalog.lock_changes();
        if let Some(keyspace) = self.existing_with_choice(name, choice)? {
            return Ok(keyspace);
        }
        self.commit_new_keyspace(name, choice.engine.unwrap_or(default), choice.options, None)
    }

    /// Creates the keyspace `name` durably.
    ///
    /// # Errors
    ///
    /// [`Error::KeyspaceExists`] if there is one; else as [`Store::keyspace`].
    pub fn create_keyspace(
        &self,
        name: &str,
        choice: EngineChoice<'_>,
        default: &str,
    ) -> Result<Arc<KeyspaceState>> {
        self.check_open()?;
        self.check_writable()?;
        check_name(name)?;
        let _changing = self.catalog.lock_changes();
        match self.catalog.map().get(name) {
            Some(_) => Err(Error::KeyspaceExists { name: name.to_owned() }),
            None => self.commit_new_keyspace(name, choice.engine.unwrap_or(default), choice.options, None),
        }
    }

    fn existing_with_choice(
        &self,
        name: &str,
        choice: EngineChoice<'_>,
    ) -> Result<Option<Arc<KeyspaceState>>> {
        let Some(keyspace) = self.catalog.map().get(name).cloned() else { return Ok(None) };
        self.check_choice(&keyspace, choice)?;
        Ok(Some(keyspace))
    }

    /// Refuses what is asked for of `kept`'s engine and options, unless that is what they are.
    pub(super) fn check_choice(&self, keyspace: &KeyspaceState, choice: EngineChoice<'_>) -> Result<()> {
        let (name, engine) = (keyspace.name().to_owned(), keyspace.engine_name());
        if let Some(asked) = choice.engine.filter(|asked| *asked != engine) {
            return Err(Error::EngineMismatch {
                name,
                found: engine.to_owned(),
                requested: asked.to_owned(),
            });
        }
        let specs = self.option_specs(engine);
        choice.options.check(engine, specs)?;
        match keyspace.options().conflict(choice.options, specs) {
            Some(spec) => {
                let with =
                    |options: &EngineOptions| format!("{engine} {}={}", spec.name, options.value(spec));
                Err(Error::EngineMismatch {
                    name,
                    found: with(keyspace.options()),
                    requested: with(choice.options),
                })
            }
            None => Ok(()),
        }
    }

    /// The engine of this name, if it has such options.
    pub(super) fn factory_with_options(
        &self,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<&Arc<dyn EngineFactory>> {
        let Some(factory) = self.factory(engine) else {
            let known: Vec<_> = self.factories.iter().map(|f| f.name()).collect();
            let why = format!("there is no engine {engine:?}; the engines are {}", known.join(", "));
            return Err(Error::InvalidArgument { argument: "engine", reason: why });
        };
        options.check(engine, factory.options())?;
        Ok(factory)
    }

    /// The options of an engine.
    pub(super) fn option_specs(&self, engine: &str) -> &'static [OptionSpec] {
        self.factory(engine).map_or(&[], |factory| factory.options())
    }

    /// Commits, durably, that `name` is a new keyspace, or what is left of `cleared`. The caller
    /// holds `change_lock`.
    fn commit_new_keyspace(
        &self,
        name: &str,
        engine: &str,
        options: &EngineOptions,
        cleared: Option<&KeyspaceState>,
    ) -> Result<Arc<KeyspaceState>> {
        let new = Arc::new(self.new_keyspace_state(name, engine, options)?);
        self.publish_keyspace(&new, cleared)?;
        Ok(new)
    }

    /// A keyspace with a number of its own, unknown to everybody, that is to have `name`.
    pub(super) fn new_keyspace_state(
        &self,
        name: &str,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<KeyspaceState> {
        let factory = self.factory_with_options(engine, options)?;
        if !options.is_empty() {
            self.write_options_to_root()?;
        }
        let id = self.catalog.new_id();
        let made = factory.create(id, options, &self.context);
        Ok(KeyspaceState::new(id, name, made, options.clone(), Seq::LATEST))
    }

    /// Before a record has options both slots of ROOT say so: a build that knows of none is told
    /// there that it is too old.
    fn write_options_to_root(&self) -> Result<()> {
        let mut m = self.maintenance.lock();
        if self.catalog.has_options() {
            return Ok(());
        }
        self.catalog.has_options.store(true, Ordering::Release);
        let written = (0..2).try_for_each(|_| self.write_root(&mut m, false));
        if written.is_err() {
            self.catalog.has_options.store(false, Ordering::Release);
        }
        written
    }

    /// Commits, durably, that `new` has its name, maybe in place of `before`, whose handles go on
    /// with it. The caller holds `change_lock`.
    pub(super) fn publish_keyspace(
        &self,
        new: &Arc<KeyspaceState>,
        before: Option<&KeyspaceState>,
    ) -> Result<()> {
        if let Some(before) = before {
            new.set_predecessor(before);
        }
        let entry = encode_entry(new.id(), new.engine_name(), new.options());
        let (key, content) = (new.name().as_bytes(), RecordContent::Put(&entry));
        let record = Record { keyspace: KeyspaceId::CATALOG, key, content };
        let seq = self.commit_catalog(&[record], |seq| self.catalog.publish(new, seq))?;
        self.acknowledge_unreported(seq, Durability::Sync)
    }

    /// The keyspace `name` if there is one.
    pub fn find_keyspace(&self, name: &str) -> Result<Option<Arc<KeyspaceState>>> {
        self.check_open()?;
        Ok(self.catalog.map().get(name).cloned())
    }

    /// What has the name of a cleared keyspace now; an error if it was dropped.
    pub fn successor(&self, keyspace: &KeyspaceState) -> Result<Arc<KeyspaceState>> {
        self.check_open()?;
        // A dropped keyspace that was created again is another one: its handles do not come back to
        // life.
        let cleared = |new: &Arc<KeyspaceState>| new.is_successor_of(keyspace.id());
        let found = self.catalog.map().get(keyspace.name()).cloned().filter(cleared);
        found.ok_or_else(|| Error::KeyspaceNotFound { name: keyspace.name().to_owned() })
    }

    /// Replaces `kept` by an empty keyspace of the same name, engine and options.
    pub fn clear_keyspace(&self, keyspace: &Arc<KeyspaceState>) -> Result<Arc<KeyspaceState>> {
        self.check_writable()?;
        let _changing = self.catalog.lock_changes();
        if keyspace.is_dropped() {
            return Err(Error::KeyspaceNotFound { name: keyspace.name().to_owned() });
        }
        self.commit_new_keyspace(keyspace.name(), keyspace.engine_name(), keyspace.options(), Some(keyspace))
    }

    /// Drops the keyspace `name`. False if there is none.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.check_writable()?;
        let _changing = self.catalog.lock_changes();
        if !self.catalog.map().contains_key(name) {
            return Ok(false);
        }
        let record =
            Record { keyspace: KeyspaceId::CATALOG, key: name.as_bytes(), content: RecordContent::Remove };
        let seq = self.commit_catalog(&[record], |seq| self.catalog.set(name, None, seq))?;
        self.acknowledge_unreported(seq, Durability::Sync)?;
        self.signals.wake();
        Ok(true)
    }

    /// The keyspaces, by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let describe = |keyspace: &Arc<KeyspaceState>| KeyspaceInfo {
            name: keyspace.name().to_owned(),
            id: keyspace.id(),
            engine: keyspace.engine_name(),
            options: keyspace.options().clone(),
            damage: keyspace.engine().err().map(|e| e.to_string()),
        };
        self.catalog.map().values().map(describe).collect()
    }
}
