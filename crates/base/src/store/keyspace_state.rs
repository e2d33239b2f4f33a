//! # Kept: a keyspace as the store keeps it

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::change_tracker::ChangeTracker;
use crate::engine::Engine;
use crate::error::{Damage, Error, Result};
use crate::options::EngineOptions;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{KeyspaceId, LogId, Seq};
use crate::workload::WorkloadRecorder;

/// Damage that keeps a keyspace from being used.
#[derive(Clone, Debug)]
pub(crate) struct FileDamage {
    /// The damaged file.
    pub(crate) path: PathBuf,
    /// Where in it.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) what: Damage,
}

impl FileDamage {
    /// The error every call gets.
    pub(crate) fn to_error(&self) -> Error {
        Error::corrupt(&self.path, self.offset, self.what.clone())
    }

    /// Takes damage out of an error; any other error is passed on.
    pub(crate) fn from_error(error: Error) -> Result<FileDamage> {
        match error {
            Error::Corrupt { path, offset, damage: what } => Ok(FileDamage { path, offset, what }),
            other => Err(other),
        }
    }
}

/// What is asked for of a keyspace's engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineChoice<'a> {
    /// Its name, if that is not left open.
    pub engine: Option<&'a str>,
    /// What is chosen of its options.
    pub options: &'a EngineOptions,
}

impl<'a> EngineChoice<'a> {
    /// The engine and its options that are asked for: what is left open is as `before`, or else
    /// `default`. Another engine than `before` has none of its options.
    pub(super) fn resolve(
        self,
        before: Option<&'a KeyspaceState>,
        default: &'a str,
    ) -> (&'a str, EngineOptions) {
        let engine = self.engine.or(before.map(KeyspaceState::engine_name)).unwrap_or(default);
        match before.filter(|before| before.engine_name == engine) {
            Some(before) => (engine, self.options.or(&before.options)),
            None => (engine, self.options.clone()),
        }
    }
}

/// A keyspace: name, number, engine and its options, life.
pub struct KeyspaceState {
    id: KeyspaceId,
    name: String,
    engine_name: &'static str,
    options: EngineOptions,
    engine: std::result::Result<Arc<dyn Engine>, FileDamage>,
    log: LogId,
    /// What its engine says, once.
    blob_threshold: usize,
    /// The commit that created it.
    created_seq: AtomicU64,
    /// The commit that dropped it; `u64::MAX` while it lives.
    dropped_seq: AtomicU64,
    /// The keyspaces of the same name that this one took the place of, by a clearing or a
    /// replacement.
    predecessors: OnceLock<Vec<KeyspaceId>>,
    /// Who copies it.
    pub(super) change_tracker: ChangeTracker,
    /// Bytes of its newest image.
    pub(super) image_bytes: AtomicU64,
    /// What it is used for.
    workload: OnceLock<Arc<WorkloadRecorder>>,
}

impl KeyspaceState {
    pub(crate) fn new(
        id: KeyspaceId,
        name: &str,
        engine: Arc<dyn Engine>,
        options: EngineOptions,
        born: Seq,
    ) -> KeyspaceState {
        KeyspaceState {
            id,
            name: name.to_owned(),
            engine_name: engine.name(),
            options,
            log: engine.log(),
            blob_threshold: engine.blob_threshold(),
            engine: Ok(engine),
            created_seq: AtomicU64::new(born.0),
            dropped_seq: AtomicU64::new(u64::MAX),
            predecessors: OnceLock::new(),
            change_tracker: ChangeTracker::default(),
            image_bytes: AtomicU64::new(0),
            workload: OnceLock::new(),
        }
    }

    /// The same keyspace, unusable.
    pub(crate) fn with_damage(&self, broken: FileDamage) -> KeyspaceState {
        KeyspaceState {
            id: self.id,
            name: self.name.clone(),
            engine_name: self.engine_name,
            options: self.options.clone(),
            engine: Err(broken),
            log: self.log,
            blob_threshold: self.blob_threshold,
            created_seq: AtomicU64::new(self.created_seq.load(Ordering::Relaxed)),
            dropped_seq: AtomicU64::new(u64::MAX),
            predecessors: OnceLock::new(),
            change_tracker: ChangeTracker::default(),
            image_bytes: AtomicU64::new(0),
            workload: self.workload.clone(),
        }
    }

    /// It takes the place of `before`. Before it is published.
    pub(super) fn set_predecessor(&self, before: &KeyspaceState) {
        let all = before.predecessors.get().into_iter().flatten().copied();
        let _ = self.predecessors.set(all.chain([before.id]).collect());
        let is_same = self.engine_name == before.engine_name;
        self.set_workload(if is_same {
            Arc::clone(before.workload())
        } else {
            Arc::new(before.workload().for_new_engine())
        });
    }

    /// What it is used for.
    #[must_use]
    pub fn workload(&self) -> &Arc<WorkloadRecorder> {
        self.workload.get_or_init(Arc::default)
    }

    /// It goes on from there. Before it is used.
    pub(super) fn set_workload(&self, load: Arc<WorkloadRecorder>) {
        let _ = self.workload.set(load);
    }

    /// True if this one took the place of the keyspace `id`.
    pub(crate) fn is_successor_of(&self, id: KeyspaceId) -> bool {
        self.predecessors.get().is_some_and(|before| before.contains(&id))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> KeyspaceId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its engine.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine_name
    }

    /// What was chosen of its engine's options.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The log its commits go to.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Values of more bytes than this its engine wants staged.
    pub(crate) fn blob_threshold(&self) -> usize {
        self.blob_threshold
    }

    /// Its engine, or the damage that keeps it from working.
    pub fn engine(&self) -> Result<&Arc<dyn Engine>> {
        self.engine.as_ref().map_err(FileDamage::to_error)
    }

    /// The commit that created it.
    #[must_use]
    pub fn created_seq(&self) -> Seq {
        Seq(self.created_seq.load(Ordering::Acquire))
    }

    pub(crate) fn set_created_seq(&self, seq: Seq) {
        self.created_seq.store(seq.0, Ordering::Release);
    }

    /// No commit created it yet.
    pub(super) fn is_unpublished(&self) -> bool {
        self.created_seq() == Seq::LATEST
    }

    /// The commit that dropped it.
    #[must_use]
    pub fn dropped_seq(&self) -> Seq {
        Seq(self.dropped_seq.load(Ordering::Acquire))
    }

    pub(crate) fn set_dropped_seq(&self, seq: Seq) {
        self.dropped_seq.store(seq.0, Ordering::Release);
    }

    /// True once it was dropped, cleared or replaced.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.dropped_seq() != Seq(u64::MAX)
    }

    /// True if a view at `seq` shows it.
    #[must_use]
    pub fn is_visible_at(&self, seq: Seq) -> bool {
        self.created_seq() <= seq && seq < self.dropped_seq()
    }
}

impl std::fmt::Debug for KeyspaceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.id, self.engine_name)
    }
}
