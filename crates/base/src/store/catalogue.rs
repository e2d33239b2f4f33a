//! # Catalogue: keyspaces, created and dropped by commits
//!
//! A keyspace's creation, clearing and drop are synced commits in the journal; ROOT holds the catalogue
//! of its floor. A cleared keyspace is a new one of the same name: one record does both, and so it does for one that was made
//! beside it (`making`), maybe with another engine. What was chosen of the engine's options stands beside its name, if anything was:
//! before the first record that says so, both slots of ROOT have the version that knows of it. What was dropped is kept until that is durable and no view shows it (commit.md R17, scenario 12).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Choice, Kept, KeyspaceInfo, Store};
use crate::codec::{Reader, Writer};
use crate::engine::EngineFactory;
use crate::error::{Damage, Error, Result};
use crate::options::{EngineOptions, OptionSpec};
use crate::record::{Content, Record};
use crate::root::{self, KeyspaceEntry};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::types::{Durability, KeyspaceId, Seq};

/// Longest name in bytes.
const MAX_NAME: usize = 255;

/// Live keyspaces by name.
pub(crate) type Map = BTreeMap<String, Arc<Kept>>;

/// The live keyspaces.
#[derive(Debug, Default)]
struct Live {
    map: Arc<Map>,
    /// The commit that changed them last; zero if none has since the opening.
    changed: Seq,
}

/// The keyspaces there are and were.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    live: RwLock<Live>,
    /// Without a name so far: see `making`.
    making: Mutex<Vec<Arc<Kept>>>,
    dropped: Mutex<Vec<Arc<Kept>>>,
    next_id: AtomicU32,
    /// A keyspace was made with options, some time.
    has_options: AtomicBool,
    /// One change at a time.
    changing: Mutex<()>,
}

/// What a creation's record says beside the name.
pub(crate) fn encode_entry(id: KeyspaceId, engine: &str, options: &EngineOptions) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(id.0);
    w.bytes(engine.as_bytes());
    if !options.is_empty() {
        options.encode(&mut w);
    }
    w.0
}

/// The keyspace that a catalogue record is about, and what it says of it (`None`: dropped).
pub(crate) fn decode_entry(record: &Record<'_>) -> Result<(String, Option<KeyspaceEntry>), Damage> {
    let bad = |field| Damage::BadField { field, value: record.key.len() as u64 };
    let name = String::from_utf8(record.key.to_vec()).map_err(|_| bad("name"))?;
    let Content::Put(value) = record.content else { return Ok((name, None)) };
    let mut r = Reader::new(value);
    let id = root::keyspace(&mut r)?;
    let engine = String::from_utf8(r.bytes()?.to_vec()).map_err(|_| bad("engine"))?;
    let options = if r.rest().is_empty() { EngineOptions::default() } else { EngineOptions::decode(&mut r)? };
    r.finish()?;
    Ok((name.clone(), Some(KeyspaceEntry { id, name, engine, options })))
}

impl Catalogue {
    pub(crate) fn new(map: Map, next_id: KeyspaceId, had_options: bool) -> Catalogue {
        let has_options = had_options || map.values().any(|kept| !kept.options().is_empty());
        Catalogue {
            live: RwLock::new(Live { map: Arc::new(map), changed: Seq::ZERO }),
            has_options: AtomicBool::new(has_options),
            next_id: AtomicU32::new(next_id.0),
            ..Catalogue::default()
        }
    }

