//! # Places: from arguments to an open database or keyspace

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sheaf::{Database, Error, Keyspace, KeyspaceOptions, Overview, Owner};

use crate::args::{Chosen, Creation, Place, Target};
use crate::failure::{Failure, Result};
use crate::notation;

impl Place {
    /// Whoever has it open, if they can be asked.
    pub(crate) fn owner(&self) -> Result<Option<Owner>> {
        Ok(Owner::connect(&self.database)?)
    }

    /// Its figures, as whoever has it open sees them, if anybody has.
    pub(crate) fn overview(&self) -> Result<Overview> {
        match self.owner()? {
            Some(mut owner) => Ok(owner.overview()?),
            None => Ok(self.read()?.overview()),
        }
    }

    /// Opens it for reading, beside whoever has it open: creates and changes nothing.
    pub(crate) fn read(&self) -> Result<Database> {
        Ok(Database::builder().memory(self.memory).create(false).read_only(true).open(&self.database)?)
    }

    /// Opens it for writing if it is there.
    pub(crate) fn write(&self) -> Result<Database> {
        Ok(Database::builder().memory(self.memory).create(false).open(&self.database)?)
    }

    /// Opens it for writing, or creates it.
    pub(crate) fn create(&self) -> Result<Database> {
        Ok(Database::builder().memory(self.memory).open(&self.database)?)
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

    /// Opens database and keyspace for writing and creates what is missing.
    pub(crate) fn create(&self, creation: &Creation) -> Result<(Database, Keyspace)> {
        let db = self.place.create()?;
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
