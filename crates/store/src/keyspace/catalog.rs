//! # Catalog: the list of keyspaces, changed by commits
//!
//! Creating, clearing and dropping a keyspace are synced commits in the journal. ROOT contains the
//! catalog as of its floor.
//!
//! Clearing replaces a keyspace by a new one of the same name in one record. A keyspace that was
//! filled without a name (`unpublished`) is published by the same record, maybe with another
//! engine. The record contains the options that were chosen for the engine, if any. Before the
//! first such record, both slots of ROOT get the format version that knows options. A dropped
//! keyspace is kept until the drop is durable and no view shows it (commit.md R17, scenario 12).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::expiry::index::{IndexPlan, index_name, is_hidden_name};
use crate::expiry::{check_combination, value_form, with_keyspace_options};
use crate::{EngineChoice, KeyspaceState, Store};
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_engine::decoding::with_compression;
use sheaf_log::compression::Codec;
use sheaf_log::options::{COMPRESSION, EngineOptions, OptionSpec};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::root::{self, CatalogEntry};
use sheaf_log::types::{Durability, KeyspaceId, Seq};
use sheaf_platform::codec::{FieldReader, FieldWriter, utf8};
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheaf_platform::sync::{Mutex, MutexGuard, RwLock};
use smallvec::{SmallVec, smallvec};

/// Entry in a list of keyspaces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Name of the keyspace.
    pub name: String,
    /// Number of the keyspace, used in its file names; never reused.
    pub id: KeyspaceId,
    /// Name of the engine.
    pub engine: &'static str,
    /// Engine options that were set.
    pub options: EngineOptions,
    /// Description of the damage, if the keyspace cannot be used.
    pub damage: Option<String>,
}

/// Longest name in bytes.
const MAX_NAME: usize = 255;

/// Live keyspaces by name.
pub(crate) type KeyspaceMap = BTreeMap<String, Arc<KeyspaceState>>;

/// Live keyspaces and their last change.
#[derive(Debug, Default)]
struct LiveKeyspaces {
    map: Arc<KeyspaceMap>,
    /// Last commit that changed them; zero if none did since the opening.
    changed_seq: Seq,
}

/// Present and dropped keyspaces.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    live: RwLock<LiveKeyspaces>,
    /// Keyspaces without a name so far (`unpublished`).
    unpublished: Mutex<Vec<Arc<KeyspaceState>>>,
    dropped: Mutex<Vec<Arc<KeyspaceState>>>,
    next_id: AtomicU32,
    /// Whether a keyspace was ever created with options.
    has_options: AtomicBool,
    /// Serializes changes.
    change_lock: Mutex<()>,
}

/// Reason that a catalog record names a keyspace. Records have it while changes are retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogCause {
    /// The name is new.
    Created = 1,
    /// The keyspace is empty and replaces another one.
    Cleared = 2,
    /// The keyspace has the pairs of a bulk load.
    Loaded = 3,
    /// The keyspace has the pairs of the one that it replaces.
    Converted = 4,
}

impl CatalogCause {
    const ALL: [CatalogCause; 4] =
        [CatalogCause::Created, CatalogCause::Cleared, CatalogCause::Loaded, CatalogCause::Converted];
}

/// Encodes the value of a creation record; the key is the name.
pub(crate) fn encode_entry(
    id: KeyspaceId,
    engine: &str,
    options: &EngineOptions,
    cause: Option<CatalogCause>,
) -> Vec<u8> {
    let mut w = FieldWriter::default();
    w.u32(id.0);
    w.bytes(engine.as_bytes());
    if !options.is_empty() || cause.is_some() {
        options.encode(&mut w);
    }
    cause.into_iter().for_each(|cause| w.u8(cause as u8));
    w.0
}

pub(crate) fn entry_of(keyspace: &KeyspaceState, cause: Option<CatalogCause>) -> Vec<u8> {
    encode_entry(keyspace.id(), keyspace.engine_name(), keyspace.options(), cause)
}

pub(crate) fn catalog_record<'a>(name: &'a str, content: RecordContent<'a>) -> Record<'a> {
    Record { keyspace: KeyspaceId::CATALOG, key: name.as_bytes(), content }
}

/// Content of a catalog record: the name, the entry or `None` if the keyspace is dropped, and the
/// cause, if the record has it.
type DecodedEntry = (String, Option<CatalogEntry>, Option<CatalogCause>);

