//! # Keyspace state: a keyspace as the store manages it

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::expiry::KeyspaceExpiry;
use crate::expiry::keyspace_options_of;
use crate::keyspace::change_tracker::ChangeTracker;
use crate::keyspace::names::KeyspaceNames;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::Engine;
use sheaf_engine::workload::WorkloadRecorder;
use sheaf_log::compression::ValueCompression;
use sheaf_log::options::EngineOptions;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Damage that makes a keyspace unusable.
#[derive(Clone, Debug)]
pub(crate) struct FileDamage {
    /// The damaged file.
    pub(crate) path: PathBuf,
    /// Offset of the damage.
    pub(crate) offset: u64,
    /// The damaged structure.
    pub(crate) structure: &'static str,
    /// Kind of the damage.
    pub(crate) what: Damage,
}

impl FileDamage {
    /// Returns the error for every operation on the keyspace.
    pub(crate) fn to_error(&self) -> Error {
        Error::corrupt(&self.path, self.offset, self.structure, self.what.clone())
    }

    /// Extracts damage from an error; returns any other error.
    pub(crate) fn from_error(error: Error) -> Result<FileDamage> {
        match error {
            Error::Corrupt { path, offset, structure, damage: what } => {
                Ok(FileDamage { path, offset, structure, what: *what })
            }
            other => Err(other),
        }
    }
}

/// Engine and options that a caller requests for a keyspace.
#[derive(Clone, Copy, Debug)]
pub struct EngineChoice<'a> {
    /// Name of the engine; `None` accepts any.
    pub engine: Option<&'a str>,
    /// Chosen options.
    pub options: &'a EngineOptions,
}

impl<'a> EngineChoice<'a> {
    /// Returns the requested engine and options. Parts that are not chosen are those of `before`,
    /// or `default`. Options of the engine of `before` are not used for another engine.
    pub(crate) fn resolve(
        self,
        before: Option<&'a KeyspaceState>,
        default: &'a str,
    ) -> (&'a str, EngineOptions) {
        let engine = self.engine.or(before.map(KeyspaceState::engine_name)).unwrap_or(default);
        match before.filter(|before| before.engine_name == engine) {
            Some(before) => (engine, self.options.or(&before.options)),
            None => {
                let kept = before.map(|before| keyspace_options_of(&before.options)).unwrap_or_default();
                (engine, self.options.or(&kept))
            }
        }
    }
}

/// State of a keyspace: name, id, engine, options and lifetime.
pub struct KeyspaceState {
    id: KeyspaceId,
    names: KeyspaceNames,
    engine_name: &'static str,
    options: EngineOptions,
    engine: std::result::Result<Arc<dyn Engine>, FileDamage>,
    log: LogId,
    /// Threshold of the engine, cached.
    blob_threshold: usize,
    /// Codec of new values; `None` if the keyspace stores values as they are.
    compression: Option<Arc<ValueCompression>>,
    /// Commit that created it; [`Seq::LATEST`] while it is unpublished.
    created_seq: AtomicU64,
    /// Commit that dropped it; `u64::MAX` while it is live.
    dropped_seq: AtomicU64,
    /// Keyspaces of the same name that this one replaced directly or indirectly.
    predecessors: OnceLock<Vec<KeyspaceId>>,
    /// Copies of this keyspace that are running.
    pub(crate) change_tracker: ChangeTracker,
    /// Bytes of the newest image.
    pub(crate) image_bytes: AtomicU64,
    /// Statistics of its use.
    workload: OnceLock<Arc<WorkloadRecorder>>,
    /// Present if pairs can expire.
    expiry: Option<Box<KeyspaceExpiry>>,
}

impl KeyspaceState {
    pub(crate) fn new(
        id: KeyspaceId,
        name: &str,
        engine: Arc<dyn Engine>,
        options: EngineOptions,
        created_at: Seq,
        context: &EngineContext,
    ) -> KeyspaceState {
        KeyspaceState {
            expiry: KeyspaceExpiry::new(id, &options, context),
            id,
            names: KeyspaceNames::new(name),
            engine_name: engine.name(),
            options,
            log: engine.log(),
            blob_threshold: engine.blob_threshold(),
            compression: engine.compression().cloned(),
            engine: Ok(engine),
            created_seq: AtomicU64::new(created_at.0),
            dropped_seq: AtomicU64::new(u64::MAX),
            predecessors: OnceLock::new(),
            change_tracker: ChangeTracker::default(),
            image_bytes: AtomicU64::new(0),
            workload: OnceLock::new(),
        }
    }

