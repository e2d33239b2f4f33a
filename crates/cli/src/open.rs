//! # Places: open databases and keyspaces from arguments

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use sheaf::{Builder, Database, DatabaseOverview, Error, Keyspace, KeyspaceOptions, OpenOutcome};

use crate::args::{
    CopyModeArgs, CreateArgs, DatabaseArgs, EngineOptionArgs, KeyspaceArgs, NewDatabaseModeArgs, WaitArgs,
};
use crate::failure::{Failure, Result};
use crate::output::{self, Stopwatch};
use crate::text_format;

impl DatabaseArgs {
    /// Returns a builder with the options of the arguments.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Database::builder().memory(self.memory).wait(self.wait.time);
        self.open_files.into_iter().fold(builder, Builder::open_files)
    }

    fn reader(&self) -> Builder {
        self.builder().create(false).read_only(true)
    }

    /// Connects to the process that has the database open. If there is none, opens the database for
    /// writing; it must exist.
    pub(crate) fn open_or_connect(&self) -> Result<OpenOutcome> {
        Ok(self.builder().create(false).open_or_connect(&self.database)?)
    }

    /// Connects to the process that has the database open. If there is none, opens the database for
    /// reading.
    pub(crate) fn open_or_connect_read_only(&self) -> Result<OpenOutcome> {
        Ok(self.reader().open_or_connect(&self.database)?)
    }

    /// Returns the statistics, from the process that has the database open if there is one.
    pub(crate) fn overview(&self) -> Result<DatabaseOverview> {
        match self.open_or_connect_read_only()? {
            OpenOutcome::Owner(mut owner) => Ok(owner.overview()?),
            OpenOutcome::Database(db) => Ok(db.overview()),
        }
    }

    /// Opens the database for reading, also while another process has it open. Creates and changes
    /// nothing.
    pub(crate) fn open_read_only(&self) -> Result<Database> {
        Ok(self.reader().open(&self.database)?)
    }

    /// Opens the database for writing. It must exist.
    pub(crate) fn open_existing(&self) -> Result<Database> {
        Ok(self.builder().create(false).open(&self.database)?)
    }

    /// Opens the database for writing; creates it if it does not exist.
    pub(crate) fn open_or_create(&self, modes: &NewDatabaseModeArgs) -> Result<Database> {
        Ok(modes.apply(self.builder()).open(&self.database)?)
    }

    /// Returns true if the directory has a slot of ROOT.
    pub(crate) fn exists(&self) -> bool {
        ["ROOT.0", "ROOT.1"].iter().any(|slot| self.database.join(slot).exists())
    }
}

/// A keyspace that is open for writing.
pub(crate) struct WritableKeyspace {
    pub(crate) db: Database,
    pub(crate) keyspace: Keyspace,
    /// True if this command created the keyspace.
    pub(crate) is_new: bool,
}

impl WritableKeyspace {
    /// Runs `write`, which makes one commit, and closes the database. If `write` fails, drops the
    /// keyspace if this command created it.
    pub(crate) fn write_once(self, write: impl FnOnce(&Keyspace) -> Result) -> Result {
        let result = write(&self.keyspace);
        if result.is_err() && self.is_new {
            let _ = self.db.drop_keyspace(&self.keyspace.name()); // the failure is reported
        }
        let closed = self.db.close();
        result?;
        Ok(closed?)
    }
}

/// The part of a first pair that is known before its keyspace is created.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstPair<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) ttl: Option<Duration>,
}

impl NewDatabaseModeArgs {
    /// Sets the mode on a builder that may create a database.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        self.mode.into_iter().fold(builder, Builder::permissions)
    }
}

impl CopyModeArgs {
    /// Sets the mode on a builder that makes a copy.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        self.mode.into_iter().fold(builder, Builder::permissions)
    }
}

impl CreateArgs {
    /// Fails if there is no engine of the requested name. Nothing has been created yet.
    pub(crate) fn check(&self) -> Result {
        self.engine.as_deref().map_or(Ok(()), check_engine)
    }

    pub(crate) fn keyspace_options(&self) -> KeyspaceOptions {
        self.chosen.keyspace_options(self.engine.as_deref())
    }
}

/// Fails if the parent directory of `target`, a new directory, does not exist: its file system may
/// not be mounted.
pub(crate) fn check_parent(target: &Path) -> Result {
    let absolute = std::path::absolute(target).map_err(Failure::stream("find", target))?;
    match absolute.parent() {
        Some(parent) if !parent.exists() => {
            let (target, parent) = (target.display(), parent.display());
            Err(Failure::Refused(format!("cannot create {target}: there is no directory {parent}")))
        }
        _ => Ok(()),
    }
}

/// Fails if there is no engine of this name.
pub(crate) fn check_engine(name: &str) -> Result {
    let known = sheaf::engines();
    match known.contains(&name) {
        true => Ok(()),
        false => {
            let known = known.join(", ");
            Err(Failure::Usage(format!("there is no engine {name:?}; the engines are {known}")))
        }
    }
}