/// Decodes a catalog record.
pub(crate) fn decode_entry(record: &Record<'_>) -> Result<DecodedEntry, Damage> {
    let name = utf8("name", record.key)?.to_owned();
    let value = match record.content {
        RecordContent::Put(value) => value,
        RecordContent::RemoveRange(_) => {
            return Err(Damage::bad_field("op", "a put or a removal of one entry", 5));
        }
        RecordContent::Blob(_) | RecordContent::Remove => return Ok((name, None, None)),
    };
    let mut r = FieldReader::new(value);
    let id = root::keyspace(&mut r)?;
    let engine = utf8("engine", r.bytes()?)?.to_owned();
    let options = if r.rest().is_empty() { EngineOptions::default() } else { EngineOptions::decode(&mut r)? };
    let mut cause = None;
    if !r.rest().is_empty() {
        let code = r.u8()?;
        cause = CatalogCause::ALL.into_iter().find(|cause| *cause as u8 == code);
        if cause.is_none() {
            return Err(Damage::bad_field("cause", 1..=CatalogCause::ALL.len() as u64, u64::from(code)));
        }
    }
    r.finish()?;
    Ok((name.clone(), Some(CatalogEntry { id, name, engine, options }), cause))
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

    /// Returns the live keyspaces.
    pub(crate) fn map(&self) -> Arc<KeyspaceMap> {
        Arc::clone(&self.live.read().map)
    }

    /// Returns the live keyspaces and the last commit that changed them.
    pub(crate) fn map_and_changed_seq(&self) -> (Arc<KeyspaceMap>, Seq) {
        let live = self.live.read();
        (Arc::clone(&live.map), live.changed_seq)
    }

    /// Returns the live and the unpublished keyspaces.
    pub(crate) fn live_and_unpublished(&self) -> Vec<Arc<KeyspaceState>> {
        // In this order, a keyspace that is published concurrently is found at least once.
        let mut present = self.unpublished.lock().clone();
        present.extend(self.map().values().cloned());
        present
    }

    /// Returns all keyspaces to which log entries may belong: live, dropped and unpublished.
    pub(crate) fn all(&self) -> Vec<Arc<KeyspaceState>> {
        let mut all = self.live_and_unpublished();
        all.extend(self.dropped.lock().iter().cloned());
        // A keyspace that was published or dropped concurrently was found twice.
        all.sort_by_key(|keyspace| keyspace.id());
        all.dedup_by_key(|keyspace| keyspace.id());
        all
    }

    /// Registers an unpublished keyspace: log entries may belong to it from now on.
    pub(crate) fn register_unpublished(&self, keyspace: Arc<KeyspaceState>) {
        self.unpublished.lock().push(keyspace);
    }

    /// Gives a keyspace its name at commit `seq`. No commit may run concurrently.
    pub(crate) fn publish(&self, keyspace: &Arc<KeyspaceState>, seq: Seq) {
        self.set(&keyspace.name(), Some(Arc::clone(keyspace)), seq);
        self.unpublished.lock().retain(|other| !Arc::ptr_eq(other, keyspace));
    }

    /// Drops an unpublished keyspace at commit `seq`. No commit may run concurrently.
    pub(crate) fn discard(&self, keyspace: &Arc<KeyspaceState>, seq: Seq) {
        keyspace.set_dropped_seq(seq);
        self.dropped.lock().push(Arc::clone(keyspace));
        self.unpublished.lock().retain(|other| !Arc::ptr_eq(other, keyspace));
    }

    /// Returns an id that no keyspace had, as far as ROOT and the journal know.
    pub(crate) fn new_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Prevents other threads from creating, replacing or dropping keyspaces while the guard is
    /// held.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change_lock.lock()
    }

    /// Returns whether a keyspace was ever created with options.
    pub(crate) fn has_options(&self) -> bool {
        self.has_options.load(Ordering::Acquire)
    }

    pub(crate) fn next_id(&self) -> KeyspaceId {
        KeyspaceId(self.next_id.load(Ordering::Relaxed))
    }

    /// Returns the entries of ROOT for this floor.
    pub(crate) fn entries_at(&self, floor: Seq) -> Vec<CatalogEntry> {
        let mut entries: Vec<_> = self
            .all()
            .iter()
            .filter(|keyspace| keyspace.is_visible_at(floor))
            .map(|keyspace| CatalogEntry {
                id: keyspace.id(),
                name: keyspace.name_at(floor).to_string(), // (I1 of the names)
                engine: keyspace.engine_name().to_owned(),
                options: keyspace.options().clone(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    /// Assigns `name` to `keyspace`, or to none, at commit `seq`. No commit may run concurrently.
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

    /// Gives the keyspace `from` the name `to` at commit `seq`, and returns it. ROOT and views need
    /// no name before commit `needed`. No commit may run concurrently.
    pub(crate) fn rename(&self, from: &str, to: &str, seq: Seq, needed: Seq) -> Option<Arc<KeyspaceState>> {
        let mut live = self.live.write();
        live.changed_seq = seq;
        let map = Arc::make_mut(&mut live.map);
        let keyspace = map.remove(from)?;
        keyspace.names().add(to, seq, needed);
        map.insert(to.to_owned(), Arc::clone(&keyspace));
        Some(keyspace)
    }

    /// Takes the dropped keyspaces that no view shows and the drop of which is durable.
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

/// Checks that `keyspace` has the merge operator `requested`, or none.
pub(crate) fn check_operator(keyspace: &KeyspaceState, requested: Option<&str>) -> Result<()> {
    let found = keyspace.options().merge_operator();
    if found == requested {
        return Ok(());
    }
    let engine = keyspace.engine_name();
    let with = |operator: Option<&str>| match operator {
        Some(operator) => format!("{engine} merge={operator}"),
        None => format!("{engine} without a merge operator"),
    };
    let (name, found, requested) = (keyspace.name().to_string(), with(found), with(requested));
    Err(Error::EngineMismatch { name, found, requested })
}

/// Checks the options of a new keyspace of the engine.
///
/// # Errors
///
/// Returns [`Error::InvalidArgument`] for an unknown option, for a value or a combination that is
/// not allowed, and for a codec that this build lacks.
pub fn check_engine_options(factory: &dyn EngineFactory, options: &EngineOptions) -> Result<()> {
    options.check(factory.name(), &with_keyspace_options(factory.options()))?;
    check_combination(options)?;
    check_codec(options)
}

/// Checks that this build has the codec of `options`. A keyspace that exists opens without it.
fn check_codec(options: &EngineOptions) -> Result<()> {
    let codec = u8::try_from(options.value(&COMPRESSION)).ok().and_then(|id| Codec::from_id(id).ok());
    match codec.filter(|codec| !codec.is_available()) {
        None => Ok(()),
        Some(codec) => {
            let name = codec.name();
            let reason = format!("compression={name}: this build lacks the feature `{name}`");
            Err(Error::InvalidArgument { argument: "option", reason })
        }
    }
}

/// Checks the name of a keyspace that a user chose.
///
/// # Errors
///
/// Returns [`Error::InvalidArgument`] if the name is empty, too long or reserved.
pub fn check_keyspace_name(name: &str) -> Result<()> {
    if is_hidden_name(name) {
        let why = "names that begin with \"\\0expiry:\" are reserved".to_owned();
        return Err(Error::InvalidArgument { argument: "keyspace name", reason: why });
    }
    if name.is_empty() || name.len() > MAX_NAME {
        let why = format!("{} bytes; must be 1 to {MAX_NAME}", name.len());
        return Err(Error::InvalidArgument { argument: "keyspace name", reason: why });
    }
    Ok(())
}

impl Store {
    pub(crate) fn factory(&self, name: &str) -> Option<&Arc<dyn EngineFactory>> {
        self.factories.iter().find(|f| f.name() == name)
    }

    /// Returns the keyspace `name`. If there is none, creates it as `choice` says; `default` is the
    /// engine if `choice` has none.
    ///
    /// # Errors
    ///
    /// Returns [`Error::EngineMismatch`] if the keyspace exists with another engine or option.
    /// Returns [`Error::InvalidArgument`] if the name, the engine or an option is not valid.
    /// Returns [`Error::ReadOnly`] if a read-only database does not have the keyspace. Returns
    /// [`Error::Closed`], [`Error::Poisoned`] and errors of the commit.
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
        check_keyspace_name(name)?;
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
    /// Returns [`Error::KeyspaceExists`] if there is one, and otherwise the errors of
    /// [`Store::keyspace`].
    pub fn create_keyspace(
        &self,
        name: &str,
        choice: EngineChoice<'_>,
        default: &str,
    ) -> Result<Arc<KeyspaceState>> {
        self.check_open()?;
        self.check_writable()?;
        check_keyspace_name(name)?;
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
        let Some(keyspace) = self.find_keyspace(name)? else { return Ok(None) };
        self.check_choice(&keyspace, choice)?;
        Ok(Some(keyspace))
    }

    /// Checks that `keyspace` has the engine and the options of `choice`.
    pub(crate) fn check_choice(&self, keyspace: &KeyspaceState, choice: EngineChoice<'_>) -> Result<()> {
        let (name, engine) = (keyspace.name().to_string(), keyspace.engine_name());
        if let Some(asked) = choice.engine.filter(|asked| *asked != engine) {
            return Err(Error::EngineMismatch {
                name,
                found: engine.to_owned(),
                requested: asked.to_owned(),
            });
        }
        let specs = self.option_specs(engine);
        choice.options.check(engine, &specs)?;
        if let Some(requested) = choice.options.merge_operator() {
            check_operator(keyspace, Some(requested))?;
        }
        match keyspace.options().conflict(choice.options, &specs) {
            Some(spec) => {
                let with = |options: &EngineOptions| {
                    format!("{engine} {}={}", spec.name, spec.value_text(options.value(spec)))
                };
                Err(Error::EngineMismatch {
                    name,
                    found: with(keyspace.options()),
                    requested: with(choice.options),
                })
            }
            None => Ok(()),
        }
    }

    /// Returns the engine of this name and checks that it has such options.
    pub(crate) fn factory_with_options(
        &self,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<&Arc<dyn EngineFactory>> {
        let Some(factory) = self.factory(engine) else {
            let known: Vec<_> = self.factories.iter().map(|f| f.name()).collect();
            let why = format!("there is no engine {engine:?}; the engines are {}", known.join(", "));
            return Err(Error::InvalidArgument { argument: "engine", reason: why });
        };
        check_engine_options(&**factory, options)?;
        Ok(factory)
    }

    /// Creates the engine of a keyspace. Its reads decode values if the keyspace has a codec.
    pub(crate) fn create_engine(
        &self,
        factory: &dyn EngineFactory,
        id: KeyspaceId,
        options: &EngineOptions,
    ) -> Arc<dyn Engine> {
        let engine = factory.create(id, options, &self.context);
        with_compression(engine, id, options, value_form(options).header_len, &self.context)
    }

    /// Returns the options of a keyspace of an engine.
    pub(crate) fn option_specs(&self, engine: &str) -> Vec<OptionSpec> {
        with_keyspace_options(self.factory(engine).map_or(&[], |factory| factory.options()))
    }

    /// Creates a keyspace by a durable commit; `cleared` is the keyspace that it replaces. The
    /// caller holds `change_lock`.
    fn commit_new_keyspace(
        &self,
        name: &str,
        engine: &str,
        options: &EngineOptions,
        cleared: Option<&KeyspaceState>,
    ) -> Result<Arc<KeyspaceState>> {
        let new = Arc::new(self.new_keyspace_state(name, engine, options)?);
        let index = self.new_index(name, engine, options)?.map_or(IndexPlan::Keep, IndexPlan::New);
        let cause = if cleared.is_some() { CatalogCause::Cleared } else { CatalogCause::Created };
        self.publish_keyspace(&new, cleared, &index, cause)?;
        Ok(new)
    }

    /// Returns a new keyspace with an id of its own, which is not registered or published yet.
    pub(crate) fn new_keyspace_state(
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
        let made = self.create_engine(&**factory, id, options);
        Ok(KeyspaceState::new(id, name, made, options.clone(), Seq::LATEST, &self.context))
    }

    /// Writes to both slots of ROOT that options exist, before a record has some. A build that does
    /// not know options then rejects the database.
    fn write_options_to_root(&self) -> Result<()> {
        let mut m = self.root.maintenance.lock();
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

    /// Publishes `new` under its name by a durable commit. `before` is the keyspace that it
    /// replaces: handles of it continue with `new`. The same commit publishes or drops the index of
    /// expiry times, as `plan` says. The caller holds `change_lock`.
    pub(crate) fn publish_keyspace(
        &self,
        new: &Arc<KeyspaceState>,
        before: Option<&KeyspaceState>,
        plan: &IndexPlan,
        cause: CatalogCause,
    ) -> Result<()> {
        if let Some(before) = before {
            new.set_predecessor(before);
        }
        let cause = self.changes.is_on().then_some(cause);
        let entry = entry_of(new, cause);
        let name = new.name();
        let hidden = index_name(&name);
        let is_dropped = self.plan_index(new, before, plan, &hidden);
        let index = match plan {
            IndexPlan::New(index) => Some((index, entry_of(index, cause))),
            IndexPlan::Keep | IndexPlan::Rebuild => None,
        };
        let of_index = match &index {
            Some((_, entry)) => Some(catalog_record(&hidden, RecordContent::Put(entry))),
            None => is_dropped.then(|| catalog_record(&hidden, RecordContent::Remove)),
        };
        let records: SmallVec<[Record<'_>; 2]> =
            [catalog_record(&name, RecordContent::Put(&entry))].into_iter().chain(of_index).collect();
        let seq = self.commit_catalog(&records, |seq| {
            self.catalog.publish(new, seq);
            self.note_keyspace_created(new, seq);
            match &index {
                Some((index, _)) => {
                    self.catalog.publish(index, seq);
                    self.note_keyspace_created(index, seq);
                }
                None if is_dropped => {
                    self.catalog.set(&hidden, None, seq);
                    self.note_keyspace_dropped(&hidden, seq);
                }
                None => {}
            }
        })?;
        self.acknowledge_unreported(seq, Durability::Sync)
    }

    /// Gives `new` its index before it is published. Returns whether the present index, which has
    /// the name `hidden`, must be dropped.
    fn plan_index(
        &self,
        new: &KeyspaceState,
        before: Option<&KeyspaceState>,
        plan: &IndexPlan,
        hidden: &str,
    ) -> bool {
        let has_index = || self.catalog.map().contains_key(hidden);
        let Some(expiry) = new.expiry() else { return !is_hidden_name(&new.name()) && has_index() };
        let kept = before.and_then(|before| before.expiry()?.index());
        match (plan, kept) {
            (IndexPlan::New(index), _) => expiry.set_index(Arc::clone(index)),
            (IndexPlan::Keep, Some(index)) => expiry.set_index(Arc::clone(index)),
            (IndexPlan::Keep, None) | (IndexPlan::Rebuild, _) => return has_index(),
        }
        self.expiry.next_due.store(0, Ordering::Release);
        false
    }

    /// Returns the keyspace `name` if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], or [`Error::Poisoned`] after a panic in a commit.
    pub fn find_keyspace(&self, name: &str) -> Result<Option<Arc<KeyspaceState>>> {
        self.check_open()?;
        Ok(self.catalog.map().get(name).filter(|_| !is_hidden_name(name)).cloned())
    }

    /// Returns the keyspace that replaced a cleared keyspace.
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if the keyspace was dropped. Returns [`Error::Closed`],
    /// or [`Error::Poisoned`] after a panic in a commit.
    pub fn successor(&self, keyspace: &KeyspaceState) -> Result<Arc<KeyspaceState>> {
        self.check_open()?;
        // A keyspace that was dropped and created again is another one: old handles stay invalid.
        let cleared = |new: &Arc<KeyspaceState>| new.is_successor_of(keyspace.id());
        let map = self.catalog.map();
        // The replacement may have got another name since.
        let found = map.get(&*keyspace.name()).filter(|new| cleared(new));
        let found = found.or_else(|| map.values().find(|new| cleared(new))).cloned();
        found.ok_or_else(|| Error::KeyspaceNotFound { name: keyspace.name().to_string() })
    }

    /// Replaces `keyspace` by an empty one of the same name, engine and options.
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if it was dropped or replaced already, and errors of the
    /// commit. Returns [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are
    /// not possible.
    pub fn clear_keyspace(&self, keyspace: &Arc<KeyspaceState>) -> Result<Arc<KeyspaceState>> {
        self.check_writable()?;
        let _changing = self.catalog.lock_changes();
        if keyspace.is_dropped() {
            return Err(Error::KeyspaceNotFound { name: keyspace.name().to_string() });
        }
        self.commit_new_keyspace(&keyspace.name(), keyspace.engine_name(), keyspace.options(), Some(keyspace))
    }

    /// Drops the keyspace `name`. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are not
    /// possible, and errors of the commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.check_writable()?;
        let _changing = self.catalog.lock_changes();
        if is_hidden_name(name) || !self.catalog.map().contains_key(name) {
            return Ok(false);
        }
        let hidden = index_name(name);
        let mut names: SmallVec<[&str; 2]> = smallvec![name];
        if self.catalog.map().contains_key(&hidden) {
            names.push(&hidden);
        }
        let records: SmallVec<[Record<'_>; 2]> =
            names.iter().map(|name| catalog_record(name, RecordContent::Remove)).collect();
        let seq = self.commit_catalog(&records, |seq| {
            names.iter().for_each(|name| self.catalog.set(name, None, seq));
            names.iter().for_each(|name| self.note_keyspace_dropped(name, seq));
        })?;
        self.acknowledge_unreported(seq, Durability::Sync)?;
        self.background.wake();
        Ok(true)
    }

    /// Returns the keyspaces in the order of their names.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let describe = |keyspace: &Arc<KeyspaceState>| KeyspaceInfo {
            name: keyspace.name().to_string(),
            id: keyspace.id(),
            engine: keyspace.engine_name(),
            options: keyspace.options().clone(),
            damage: keyspace.engine().err().map(|e| e.to_string()),
        };
        self.catalog
            .map()
            .values()
            .filter(|keyspace| !is_hidden_name(&keyspace.name()))
            .map(describe)
            .collect()
    }
}
