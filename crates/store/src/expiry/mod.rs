//! # Expiry: pairs that end at a time
//!
//! A keyspace that was created with the option `expiry` stores a header with the expiry time in
//! front of each value. Reads strip the header and treat an expired pair as absent. A background
//! step removes expired pairs (`maintenance::expiry`).
//!
//! ## Picture
//!
//! ```text
//!  facade ── value, expiry ──> commit.rs ── header + value ──> engine of the keyspace   ┐ one
//!                                       └── hint: time, key ─> engine of the hidden index ┘ commit
//!  facade <── value ── reads.rs <── header + value ── engine
//! ```
//!
//! A keyspace with a codec compresses the value behind the header. Reads that need only the time
//! use the stored form, so that they decode nothing and work in a build without the codec.
//!
//! ## Invariants
//!
//! 1. Every value of a keyspace with expiry begins with a valid header (`header.rs`), and no value
//!    of another keyspace does.
//! 2. Each pair with an expiry time has a hint in the index, unless the keyspace has no index in
//!    this opening. The next opening then builds a new one (`index.rs`). A hint proves nothing: an
//!    overwritten or removed pair leaves its hint, and removal checks the stored time.
//! 3. A read decides with one time: the present one, or that of the creation of its snapshot.
//!
//! ## Costs
//!
//! A keyspace without expiry: one branch for each call. With expiry: 12 bytes for each value, a
//! copy of the value for each put, and for each put with a time one record in the index.

pub(crate) mod commit;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod reads;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sheaf_engine::context::EngineContext;
use sheaf_log::compression::ValueForm;
use sheaf_log::options::{COMPRESSION, EXPIRY, EngineOptions, OptionDomain, OptionSpec};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::clock::{Clock, UnixMillis};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{KeyspaceState, Store};

/// Statistics of expiry since the opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpiryStats {
    /// Expired pairs that the background removed.
    pub removed_pairs: u64,
    /// Entries of the indexes that were dropped because their pair was overwritten or removed.
    pub dropped_hints: u64,
    /// Time at which the background has the next work, in milliseconds since 1970. `None` if no
    /// pair expires; zero if the time is not known yet.
    pub next_due_ms: Option<u64>,
    /// Time for which that work has been due.
    pub lag: Duration,
}

/// Latest expiry time: the end of the year 9999 (UTC).
pub const MAX_EXPIRY: UnixMillis = UnixMillis(253_402_300_799_999);

/// Name of the option that gives the pairs of a keyspace an expiry time.
pub const EXPIRY_OPTION: &str = EXPIRY.name;
/// Name of the option for the default time to live.
pub const TTL_OPTION: &str = "ttl-ms";

/// Options that a keyspace of any engine may have.
pub const KEYSPACE_OPTIONS: &[OptionSpec] = &[
    COMPRESSION,
    EXPIRY,
    OptionSpec {
        name: TTL_OPTION,
        min: 0,
        max: 100 * 365 * 24 * 3600 * 1000,
        domain: OptionDomain::Any,
        default: 0,
        help: "milliseconds after which a pair expires that is written without a time to live; \
               0: never; other values need expiry=on",
    },
];

/// Returns the specifications of all options of a keyspace whose engine has the options `engine`.
pub(crate) fn with_keyspace_options(engine: &[OptionSpec]) -> Vec<OptionSpec> {
    [engine, KEYSPACE_OPTIONS].concat()
}

/// Returns whether `options` give the pairs of a keyspace an expiry time.
pub(crate) fn has_expiry(options: &EngineOptions) -> bool {
    options.get(EXPIRY_OPTION) == Some(1)
}

/// Returns the form of the stored values of a keyspace with `options`.
pub(crate) fn value_form(options: &EngineOptions) -> ValueForm {
    let header_len = if has_expiry(options) { header::HEADER_LEN } else { 0 };
    ValueForm { header_len, is_compressed: options.value(&COMPRESSION) != 0 }
}

/// Returns the options in `options` that do not depend on the engine.
pub(crate) fn keyspace_options_of(options: &EngineOptions) -> EngineOptions {
    let mut kept = EngineOptions::default();
    for (name, value) in options.iter().filter(|(name, _)| KEYSPACE_OPTIONS.iter().any(|s| s.name == *name)) {
        kept.set(name, value);
    }
    if let Some(operator) = options.merge_operator() {
        kept.set_merge_operator(operator);
    }
    kept
}