impl WaitArgs {
    /// Runs a verb that reads. Runs it again if the owner closed the database during it, as long as
    /// nothing was printed and the time is not over.
    pub(crate) fn run_with_retry(&self, verb: impl Fn() -> Result) -> Result {
        let watch = Stopwatch::start();
        loop {
            match verb() {
                Err(Failure::Database(Error::OwnerClosed { .. }))
                    if watch.elapsed() < self.time && output::discard_unwritten() => {}
                done => return done,
            }
        }
    }
}

impl KeyspaceArgs {
    /// Opens the database and the keyspace for reading.
    pub(crate) fn open_read_only(&self) -> Result<(Database, Keyspace)> {
        let db = self.database_args.open_read_only()?;
        let keyspace = self.existing_keyspace(&db)?;
        Ok((db, keyspace))
    }

    /// Opens the database and the keyspace for writing. Both must exist.
    pub(crate) fn open_existing(&self) -> Result<(Database, Keyspace)> {
        let db = self.database_args.open_existing()?;
        let keyspace = self.existing_keyspace(&db)?;
        Ok((db, keyspace))
    }

    /// Connects to the process that has the database open. If there is none, opens the database and
    /// the keyspace for writing; both must exist.
    pub(crate) fn open_or_connect(&self) -> Result<(OpenOutcome, Option<Keyspace>)> {
        let reached = self.database_args.open_or_connect()?;
        let keyspace = match &reached {
            OpenOutcome::Database(db) => Some(self.existing_keyspace(db)?),
            OpenOutcome::Owner(_) => None,
        };
        Ok((reached, keyspace))
    }

    /// Opens the database and the keyspace for writing; creates them if they do not exist, unless
    /// `first`, the first pair, would be refused. With a time to live a new keyspace gets expiry.
    pub(crate) fn open_or_create(
        &self,
        creation: &CreateArgs,
        first: FirstPair<'_>,
    ) -> Result<WritableKeyspace> {
        creation.check()?;
        let options = |is_new| match creation.keyspace_options() {
            options if is_new && first.ttl.is_some() => options.expiry(),
            options => options,
        };
        self.check_new(&options(true), first)?;
        let db = self.database_args.open_or_create(&creation.modes)?;
        let is_new = db.open_keyspace(&self.keyspace)?.is_none();
        let keyspace = db.keyspace(&self.keyspace, options(is_new))?;
        Ok(WritableKeyspace { db, keyspace, is_new })
    }

    /// Fails if there is no database yet, and a keyspace with these options or its first pair would
    /// be refused.
    pub(crate) fn check_new(&self, options: &KeyspaceOptions, first: FirstPair<'_>) -> Result {
        match self.database_args.exists() {
            true => Ok(()),
            false => Ok(sheaf::check_new_keyspace(&self.keyspace, options, first.ttl, first.key)?),
        }
    }

    /// Opens the database and the keyspace for writing. Both must exist, and the keyspace must have
    /// the chosen options.
    pub(crate) fn open_existing_with(&self, creation: &CreateArgs) -> Result<WritableKeyspace> {
        creation.check()?;
        let db = self.database_args.open_existing()?;
        self.existing_keyspace(&db)?;
        let keyspace = db.keyspace(&self.keyspace, creation.keyspace_options())?;
        Ok(WritableKeyspace { db, keyspace, is_new: false })
    }

    fn existing_keyspace(&self, db: &Database) -> Result<Keyspace> {
        let missing = || Failure::Database(Error::KeyspaceNotFound { name: self.keyspace.clone() });
        db.open_keyspace(&self.keyspace)?.ok_or_else(missing)
    }
}

impl EngineOptionArgs {
    /// Returns keyspace options with an engine and the options of the arguments.
    pub(crate) fn keyspace_options(&self, engine: Option<&str>) -> KeyspaceOptions {
        let asked = engine.map_or_else(KeyspaceOptions::default, KeyspaceOptions::from);
        self.all().iter().fold(asked, |asked, (name, value)| asked.option(name, *value))
    }

    /// Returns the value of an option. The last one counts.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        self.options.iter().rfind(|(given, _)| given == name).map(|(_, value)| *value)
    }

    /// Returns the merge operator that the arguments name.
    pub(crate) fn merge_operator(&self) -> Option<&str> {
        self.options.iter().find_map(|(name, _)| name.strip_prefix("merge:"))
    }

    /// Returns the options of the arguments. A default time to live implies expiry.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let is_implied = self.value("ttl-ms").is_some() && self.value("expiry").is_none();
        let implied = is_implied.then(|| ("expiry".to_owned(), 1));
        self.options.iter().cloned().chain(implied).collect()
    }
}

/// Returns the first line of a token file.
#[cfg(target_os = "linux")]
pub(crate) fn read_token(file: Option<&Path>) -> Result<Option<String>> {
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path).map_err(Failure::stream("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(Some(token.to_owned())),
        _ => Err(Failure::Usage(format!("the first line of {} must contain a token", path.display()))),
    }
}

/// Returns the bytes of an argument, taken literally or decoded from hexadecimal digits.
pub(crate) fn decode_argument(argument: &OsStr, hex: bool) -> Result<Vec<u8>> {
    let bytes = argument.as_encoded_bytes();
    if !hex {
        return Ok(bytes.to_vec());
    }
    text_format::unhex(bytes).map_err(|why| Failure::Usage(format!("--hex: argument {argument:?} {why}")))
}
