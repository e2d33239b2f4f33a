//! # Conversion: a keyspace goes to another engine, or to other options of its engine

use std::ops::ControlFlow;
use std::sync::Arc;

use sheaf_base::store::{Conversion as Steps, Store};

use crate::handle::Handle;
use crate::{ConversionProgress, Converted, Database, Error, Estimate, KeyspaceOptions, Result};

impl Database {
    /// Has another engine keep the keyspace `name` from now on: `to` is its name, or [`KeyspaceOptions`]. With options, and no engine or
    /// the one it has, it goes to other options of that; those that are not named stay. Writers and readers go on meanwhile; what is written while it is copied is
    /// copied again, and at the end commits to it wait for some milliseconds. Then, all at once and durably, it is kept by the other
    /// engine: handles go on with it, snapshots and iterators still show what they did, and the old one's space comes back once they
    /// are gone. After a crash it is the old keyspace or the new one, with all that was acknowledged.
    ///
    /// `progress` is told now and then how far it is, and may end it: then, as after an error, the keyspace stays as it is.
    ///
    /// Errors: [`Error::NoKeyspace`]; [`Error::Invalid`] for an engine or option there is not, or if it is being converted already;
    /// [`Error::NoSpace`] before anything is written if the disk cannot take both. Nothing is done if it is that.
    pub fn convert(
        &self,
        name: &str,
        to: impl Into<KeyspaceOptions>,
        progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<Option<Converted>> {
        convert(self.handle().store(), name, &to.into(), progress)
    }

    /// The same in steps that the caller takes. None if it is that.
    #[doc(hidden)]
    pub fn begin_conversion(&self, name: &str, to: impl Into<KeyspaceOptions>) -> Result<Option<Conversion>> {
        let begun = begin(self.handle().store(), name, &to.into())?;
        Ok(begun.map(|steps| Conversion(steps, Arc::clone(self.handle()))))
    }

    /// What converting the keyspace `name` would take. Reads about a thousand pairs, and changes nothing.
    pub fn estimate_conversion(&self, name: &str) -> Result<Estimate> {
        let store = self.handle().store();
        let missing = || Error::NoKeyspace { name: name.to_owned() };
        store.estimate(&store.existing(name)?.ok_or_else(missing)?)
    }
}

fn begin(store: &Arc<Store>, name: &str, to: &KeyspaceOptions) -> Result<Option<Steps>> {
    let missing = || Error::NoKeyspace { name: name.to_owned() };
    let source = store.existing(name)?.ok_or_else(missing)?;
    store.begin_conversion(&source, to.choice())
}

/// See [`Database::convert`]. Whoever calls keeps the database open.
pub(crate) fn convert(
    store: &Arc<Store>,
    name: &str,
    to: &KeyspaceOptions,
    mut progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
) -> Result<Option<Converted>> {
    loop {
        let Some(mut steps) = begin(store, name, to)? else { return Ok(Some(Converted::default())) };
        loop {
            match steps.step() {
                Ok(true) => {}
                Ok(false) => return Ok(Some(steps.converted())),
                // Cleared or replaced meanwhile: what it is now is begun with. If it was dropped, there is nothing.
                Err(Error::NoKeyspace { .. }) => break,
                Err(error) => return Err(error),
            }
            if progress(&steps.progress()).is_break() {
                return Ok(None);
            }
        }
    }
}

/// A conversion on its way. Dropped before its end, it leaves the keyspace as it is.
#[doc(hidden)]
pub struct Conversion(Steps, #[expect(dead_code, reason = "keeps the database open")] Arc<Handle>);

impl Conversion {
    /// A bounded step. False once all is done.
    pub fn step(&mut self) -> Result<bool> {
        self.0.step()
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> ConversionProgress {
        self.0.progress()
    }
}
