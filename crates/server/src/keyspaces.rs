//! # Keyspaces: numbers for names
//!
//! Requests contain the number of a keyspace. A number has one meaning for all clients until the
//! server ends. A keyspace that was dropped and created again gets another number.

use std::sync::{Mutex, PoisonError};

use sheaf::{Database, Error, Keyspace, KeyspaceOptions, Result};

/// Most numbers that are given out. Repeated drops and creations use them up.
const MAX_KEYSPACES: usize = 1 << 16;

/// All numbers that were given out.
#[derive(Default)]
pub(crate) struct KeyspaceNumbers {
    all: Mutex<Vec<Keyspace>>,
}

/// Number of an opened keyspace, or `Busy` if there are too many.
pub(crate) enum OpenedKeyspace {
    Number { number: u32, ordered: bool },
    Busy,
}

impl KeyspaceNumbers {
    /// Opens or creates `name`. May wait for the device.
    pub(crate) fn open(
        &self,
        db: &Database,
        name: &str,
        engine: &str,
        create: bool,
    ) -> Result<OpenedKeyspace> {
        let keyspace = if create {
            let options = KeyspaceOptions::default();
            db.keyspace(name, if engine.is_empty() { options } else { options.engine(engine) })?
        } else {
            let missing = || Error::KeyspaceNotFound { name: name.to_owned() };
            db.open_keyspace(name)?.ok_or_else(missing)?
        };
        let ordered = keyspace.capabilities()?.ordered;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // A dropped keyspace keeps its name, but its capabilities are an error.
        let known = |old: &Keyspace| old.name() == name && old.capabilities().is_ok();
        let number = match all.iter().position(known) {
            Some(number) => number,
            None if all.len() < MAX_KEYSPACES => {
                all.push(keyspace);
                all.len() - 1
            }
            None => return Ok(OpenedKeyspace::Busy),
        };
        Ok(u32::try_from(number)
            .map_or(OpenedKeyspace::Busy, |number| OpenedKeyspace::Number { number, ordered }))
    }

    /// Returns the keyspace with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Keyspace> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(usize::try_from(number).ok()?).cloned()
    }
}
