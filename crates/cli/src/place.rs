//! # Places: open databases and keyspaces from arguments

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sheaf::{Builder, Database, Error, Keyspace, KeyspaceOptions, Overview, Reached};

use crate::args::{Chosen, Creation, Modes, NewModes, Place, Target, Wait};
use crate::failure::{Failure, Result};
use crate::notation;
use crate::output::{self, Watch};

impl Place {
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
    pub(crate) fn reach(&self) -> Result<Reached> {
        Ok(self.builder().create(false).reach(&self.database)?)
    }

    /// Connects to the process that has the database open. If there is none, opens the database for
    /// reading.
    pub(crate) fn reach_to_read(&self) -> Result<Reached> {
        Ok(self.reader().reach(&self.database)?)
    }

    /// Returns the statistics, from the process that has the database open if there is one.
    pub(crate) fn overview(&self) -> Result<Overview> {
        match self.reach_to_read()? {
            Reached::Owner(mut owner) => Ok(owner.overview()?),
            Reached::Database(db) => Ok(db.overview()),
        }
    }

    /// Opens the database for reading, also while another process has it open. Creates and changes
    /// nothing.
    pub(crate) fn read(&self) -> Result<Database> {
        Ok(self.reader().open(&self.database)?)
    }

    /// Opens the database for writing. It must exist.
    pub(crate) fn write(&self) -> Result<Database> {
        Ok(self.builder().create(false).open(&self.database)?)
    }

    /// Opens the database for writing; creates it if it does not exist.
    pub(crate) fn create(&self, modes: &NewModes) -> Result<Database> {
        Ok(modes.on(self.builder()).open(&self.database)?)
    }
}

impl NewModes {
    /// Sets the mode on a builder that may create a database.
    pub(crate) fn on(&self, builder: Builder) -> Builder {
        self.mode.into_iter().fold(builder, Builder::permissions)
    }
}

impl Modes {
    /// Sets the mode on a builder that makes a copy.
    pub(crate) fn on(&self, builder: Builder) -> Builder {
        self.mode.into_iter().fold(builder, Builder::permissions)
    }
}

impl Creation {
    /// Fails if there is no engine of the requested name. Nothing has been created yet.
    pub(crate) fn check(&self) -> Result {
        self.engine.as_deref().map_or(Ok(()), check_engine)
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

impl Wait {
    /// Runs a verb that reads. Runs it again if the owner closed the database during it, as long as
    /// nothing was printed and the time is not over.
    pub(crate) fn repeat(&self, verb: impl Fn() -> Result) -> Result {
        let watch = Watch::start();
        loop {
            match verb() {
                Err(Failure::Database(Error::OwnerGone { .. }))
                    if watch.elapsed() < self.time && output::forget() => {}
                done => return done,
            }
        }
    }
}

impl Target {
    /// Opens the database and the keyspace for reading.
    pub(crate) fn read(&self) -> Result<(Database, Keyspace)> {
        let db = self.place.read()?;
        let keyspace = self.existing(&db)?;
        Ok((db, keyspace))
    }

    /// Opens the database and the keyspace for writing. Both must exist.
    pub(crate) fn write(&self) -> Result<(Database, Keyspace)> {
        let db = self.place.write()?;
        let keyspace = self.existing(&db)?;
        Ok((db, keyspace))
    }

    /// Connects to the process that has the database open. If there is none, opens the database and
    /// the keyspace for writing; both must exist.
    pub(crate) fn reach(&self) -> Result<(Reached, Option<Keyspace>)> {
        let reached = self.place.reach()?;
        let keyspace = match &reached {
            Reached::Database(db) => Some(self.existing(db)?),
            Reached::Owner(_) => None,
        };
        Ok((reached, keyspace))
    }

    /// Opens the database and the keyspace for writing; creates them if they do not exist.
    pub(crate) fn create(&self, creation: &Creation) -> Result<(Database, Keyspace)> {
        creation.check()?;
        let db = self.place.create(&creation.modes)?;
        let keyspace = db.keyspace(&self.keyspace, creation.chosen.of(creation.engine.as_deref()))?;
        Ok((db, keyspace))
    }

    fn existing(&self, db: &Database) -> Result<Keyspace> {
        let missing = || Failure::Database(Error::NoKeyspace { name: self.keyspace.clone() });
        db.existing_keyspace(&self.keyspace)?.ok_or_else(missing)
    }
}

impl Chosen {
    /// Returns keyspace options with an engine and the options of the arguments.
    pub(crate) fn of(&self, engine: Option<&str>) -> KeyspaceOptions {
        let asked = engine.map_or_else(KeyspaceOptions::default, KeyspaceOptions::from);
        self.options.iter().fold(asked, |asked, (name, value)| asked.option(name, *value))
    }
}

/// Returns the first line of a token file.
pub(crate) fn token_of(file: Option<&Path>) -> Result<Option<String>> {
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path).map_err(Failure::stream("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(Some(token.to_owned())),
        _ => Err(Failure::Usage(format!("the first line of {} must contain a token", path.display()))),
    }
}

/// Returns the bytes of an argument, taken literally or decoded from hexadecimal digits.
pub(crate) fn bytes_of(argument: &OsStr, hex: bool) -> Result<Vec<u8>> {
    let bytes = argument.as_bytes();
    if !hex {
        return Ok(bytes.to_vec());
    }
    notation::unhex(bytes).map_err(|why| Failure::Usage(format!("--hex: argument {argument:?} {why}")))
}
