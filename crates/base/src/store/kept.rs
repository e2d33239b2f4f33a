//! # Kept: a keyspace as the store keeps it

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::watch::Watch;
use crate::engine::Engine;
use crate::error::{Damage, Error, Result};
use crate::load::Load;
use crate::options::EngineOptions;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{KeyspaceId, LogId, Seq};

/// Damage that keeps a keyspace from being used.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    /// The damaged file.
    pub(crate) path: PathBuf,
    /// Where in it.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) what: Damage,
}

impl Broken {
    /// The error every call gets.
    pub(crate) fn error(&self) -> Error {
        Error::corrupt(&self.path, self.offset, self.what.clone())
    }

    /// Takes damage out of an error; any other error is passed on.
    pub(crate) fn from_error(error: Error) -> Result<Broken> {
        match error {
            Error::Corrupt { path, offset, what } => Ok(Broken { path, offset, what }),
            other => Err(other),
        }
    }
}

/// What is asked for of a keyspace's engine.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Its name, if that is not left open.
    pub engine: Option<&'a str>,
    /// What is chosen of its options.
    pub options: &'a EngineOptions,
}

impl<'a> Choice<'a> {
    /// The engine and its options that are asked for: what is left open is as `before`, or else `default`. Another engine than
    /// `before` has none of its options.
    pub(super) fn completed(self, before: Option<&'a Kept>, default: &'a str) -> (&'a str, EngineOptions) {
        let engine = self.engine.or(before.map(Kept::engine_name)).unwrap_or(default);
        match before.filter(|before| before.engine_name == engine) {
            Some(before) => (engine, self.options.or(&before.options)),
            None => (engine, self.options.clone()),
        }
    }
}

/// A keyspace: name, number, engine and its options, life.
pub struct Kept {
    id: KeyspaceId,
    name: String,
    engine_name: &'static str,
    options: EngineOptions,
    engine: std::result::Result<Arc<dyn Engine>, Broken>,
    log: LogId,
    /// What its engine says, once.
    stages_above: usize,
    /// The commit that created it.
    born: AtomicU64,
    /// The commit that dropped it; `u64::MAX` while it lives.
    died: AtomicU64,
    /// The keyspaces of the same name that this one took the place of, by a clearing or a replacement.
    before: OnceLock<Vec<KeyspaceId>>,
    /// Who copies it.
    pub(super) watch: Watch,
    /// Bytes of its newest image.
    pub(super) image_bytes: AtomicU64,
    /// What it is used for.
    load: OnceLock<Arc<Load>>,
}

impl Kept {
    pub(crate) fn new(
        id: KeyspaceId,
        name: &str,
        engine: Arc<dyn Engine>,
        options: EngineOptions,
        born: Seq,
    ) -> Kept {
        Kept {
            id,
            name: name.to_owned(),
            engine_name: engine.name(),
            options,
            log: engine.log(),
            stages_above: engine.stages_above(),
            engine: Ok(engine),
            born: AtomicU64::new(born.0),
            died: AtomicU64::new(u64::MAX),
            before: OnceLock::new(),
            watch: Watch::default(),
            image_bytes: AtomicU64::new(0),
            load: OnceLock::new(),
        }
    }

    /// The same keyspace, unusable.
    pub(crate) fn broken(&self, broken: Broken) -> Kept {
        Kept {
            id: self.id,
            name: self.name.clone(),
            engine_name: self.engine_name,
            options: self.options.clone(),
            engine: Err(broken),
            log: self.log,
            stages_above: self.stages_above,
            born: AtomicU64::new(self.born.load(Ordering::Relaxed)),
            died: AtomicU64::new(u64::MAX),
            before: OnceLock::new(),
            watch: Watch::default(),
            image_bytes: AtomicU64::new(0),
            load: self.load.clone(),
        }
    }

    /// It takes the place of `before`. Before it is published.
    pub(super) fn continue_from(&self, before: &Kept) {
        let all = before.before.get().into_iter().flatten().copied();
        let _ = self.before.set(all.chain([before.id]).collect());
        let is_same = self.engine_name == before.engine_name;
        self.set_load(if is_same { Arc::clone(before.load()) } else { Arc::new(before.load().heir()) });
    }

    /// What it is used for.
    #[must_use]
    pub fn load(&self) -> &Arc<Load> {
        self.load.get_or_init(Arc::default)
    }

    /// It goes on from there. Before it is used.
    pub(super) fn set_load(&self, load: Arc<Load>) {
        let _ = self.load.set(load);
    }

    /// True if this one took the place of the keyspace `id`.
    pub(crate) fn continues(&self, id: KeyspaceId) -> bool {
        self.before.get().is_some_and(|before| before.contains(&id))
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
    pub(crate) fn stages_above(&self) -> usize {
        self.stages_above
    }

    /// Its engine, or the damage that keeps it from working.
    pub fn engine(&self) -> Result<&Arc<dyn Engine>> {
        self.engine.as_ref().map_err(Broken::error)
    }

    /// The commit that created it.
    #[must_use]
    pub fn born(&self) -> Seq {
        Seq(self.born.load(Ordering::Acquire))
    }

    pub(crate) fn set_born(&self, seq: Seq) {
        self.born.store(seq.0, Ordering::Release);
    }

    /// No commit created it yet.
    pub(super) fn is_unborn(&self) -> bool {
        self.born() == Seq::LATEST
    }

    /// The commit that dropped it.
    #[must_use]
    pub fn died(&self) -> Seq {
        Seq(self.died.load(Ordering::Acquire))
    }

    pub(crate) fn set_died(&self, seq: Seq) {
        self.died.store(seq.0, Ordering::Release);
    }

    /// True once it was dropped, cleared or replaced.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.died() != Seq(u64::MAX)
    }

    /// True if a view at `seq` shows it.
    #[must_use]
    pub fn is_seen_by(&self, seq: Seq) -> bool {
        self.born() <= seq && seq < self.died()
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.id, self.engine_name)
    }
}