/// Checks the combination of the options of a keyspace.
pub(crate) fn check_combination(options: &EngineOptions) -> Result<()> {
    if options.get(TTL_OPTION).unwrap_or(0) > 0 && !has_expiry(options) {
        let reason = format!("{TTL_OPTION} needs {EXPIRY_OPTION}=on");
        return Err(Error::InvalidArgument { argument: "option", reason });
    }
    Ok(())
}

/// Checks that a keyspace that replaces `before` has expiry only if `before` has. Streams of large
/// values that were begun in `before` contain the header, or do not.
pub(crate) fn check_same_expiry(before: &KeyspaceState, options: &EngineOptions) -> Result<()> {
    if before.expiry().is_some() == has_expiry(options) {
        return Ok(());
    }
    let reason = format!(
        "{EXPIRY_OPTION} of {:?} cannot change; dump the keyspace and load it into a new one",
        before.name()
    );
    Err(Error::InvalidArgument { argument: "option", reason })
}

/// Expiry time of a value that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    /// The default time to live of the keyspace after the commit, or never.
    #[default]
    Default,
    /// This time after the commit.
    After(Duration),
    /// At this time, which may be past.
    At(UnixMillis),
    /// Never.
    Never,
    /// The value has its header already, or its keyspace has no expiry. The time is written to the
    /// index, if there is one.
    Stored(Option<UnixMillis>),
}

/// Commit, and time of the clock, that a read sees.
#[derive(Clone, Copy, Debug)]
pub struct ReadPoint {
    /// Commit of a registered view, or [`Seq::LATEST`].
    pub seq: Seq,
    /// Time by which pairs have expired; `None` for the present time, or if no keyspace has expiry.
    now: Option<UnixMillis>,
}

impl ReadPoint {
    /// The newest state at the present time.
    pub const LATEST: ReadPoint = ReadPoint { seq: Seq::LATEST, now: None };

    /// Returns the same time at another commit.
    #[must_use]
    pub fn at_seq(self, seq: Seq) -> ReadPoint {
        ReadPoint { seq, ..self }
    }

    /// Returns whether this is the newest state.
    #[must_use]
    pub fn is_latest(self) -> bool {
        self.seq == Seq::LATEST
    }
}

/// Expiry of the whole store.
#[derive(Debug)]
pub(crate) struct StoreExpiry {
    /// Whether a keyspace has expiry. Set before the first such keyspace is visible.
    is_used: AtomicBool,
    /// No hint is due before this time, in milliseconds since 1970.
    pub(crate) next_due: AtomicU64,
    /// Pairs that the background removed.
    pub(crate) removed: AtomicU64,
    /// Hints that were dropped because their pair was overwritten or removed.
    pub(crate) dropped_hints: AtomicU64,
}

impl Default for StoreExpiry {
    fn default() -> StoreExpiry {
        StoreExpiry {
            is_used: AtomicBool::new(false),
            next_due: AtomicU64::new(u64::MAX),
            removed: AtomicU64::new(0),
            dropped_hints: AtomicU64::new(0),
        }
    }
}

impl StoreExpiry {
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Records that a keyspace with expiry is about to become visible.
    pub(crate) fn mark_used(&self) {
        self.is_used.store(true, Ordering::Release);
    }
}

impl Store {
    /// Returns the point of reads at commit `seq` of a view that was just registered.
    #[inline]
    #[must_use]
    pub fn read_point(&self, seq: Seq) -> ReadPoint {
        ReadPoint { seq, now: self.expiry.is_used().then(|| self.clock.unix_millis()) }
    }

    /// Returns the statistics of expiry.
    pub(crate) fn expiry_stats(&self) -> ExpiryStats {
        let next_due = match self.expiry.next_due.load(Ordering::Acquire) {
            u64::MAX => None,
            time => Some(time),
        };
        let late = next_due
            .filter(|time| *time > 0)
            .map_or(0, |time| self.clock.unix_millis().0.saturating_sub(time));
        ExpiryStats {
            removed_pairs: self.expiry.removed.load(Ordering::Relaxed),
            dropped_hints: self.expiry.dropped_hints.load(Ordering::Relaxed),
            next_due_ms: next_due,
            lag: Duration::from_millis(late),
        }
    }
}

