//! # Options of a keyspace: its engine, and options of the engine

use sheaf_log::options::EngineOptions;
use sheaf_store::EngineChoice;

#[cfg(doc)]
use crate::Error;

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

    pub(crate) fn selection(&self) -> EngineChoice<'_> {
        EngineChoice { engine: self.engine.as_deref(), options: &self.options }
    }
}
