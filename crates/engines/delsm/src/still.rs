//! # Still: a state of the keyspace, as files
//!
//! What a backup copies while flushes, merges and moves go on. Those give files names and write new ones; what they remove waits
//! ([`Work::held`]). So everything that a version names stays where it is.
//!
//! ## Picture
//!
//! ```text
//!  version ──> lists, packs            under their names, which are never used again
//!          ──> values                  each in the directory of its table, from wherever it is now
//!          ──> KEYS.0 KEYS.1           name these tables, all of them settled
//! ```
//!
//! Where files cannot have two names a value moves by losing one, and nothing can be held: such a file system is refused.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::disk::How;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::own::{OwnFile, OwnFiles, Source};
use sheaf_base::pair::{State, slot_bytes, slot_name};

use crate::engine::{DelsmEngine, NAME};
use crate::list::{Home, What};
use crate::manifest::{Manifest, Marks};
use crate::names;
use crate::open::staged_of;
use crate::tree::{Table, Version};
use crate::work::Work;

/// A name that is tried and removed.
const PROBE: &str = "KEYS.link";

/// A state of the keyspace that stays.
pub(crate) struct Still {
    engine: Arc<DelsmEngine>,
    version: Arc<Version>,
    /// None if there is none yet: there is nothing but staged values, which are not to go.
    manifest: Option<Manifest>,
    /// Staged values that its tables name.
    staged: HashSet<u64>,
}

impl DelsmEngine {
    pub(crate) fn hold(self: Arc<Self>) -> Result<Still> {
        let mut work = self.work.lock();
        self.check_links(&work)?;
        let version = self.version();
        let mut staged = HashSet::new();
        for table in version.tables().filter(|table| !table.is_settled()) {
            staged.extend(staged_of(table)?);
        }
        let moved = |marks| Marks { settled: true, littered: false, ..marks };
        let manifest = work.pair.is_some().then(|| self.manifest_of(&work, &version, work.up_to, moved));
        work.held += 1;
        drop(work);
        Ok(Still { engine: self, version, manifest, staged })
    }

    /// An error if a file cannot have two names.
    fn check_links(&self, work: &Work) -> Result<()> {
        let disk = self.disk()?;
        let [slot, probe] =
            [slot_name::<Manifest>(work.generation), PROBE.to_owned()].map(|n| self.shelf.path.join(n));
        match disk.link(&slot, &probe) {
            Ok(()) => disk.remove(&probe).during("remove", &probe),
            Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists) => {
                disk.remove(&probe).during("remove", &probe)
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound) => Ok(()), // nothing was written yet
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                Err(Error::Unsupported {
                    engine: NAME,
                    feature: "backups and attached readers on a file system without hard links",
                })
            }
            Err(e) => Err(Error::io("link", &probe, e)),
        }
    }
}

impl Still {
    /// Where a value is now.
    fn place(&self, table: &Table, key: &[u8], blob: &BlobRef, home: Home) -> Result<PathBuf> {
        let disk = self.engine.disk()?;
        let Some(source) = table.source(key, blob, home).filter(|_| !table.is_settled()) else {
            return Ok(table.target(key, blob));
        };
        match disk.open(&source, How::Read) {
            Ok(_) => Ok(source),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(table.target(key, blob)),
            Err(e) => Err(Error::io("open", &source, e)), // where it is cannot be said
        }
    }

    /// A file that is written once.
    fn whole(&self, path: PathBuf, name: &Path, len: u64) -> OwnFile<'static> {
        let name = name.to_string_lossy().into_owned();
        OwnFile { name, part: None, is_fixed: true, source: Source::File { path, at: 0, len } }
    }

    fn each_of(&self, table: &Table, each: &mut dyn FnMut(OwnFile<'_>) -> Result<()>) -> Result<()> {
        each(OwnFile::directory(names::dir_name(table.dir)))?;
        let list = names::list_name(table.list.number());
        each(self.whole(self.engine.shelf.path.join(&list), Path::new(&list), table.list.file_len()?))?;
        for block in 0..table.list.block_count() {
            for item in table.list.items(block)? {
                if let What::File { blob, home } = item.what {
                    let name =
                        Path::new(&names::dir_name(table.dir)).join(names::value_name(&item.key, blob.id));
                    let place = self.place(table, &item.key, &blob, home)?;
                    each(self.whole(place, &name, u64::from(blob.len)))?;
                }
            }
        }
        Ok(())
    }
}

impl OwnFiles for Still {
    fn bytes(&self) -> u64 {
        let of_table = |table: &Arc<Table>| table.list.totals().file_bytes + table.list.bytes();
        self.version.tables().map(of_table).sum::<u64>()
            + self.version.packs.values().map(|pack| pack.len).sum::<u64>()
    }

    fn each(&self, each: &mut dyn FnMut(OwnFile<'_>) -> Result<()>) -> Result<()> {
        for pack in self.version.packs.values() {
            let name = names::pack_name(pack.number);
            each(self.whole(self.engine.shelf.path.join(&name), Path::new(&name), pack.len))?;
        }
        self.version.tables().try_for_each(|table| self.each_of(table, each))?;
        for (manifest, more) in self.manifest.iter().flat_map(|manifest| [(manifest, 0), (manifest, 1)]) {
            let generation = manifest.generation() + more;
            let slot = slot_bytes(&Manifest { generation, ..manifest.clone() });
            let name = slot_name::<Manifest>(generation);
            each(OwnFile { name, part: None, is_fixed: false, source: Source::Bytes(&slot) })?;
        }
        Ok(())
    }

    fn has_blob(&self, id: u64) -> bool {
        self.staged.contains(&id)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let mut work = self.engine.work.lock();
        work.held = work.held.saturating_sub(1);
        if work.held == 0 {
            work.look_again();
        }
    }
}
