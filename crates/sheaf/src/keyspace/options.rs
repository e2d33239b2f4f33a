//! # Options of a keyspace: its engine, and options of the engine

use std::time::Duration;

use sheaf_log::compression::Codec;
use sheaf_log::options::{COMPRESSION, EngineOptions};
use sheaf_store::{EXPIRY_OPTION, EngineChoice, TTL_OPTION};

#[cfg(doc)]
use crate::Error;

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guide/compression.md")]
struct Guide;

/// Options of a keyspace at its creation: an engine, and options of the engine.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// use sheaf::KeyspaceOptions;
///
/// let wide = KeyspaceOptions::default().engine("cedrus").option("branching", 64);
/// db.keyspace("users", wide)?;
/// let users = db.keyspace("users", KeyspaceOptions::default())?; // opens it as it is
/// assert_eq!(users.options().get("branching"), Some(64));
/// // Only `Database::convert` changes the options of an existing keyspace.
/// assert!(db.keyspace("users", KeyspaceOptions::default().option("branching", 16)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyspaceOptions {
    pub(crate) engine: Option<String>,
    pub(crate) options: EngineOptions,
}

/// Selects the engine of this name, with the defaults of its options.
impl From<&str> for KeyspaceOptions {
    fn from(engine: &str) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(engine)
    }
}

impl KeyspaceOptions {
    /// Sets the engine by its name, for example `"flex"`; the [crate page](crate#engines) has a
    /// table, and [`engines`](crate::engines) returns the names. The database records it, and
    /// refuses to open the keyspace with another one. Without an engine, an existing keyspace opens
    /// with its own engine and a new one gets [`DEFAULT_ENGINE`](crate::DEFAULT_ENGINE).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let users = db.keyspace("users", sheaf::KeyspaceOptions::default().engine("cedrus"))?;
    /// assert_eq!(users.engine(), "cedrus");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn engine(mut self, name: &str) -> KeyspaceOptions {
        self.engine = Some(name.to_owned());
        self
    }

    /// Sets an option of the engine; [`engine_options`](crate::engine_options) lists the options
    /// with their ranges. The database records the value and keeps it through backups, clearing and
    /// replacement; options that are not set have the default of the engine.
    ///
    /// Opening an existing keyspace with another value returns [`Error::EngineMismatch`]. An
    /// unknown option or a value out of range is [`Error::InvalidArgument`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let wide = sheaf::KeyspaceOptions::default().engine("cedrus").option("branching", 64);
    /// assert_eq!(db.keyspace("users", wide)?.options().get("branching"), Some(64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn option(mut self, name: &str, value: u64) -> KeyspaceOptions {
        self.options.set(name, value);
        self
    }

    /// Lets pairs of the keyspace have an expiry time
    /// ([`Keyspace::insert_with_ttl`](crate::Keyspace::insert_with_ttl)). Sets the option `expiry`.
    /// Each value takes 12 bytes more. Only a dump and a load can change this later.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// assert_eq!(sessions.options().get("expiry"), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expiry(self) -> KeyspaceOptions {
        self.option(EXPIRY_OPTION, 1)
    }

    /// Sets the time after which a pair expires that is written without a time to live, rounded up
    /// to whole milliseconds. Sets the options `expiry` and `ttl-ms`. The largest value is 36,500
    /// days. [`Database::convert`](crate::Database::convert) changes it later, for new pairs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::time::Duration;
    ///
    /// let options = sheaf::KeyspaceOptions::default().default_ttl(Duration::from_secs(600));
    /// let sessions = db.keyspace("sessions", options)?;
    /// sessions.insert("ada", "token")?; // for ten minutes
    /// assert!(matches!(sessions.expires_at("ada")?, Some(sheaf::Expiry::At(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn default_ttl(self, ttl: Duration) -> KeyspaceOptions {
        let ms = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.expiry().option(TTL_OPTION, ms)
    }

    /// Compresses new values with `codec`; `None` stores them as they are, which is the default.
    /// All engines have this option, and `option("compression", number)` sets it too.
    ///
    /// Values from 192 bytes on are tried, and kept compressed if that saves at least an eighth. A
    /// large value is compressed in pieces of 64 KiB, so that [`ValueReader`](crate::ValueReader)
    /// decompresses only the pieces that it needs. [`Database::convert`](crate::Database::convert)
    /// changes the codec of an existing keyspace.
    ///
    /// A build without the feature `zstd` opens a database with such values. Only reads of these
    /// values return [`Error::Unsupported`], and new values are stored as they are. Creating a
    /// keyspace with a codec that this build lacks is [`Error::InvalidArgument`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::{Codec, KeyspaceOptions};
    ///
    /// let pages = db.keyspace("pages", KeyspaceOptions::default().compression(Codec::Lz4))?;
    /// pages.insert("home", "<p>hello</p>".repeat(1000))?;
    /// assert_eq!(pages.get("home")?.map(|page| page.len()), Some(12_000));
    /// assert!(pages.stats()?.encoded_bytes < 1200);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn compression(self, codec: impl Into<Option<Codec>>) -> KeyspaceOptions {
        let value = codec.into().map_or(0, |codec| u64::from(codec.id()));
        self.option(COMPRESSION.name, value)
    }

    /// Sets the operator of [`Keyspace::merge`](crate::Keyspace::merge) by its name: one of
    /// [`merge_operators`](crate::merge_operators), or one that was registered with
    /// [`Builder::merge_operator`](crate::Builder::merge_operator). The database records the name.
    /// [`Database::convert`](crate::Database::convert) changes it later.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let options = sheaf::KeyspaceOptions::default().merge_operator("max");
    /// let records = db.keyspace("records", options)?;
    /// records.merge("ada", "b")?;
    /// records.merge("ada", "a")?;
    /// assert_eq!(records.get("ada")?, Some("b".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn merge_operator(mut self, name: &str) -> KeyspaceOptions {
        self.options.set_merge_operator(name);
        self
    }

    pub(crate) fn selection(&self) -> EngineChoice<'_> {
        EngineChoice { engine: self.engine.as_deref(), options: &self.options }
    }
}