    /// The live ones.
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.live.read().map)
    }

    /// The live ones, and the commit that changed them last.
    pub(super) fn map_and_change(&self) -> (Arc<Map>, Seq) {
        let live = self.live.read();
        (Arc::clone(&live.map), live.changed)
    }

    /// The live ones, and those in the making.
    pub(crate) fn present(&self) -> Vec<Arc<Kept>> {
        // In this order: what is published meanwhile is found in one of them.
        let mut present = self.making.lock().clone();
        present.extend(self.map().values().cloned());
        present
    }

    /// All that entries in logs may belong to, live, dropped, or in the making.
    pub(crate) fn all(&self) -> Vec<Arc<Kept>> {
        let mut all = self.present();
        all.extend(self.dropped.lock().iter().cloned());
        // Who was published or dropped between two of the looks was seen twice.
        all.sort_by_key(|kept| kept.id());
        all.dedup_by_key(|kept| kept.id());
        all
    }

    /// From now on entries in logs may belong to it.
    pub(super) fn enroll(&self, kept: Arc<Kept>) {
        self.making.lock().push(kept);
    }

    /// While no commit runs: it has its name from commit `seq` on.
    pub(super) fn publish(&self, kept: &Arc<Kept>, seq: Seq) {
        self.set(kept.name(), Some(Arc::clone(kept)), seq);
        self.making.lock().retain(|other| !Arc::ptr_eq(other, kept));
    }

    /// While no commit runs, at commit `seq`: it will never have a name.
    pub(super) fn discard(&self, kept: &Arc<Kept>, seq: Seq) {
        kept.set_died(seq);
        self.dropped.lock().push(Arc::clone(kept));
        self.making.lock().retain(|other| !Arc::ptr_eq(other, kept));
    }

    /// A number that no keyspace ever had, as far as ROOT and the journal know.
    pub(super) fn new_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// No keyspace is created, replaced or dropped while this is held.
    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Whether a keyspace was made with options, some time.
    pub(crate) fn has_options(&self) -> bool {
        self.has_options.load(Ordering::Acquire)
    }

    pub(crate) fn next_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.load(Ordering::Relaxed))
    }

    /// What ROOT says with this floor.
    pub(crate) fn as_of(&self, floor: Seq) -> Vec<KeyspaceEntry> {
        let mut entries: Vec<_> = self
            .all()
            .iter()
            .filter(|kept| kept.is_seen_by(floor))
            .map(|kept| KeyspaceEntry {
                id: kept.id(),
                name: kept.name().to_owned(),
                engine: kept.engine_name().to_owned(),
                options: kept.options().clone(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    /// While no commit runs: `name` is `kept` from commit `seq` on (`None`: nothing).
    fn set(&self, name: &str, kept: Option<Arc<Kept>>, seq: Seq) {
        let mut live = self.live.write();
        live.changed = seq;
        let map = Arc::make_mut(&mut live.map);
        let before = match kept {
            Some(kept) => {
                kept.set_born(seq);
                map.insert(name.to_owned(), kept)
            }
            None => map.remove(name),
        };
        if let Some(before) = before {
            before.set_died(seq);
            self.dropped.lock().push(before);
        }
    }

    /// Takes dropped keyspaces whose drop is durable and that no view shows.
    pub(crate) fn take_dead(&self, durable: Seq, oldest_view: Option<Seq>) -> Vec<Arc<Kept>> {
        let mut dead = Vec::new();
        self.dropped.lock().retain(|kept| {
            let stays = kept.died() > durable || oldest_view.is_some_and(|view| view < kept.died());
            if !stays {
                dead.push(Arc::clone(kept));
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
        return Err(Error::Invalid { what: "keyspace name", why });
    }
    Ok(())
}

impl Store {
    pub(super) fn factory(&self, name: &str) -> Option<&Arc<dyn EngineFactory>> {
        self.factories.iter().find(|f| f.name() == name)
    }

    /// The keyspace `name`; created as `choice` says (of the engine `default`, if it does not) if there is none.
    pub fn keyspace(&self, name: &str, choice: Choice<'_>, default: &str) -> Result<Arc<Kept>> {
        self.check_open()?;
        if let Some(kept) = self.existing_as(name, choice)? {
            return Ok(kept);
        }
        self.check_writable()?;
        check_name(name)?;
        let _changing = self.catalogue.changing();
        if let Some(kept) = self.existing_as(name, choice)? {
            return Ok(kept);
        }
        self.put_keyspace(name, choice.engine.unwrap_or(default), choice.options, None)
    }

    /// Creates the keyspace `name` durably.
    ///
    /// # Errors
    ///
    /// [`Error::KeyspaceExists`] if there is one; else as [`Store::keyspace`].
    pub fn create_keyspace(&self, name: &str, choice: Choice<'_>, default: &str) -> Result<Arc<Kept>> {
        self.check_open()?;
        self.check_writable()?;
        check_name(name)?;
        let _changing = self.catalogue.changing();
        match self.catalogue.map().get(name) {
            Some(_) => Err(Error::KeyspaceExists { name: name.to_owned() }),
            None => self.put_keyspace(name, choice.engine.unwrap_or(default), choice.options, None),
        }
    }

    fn existing_as(&self, name: &str, choice: Choice<'_>) -> Result<Option<Arc<Kept>>> {
        let Some(kept) = self.catalogue.map().get(name).cloned() else { return Ok(None) };
        self.check_choice(&kept, choice)?;
        Ok(Some(kept))
    }

    /// Refuses what is asked for of `kept`'s engine and options, unless that is what they are.
    pub(super) fn check_choice(&self, kept: &Kept, choice: Choice<'_>) -> Result<()> {
        let (name, engine) = (kept.name().to_owned(), kept.engine_name());
        if let Some(asked) = choice.engine.filter(|asked| *asked != engine) {
            return Err(Error::EngineMismatch { name, found: engine.to_owned(), asked: asked.to_owned() });
        }
        let specs = self.specs(engine);
        choice.options.check(engine, specs)?;
        match kept.options().conflict(choice.options, specs) {
            Some(spec) => {
                let with =
                    |options: &EngineOptions| format!("{engine} {}={}", spec.name, options.value(spec));
                Err(Error::EngineMismatch { name, found: with(kept.options()), asked: with(choice.options) })
            }
            None => Ok(()),
        }
    }

    /// The engine of this name, if it has such options.
    pub(super) fn fit_factory(
        &self,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<&Arc<dyn EngineFactory>> {
        let Some(factory) = self.factory(engine) else {
            let known: Vec<_> = self.factories.iter().map(|f| f.name()).collect();
            let why = format!("there is no engine {engine:?}; the engines are {}", known.join(", "));
            return Err(Error::Invalid { what: "engine", why });
        };
        options.check(engine, factory.options())?;
        Ok(factory)
    }

    /// The options of an engine.
    pub(super) fn specs(&self, engine: &str) -> &'static [OptionSpec] {
        self.factory(engine).map_or(&[], |factory| factory.options())
    }

    /// Commits, durably, that `name` is a new keyspace, or what is left of `cleared`. The caller holds
    /// `changing`.
    fn put_keyspace(
        &self,
        name: &str,
        engine: &str,
        options: &EngineOptions,
        cleared: Option<&Kept>,
    ) -> Result<Arc<Kept>> {
        let new = Arc::new(self.unnamed(name, engine, options)?);
        self.give_name(&new, cleared)?;
        Ok(new)
    }

    /// A keyspace with a number of its own, unknown to everybody, that is to have `name`.
    pub(super) fn unnamed(&self, name: &str, engine: &str, options: &EngineOptions) -> Result<Kept> {
        let factory = self.fit_factory(engine, options)?;
        if !options.is_empty() {
            self.announce_options()?;
        }
        let id = self.catalogue.new_id();
        let made = factory.create(id, options, &self.ground);
        Ok(Kept::new(id, name, made, options.clone(), Seq::LATEST))
    }

    /// Before a record has options both slots of ROOT say so: a build that knows of none is told there that it is too old.
    fn announce_options(&self) -> Result<()> {
        let mut m = self.maintenance.lock();
        if self.catalogue.has_options() {
            return Ok(());
        }
        self.catalogue.has_options.store(true, Ordering::Release);
        let written = (0..2).try_for_each(|_| self.write_root(&mut m, false));
        if written.is_err() {
            self.catalogue.has_options.store(false, Ordering::Release);
        }
        written
    }

    /// Commits, durably, that `new` has its name, maybe in place of `before`, whose handles go on with it. The caller
    /// holds `changing`.
    pub(super) fn give_name(&self, new: &Arc<Kept>, before: Option<&Kept>) -> Result<()> {
        if let Some(before) = before {
            new.continue_from(before);
        }
        let entry = encode_entry(new.id(), new.engine_name(), new.options());
        let (key, content) = (new.name().as_bytes(), Content::Put(&entry));
        let record = Record { keyspace: KeyspaceId::CATALOGUE, key, content };
        let seq = self.commit_catalogue(&[record], |seq| self.catalogue.publish(new, seq))?;
        self.acknowledge_quietly(seq, Durability::Sync)
    }

    /// The keyspace `name` if there is one.
    pub fn existing(&self, name: &str) -> Result<Option<Arc<Kept>>> {
        self.check_open()?;
        Ok(self.catalogue.map().get(name).cloned())
    }

    /// What has the name of a cleared keyspace now; an error if it was dropped.
    pub fn successor(&self, kept: &Kept) -> Result<Arc<Kept>> {
        self.check_open()?;
        // A dropped keyspace that was created again is another one: its handles do not come back to life.
        let cleared = |new: &Arc<Kept>| new.continues(kept.id());
        let found = self.catalogue.map().get(kept.name()).cloned().filter(cleared);
        found.ok_or_else(|| Error::NoKeyspace { name: kept.name().to_owned() })
    }

    /// Replaces `kept` by an empty keyspace of the same name, engine and options.
    pub fn clear_keyspace(&self, kept: &Arc<Kept>) -> Result<Arc<Kept>> {
        self.check_writable()?;
        let _changing = self.catalogue.changing();
        if kept.is_gone() {
            return Err(Error::NoKeyspace { name: kept.name().to_owned() });
        }
        self.put_keyspace(kept.name(), kept.engine_name(), kept.options(), Some(kept))
    }

    /// Drops the keyspace `name`. False if there is none.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.check_writable()?;
        let _changing = self.catalogue.changing();
        if !self.catalogue.map().contains_key(name) {
            return Ok(false);
        }
        let record =
            Record { keyspace: KeyspaceId::CATALOGUE, key: name.as_bytes(), content: Content::Remove };
        let seq = self.commit_catalogue(&[record], |seq| self.catalogue.set(name, None, seq))?;
        self.acknowledge_quietly(seq, Durability::Sync)?;
        self.signals.wake();
        Ok(true)
    }

    /// The keyspaces, by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let describe = |kept: &Arc<Kept>| KeyspaceInfo {
            name: kept.name().to_owned(),
            id: kept.id(),
            engine: kept.engine_name(),
            options: kept.options().clone(),
            damage: kept.engine().err().map(|e| e.to_string()),
        };
        self.catalogue.map().values().map(describe).collect()
    }
}
