//! # Bulk load: sorted pairs, all at once

use std::sync::Arc;

use sheaf_base::store::Loading;

use crate::database::DEFAULT_ENGINE;
use crate::handle::Handle;
use crate::{Database, KeyspaceOptions, Loaded, Result};

/// Options of a bulk load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    kind: KeyspaceOptions,
    replace: bool,
}

impl LoadOptions {
    /// The engine that is to keep the keyspace. Without it, that of the keyspace that is there, else the default.
    #[must_use]
    pub fn engine(mut self, name: &str) -> LoadOptions {
        self.kind = self.kind.engine(name);
        self
    }

    /// Chooses an option of the engine, as [`KeyspaceOptions::option`]. What is not chosen is as with the keyspace that is there, if
    /// that has the same engine.
    #[must_use]
    pub fn option(mut self, name: &str, value: u64) -> LoadOptions {
        self.kind = self.kind.option(name, value);
        self
    }

    /// Whether a keyspace that is there is replaced as a whole, whatever its engine and with what was written to it meanwhile.
    /// Without it there must be none, or an empty one of the same engine.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> LoadOptions {
        self.replace = replace;
        self
    }
}

/// A bulk load on its way. Nothing of it is there before [`Loader::finish`], and nothing stays if it is dropped.
pub struct Loader {
    loading: Loading,
    _handle: Arc<Handle>,
}

impl Database {
    /// Begins to load the keyspace `name` with pairs in the order of their keys.
    ///
    /// The fastest way for data that is sorted: engines with files of their own (`flex`, `delsm`) take it straight into
    /// them, where inserts go through the journal first. With the others it goes to their log in large commits.
    ///
    /// Errors: [`crate::Error::Invalid`] if the keyspace is not empty and is not to be replaced;
    /// [`crate::Error::EngineMismatch`] if it has another engine, or other options.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-load-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// let mut loader = db.bulk_load("words", sheaf::LoadOptions::default())?;
    /// for (key, value) in [("a", "1"), ("b", "2")] {
    ///     loader.push(key, value)?;
    /// }
    /// assert!(loader.push("a", "3").is_err(), "below the key before");
    /// assert!(db.existing_keyspace("words")?.is_none(), "not before the end");
    /// assert_eq!(loader.finish()?.pairs, 2);
    /// assert_eq!(db.existing_keyspace("words")?.unwrap().len()?, 2);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk_load(&self, name: &str, options: LoadOptions) -> Result<Loader> {
        let store = self.handle().store();
        let loading = store.begin_load(name, options.kind.choice(), DEFAULT_ENGINE, options.replace)?;
        Ok(Loader { loading, _handle: Arc::clone(self.handle()) })
    }
}

impl Loader {
    /// Takes the next pair. A key that is not above the one before is refused with [`crate::Error::Invalid`], which names the pair's
    /// position, and a pair beyond the limits with [`crate::Error::TooLarge`]: the load can go on with another. After any other
    /// error it can only be dropped.
    pub fn push(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.loading.push(key.as_ref(), value.as_ref())
    }

    /// Takes the next pair, whose value is what `value` gives until its end, and returns the bytes of
    /// the value. Memory holds some pieces of it, not the whole.
    ///
    /// # Errors
    ///
    /// Like [`Loader::push`] for the key. After any other error, a failed read and a value beyond
    /// [`crate::MAX_VALUE`] included, the loader can only be dropped.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-load-reader-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// let mut loader = db.bulk_load("files", sheaf::LoadOptions::default())?;
    /// let mut file = std::io::Cursor::new(vec![7; 100_000]); // or a `File`
    /// assert_eq!(loader.push_reader("large", &mut file)?, 100_000);
    /// loader.finish()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn push_reader(&mut self, key: impl AsRef<[u8]>, value: &mut dyn std::io::Read) -> Result<u64> {
        self.loading.push_reader(key.as_ref(), value)
    }

    /// What it took so far.
    #[must_use]
    pub fn so_far(&self) -> Loaded {
        self.loading.so_far()
    }

    /// Makes what it took the keyspace, all at once and durably. Handles of one that was there go on with it, snapshots still show what
    /// there was. After a crash it is there whole or not at all.
    pub fn finish(self) -> Result<Loaded> {
        self.loading.finish()
    }
}