    /// Returns a copy of the keyspace that is unusable.
    pub(crate) fn with_damage(&self, broken: FileDamage) -> KeyspaceState {
        KeyspaceState {
            id: self.id,
            names: self.names.clone(),
            engine_name: self.engine_name,
            options: self.options.clone(),
            engine: Err(broken),
            log: self.log,
            blob_threshold: self.blob_threshold,
            compression: self.compression.clone(),
            created_seq: AtomicU64::new(self.created_seq.load(Ordering::Relaxed)),
            dropped_seq: AtomicU64::new(u64::MAX),
            predecessors: OnceLock::new(),
            change_tracker: ChangeTracker::default(),
            image_bytes: AtomicU64::new(0),
            workload: self.workload.clone(),
            expiry: self.expiry.as_ref().map(|expiry| expiry.without_index()),
        }
    }

    /// Makes this keyspace the replacement of `before`. Called before it is published.
    pub(crate) fn set_predecessor(&self, before: &KeyspaceState) {
        self.names.copy_from(&before.names);
        let all = before.predecessors.get().into_iter().flatten().copied();
        let _ = self.predecessors.set(all.chain([before.id]).collect());
        let is_same = self.engine_name == before.engine_name;
        self.set_workload(if is_same {
            Arc::clone(before.workload())
        } else {
            Arc::new(before.workload().for_new_engine())
        });
    }

    /// Returns the statistics of its use.
    #[must_use]
    pub fn workload(&self) -> &Arc<WorkloadRecorder> {
        self.workload.get_or_init(Arc::default)
    }

    /// Sets statistics that are continued. Called before the keyspace is used.
    pub(crate) fn set_workload(&self, load: Arc<WorkloadRecorder>) {
        let _ = self.workload.set(load);
    }

    /// Returns true if this keyspace replaced the keyspace `id`.
    pub(crate) fn is_successor_of(&self, id: KeyspaceId) -> bool {
        self.predecessors.get().is_some_and(|before| before.contains(&id))
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> KeyspaceId {
        self.id
    }

    /// Returns the present name.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        self.names.newest()
    }

    /// Returns the name after commit `seq`.
    #[must_use]
    pub fn name_at(&self, seq: Seq) -> Arc<str> {
        self.names.at(seq)
    }

    pub(crate) fn names(&self) -> &KeyspaceNames {
        &self.names
    }

    /// Returns the name of the engine.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine_name
    }

    /// Returns the chosen options of the engine.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Returns the log of its commits.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Returns the size in bytes above which values are stored as blobs.
    pub(crate) fn blob_threshold(&self) -> usize {
        self.blob_threshold
    }

    /// Returns the codec of new values, if the keyspace has one. Its engine, its log records and
    /// its blobs then have values in their stored form.
    #[inline]
    pub(crate) fn compression(&self) -> Option<&Arc<ValueCompression>> {
        self.compression.as_ref()
    }

    /// Returns the engine.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if damage makes the keyspace unusable.
    pub fn engine(&self) -> Result<&Arc<dyn Engine>> {
        self.engine.as_ref().map_err(FileDamage::to_error)
    }

    /// Returns the expiry, if pairs can expire.
    #[inline]
    pub(crate) fn expiry(&self) -> Option<&KeyspaceExpiry> {
        self.expiry.as_deref()
    }

    /// Returns the commit that created the keyspace.
    #[must_use]
    pub fn created_seq(&self) -> Seq {
        Seq(self.created_seq.load(Ordering::Acquire))
    }

    pub(crate) fn set_created_seq(&self, seq: Seq) {
        self.created_seq.store(seq.0, Ordering::Release);
    }

    /// Returns true if no commit has created it yet.
    pub(crate) fn is_unpublished(&self) -> bool {
        self.created_seq() == Seq::LATEST
    }

    /// Returns the commit that dropped the keyspace; the maximum while it is live.
    #[must_use]
    pub fn dropped_seq(&self) -> Seq {
        Seq(self.dropped_seq.load(Ordering::Acquire))
    }

    pub(crate) fn set_dropped_seq(&self, seq: Seq) {
        self.dropped_seq.store(seq.0, Ordering::Release);
    }

    /// Returns true if it was dropped, cleared or replaced.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.dropped_seq() != Seq(u64::MAX)
    }

    /// Returns true if a view at `seq` shows it.
    #[must_use]
    pub fn is_visible_at(&self, seq: Seq) -> bool {
        self.created_seq() <= seq && seq < self.dropped_seq()
    }
}

impl std::fmt::Debug for KeyspaceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.name(), self.id, self.engine_name)
    }
}
