//! # Places: from arguments to an open database or keyspace

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sheaf::{Builder, Database, Error, Keyspace, KeyspaceOptions, Overview, Reached};

use crate::args::{Chosen, Creation, Modes, Place, Target, Wait};
use crate::failure::{Failure, Result};
use crate::notation;
use crate::output::{self, Watch};

impl Place {
    /// How it is opened, as the arguments say.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Database::builder().memory(self.memory).wait(self.wait.time);
        self.open_files.into_iter().fold(builder, Builder::open_files)
    }

    fn reader(&self) -> Builder {
        self.builder().create(false).read_only(true)
    }

    /// The process that has it open; or it is opened for writing, if it is there.
    pub(crate) fn reach(&self) -> Result<Reached> {
        Ok(self.builder().create(false).reach(&self.database)?)
    }

    /// The process that has it open; or it is opened for reading.
    pub(crate) fn reach_to_read(&self) -> Result<Reached> {
        Ok(self.reader().reach(&self.database)?)
    }

    /// Its figures, as whoever has it open sees them, if anybody has.
    pub(crate) fn overview(&self) -> Result<Overview> {
        match self.reach_to_read()? {
            Reached::Owner(mut owner) => Ok(owner.overview()?),
            Reached::Database(db) => Ok(db.overview()),
        }
    }

    /// Opens it for reading, beside whoever has it open: creates and changes nothing.
    pub(crate) fn read(&self) -> Result<Database> {
        Ok(self.reader().open(&self.database)?)
    }

    /// Opens it for writing if it is there.
    pub(crate) fn write(&self) -> Result<Database> {
        Ok(self.builder().create(false).open(&self.database)?)
    }

    /// Opens it for writing, or creates it.
    pub(crate) fn create(&self, modes: &Modes) -> Result<Database> {
        Ok(modes.on(self.builder()).open(&self.database)?)
    }
}

impl Modes {
    /// For a database that may be created.
    pub(crate) fn on(&self, builder: Builder) -> Builder {
        match self.mode {
            Some(permissions) => builder.permissions(permissions),
            None => builder,
        }
    }
}

impl Wait {
    /// Runs a verb that reads, and again if the database was closed by its owner in the midst, as long as nothing was printed and the time
    /// is not up.
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
    /// Opens database and keyspace for reading.
    pub(crate) fn read(&self) -> Result<(Database, Keyspace)> {
        let db = self.place.read()?;
        let keyspace = self.existing(&db)?;
        Ok((db, keyspace))
    }

    /// Opens database and keyspace for writing; both must be there.
    pub(crate) fn write(&self) -> Result<(Database, Keyspace)> {
        let db = self.place.write()?;
        let keyspace = self.existing(&db)?;
        Ok((db, keyspace))
    }

    /// The process that has the database open; or both are opened for writing, and must be there.
    pub(crate) fn reach(&self) -> Result<(Reached, Option<Keyspace>)> {
        let reached = self.place.reach()?;
        let keyspace = match &reached {
            Reached::Database(db) => Some(self.existing(db)?),
            Reached::Owner(_) => None,
        };
        Ok((reached, keyspace))
    }

    /// Opens database and keyspace for writing and creates what is missing.
    pub(crate) fn create(&self, creation: &Creation) -> Result<(Database, Keyspace)> {
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
    /// What is asked for of a keyspace, with an engine.
    pub(crate) fn of(&self, engine: Option<&str>) -> KeyspaceOptions {
        let asked = engine.map_or_else(KeyspaceOptions::default, KeyspaceOptions::from);
        self.options.iter().fold(asked, |asked, (name, value)| asked.option(name, *value))
    }
}

/// The first line of a file that holds a token.
pub(crate) fn token_of(file: Option<&Path>) -> Result<Option<String>> {
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path).map_err(Failure::stream("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(Some(token.to_owned())),
        _ => Err(Failure::Usage(format!("{} has no token in its first line", path.display()))),
    }
}

/// The bytes of an argument: as they are, or of its hexadecimal digits.
pub(crate) fn bytes_of(argument: &OsStr, hex: bool) -> Result<Vec<u8>> {
    let bytes = argument.as_bytes();
    if !hex {
        return Ok(bytes.to_vec());
    }
    notation::unhex(bytes).map_err(|why| Failure::Usage(format!("{argument:?} with --hex: {why}")))
}
