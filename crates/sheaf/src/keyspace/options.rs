//! # Options of a keyspace: its engine, and options of the engine

use sheaf_log::compression::Codec;
use sheaf_log::options::{COMPRESSION, EngineOptions};
use sheaf_store::EngineChoice;

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

    pub(crate) fn selection(&self) -> EngineChoice<'_> {
        EngineChoice { engine: self.engine.as_deref(), options: &self.options }
    }
}