/// Expiry of one keyspace.
pub(crate) struct KeyspaceExpiry {
    /// Default time to live in milliseconds; zero for none.
    default_ttl_ms: u64,
    clock: Arc<dyn Clock>,
    /// Directory of the keyspace, for errors.
    path: PathBuf,
    /// Hidden keyspace with the hints, if it is usable.
    index: OnceLock<Arc<KeyspaceState>>,
    /// No hint of the index is due before this time, in milliseconds since 1970.
    pub(crate) next_due: AtomicU64,
    /// Held while expired pairs are removed or counted, so that a count is exact.
    pub(crate) removal_lock: Mutex<()>,
}

impl fmt::Debug for KeyspaceExpiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceExpiry").field("default_ttl_ms", &self.default_ttl_ms).finish_non_exhaustive()
    }
}

impl KeyspaceExpiry {
    /// Returns the expiry of a keyspace with `options`, or `None` if it has none.
    pub(crate) fn new(
        id: KeyspaceId,
        options: &EngineOptions,
        context: &EngineContext,
    ) -> Option<Box<KeyspaceExpiry>> {
        has_expiry(options).then(|| {
            let default_ttl_ms = options.get(TTL_OPTION).unwrap_or(0);
            KeyspaceExpiry::unindexed(default_ttl_ms, Arc::clone(&context.clock), context.dir_of(id))
        })
    }

    fn unindexed(default_ttl_ms: u64, clock: Arc<dyn Clock>, path: PathBuf) -> Box<KeyspaceExpiry> {
        Box::new(KeyspaceExpiry {
            default_ttl_ms,
            clock,
            path,
            index: OnceLock::new(),
            next_due: AtomicU64::new(0),
            removal_lock: Mutex::new(()),
        })
    }

    /// Returns the expiry of a copy of the keyspace, without an index.
    pub(crate) fn without_index(&self) -> Box<KeyspaceExpiry> {
        KeyspaceExpiry::unindexed(self.default_ttl_ms, Arc::clone(&self.clock), self.path.clone())
    }

    /// Sets the index. Called before the keyspace is visible, or while it is opened.
    pub(crate) fn set_index(&self, index: Arc<KeyspaceState>) {
        let _ = self.index.set(index);
    }

    /// Returns the index.
    pub(crate) fn index(&self) -> Option<&Arc<KeyspaceState>> {
        self.index.get()
    }

    fn now(&self, at: ReadPoint) -> UnixMillis {
        at.now.unwrap_or_else(|| self.clock.unix_millis())
    }

    /// Returns the expiry time of a value that is written now.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the time to live is zero or ends after
    /// [`MAX_EXPIRY`].
    pub(crate) fn expiry_time(&self, expires: Expires) -> Result<Option<UnixMillis>> {
        let ttl_ms = match expires {
            Expires::Never => return Ok(None),
            Expires::Stored(time) => return Ok(time),
            Expires::At(time) => return check_time(time, || format!("time {} ms", time.0)).map(Some),
            Expires::Default if self.default_ttl_ms == 0 => return Ok(None),
            Expires::Default => self.default_ttl_ms,
            Expires::After(ttl) => return expiry_after(ttl, self.clock.unix_millis()).map(Some),
        };
        end_of_ttl(ttl_ms, self.clock.unix_millis()).map(Some)
    }
}

/// Returns the expiry time of a value that is written at `now` with this time to live.
///
/// # Errors
///
/// Returns [`Error::InvalidArgument`] if the time to live is zero or ends after [`MAX_EXPIRY`].
pub fn expiry_after(ttl: Duration, now: UnixMillis) -> Result<UnixMillis> {
    if ttl.is_zero() {
        let reason = "a time to live of zero; remove the key instead".to_owned();
        return Err(Error::InvalidArgument { argument: "ttl", reason });
    }
    end_of_ttl(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX), now)
}

fn end_of_ttl(ttl_ms: u64, now: UnixMillis) -> Result<UnixMillis> {
    let time = UnixMillis(now.0.saturating_add(ttl_ms));
    check_time(time, || format!("time to live of {ttl_ms} ms"))
}

/// Returns `time` if a pair may expire then.
fn check_time(time: UnixMillis, object: impl Fn() -> String) -> Result<UnixMillis> {
    let reason = match time {
        UnixMillis(0) => format!("{} is the start of 1970; use a later one", object()),
        time if time > MAX_EXPIRY => format!("{} ends after the year 9999", object()),
        time => return Ok(time),
    };
    Err(Error::InvalidArgument { argument: "ttl", reason })
}
