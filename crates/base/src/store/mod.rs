//! # Store: everything together (under construction)
mod kept;
mod report;

use std::path::Path;
use std::sync::Arc;

pub use kept::Kept;
pub use report::{KeyspaceInfo, LogStats, MemoryStats, OpeningStats, Options, Stats, VerifyReport};

use crate::clock::Clock;
use crate::disk::Disk;
use crate::engine::{EngineFactory, Op};
use crate::error::{Error, Result};
use crate::types::{Durability, Seq};

/// One operation of a commit.
#[derive(Debug)]
pub struct Write<'a> {
    /// Whose.
    pub kept: &'a Arc<Kept>,
    /// What.
    pub op: Op<'a>,
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has this number; one that changed nothing has the newest one's.
    Done(Seq),
    /// An expected key changed; nothing was written.
    Stale,
}

#[derive(Debug)] pub struct Store;
pub struct View;
#[allow(missing_docs, unused_variables)]
impl Store {
    pub fn open(path: &Path, options: Options, disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, engines: Vec<Arc<dyn EngineFactory>>) -> Result<Arc<Store>> { unimplemented!() }
    pub fn path(&self) -> &Path { unimplemented!() }
    pub fn keyspace(&self, name: &str, engine: Option<&str>, default: &str) -> Result<Arc<Kept>> { unimplemented!() }
    pub fn existing(&self, name: &str) -> Result<Option<Arc<Kept>>> { unimplemented!() }
    pub fn successor(&self, kept: &Kept) -> Result<Arc<Kept>> { unimplemented!() }
    pub fn clear_keyspace(&self, kept: &Arc<Kept>) -> Result<Arc<Kept>> { unimplemented!() }
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> { unimplemented!() }
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> { unimplemented!() }
    pub fn commit(&self, writes: &mut [Write<'_>]) -> Result<Outcome> { unimplemented!() }
    pub fn acknowledge(&self, seq: Seq, durability: Durability) -> Result<()> { unimplemented!() }
    pub fn durability(&self) -> Durability { unimplemented!() }
    pub fn durable(&self) -> Seq { unimplemented!() }
    pub fn check_open(&self) -> Result<()> { unimplemented!() }
    pub fn view(self: &Arc<Store>) -> Result<View> { unimplemented!() }
    pub fn persist(&self) -> Result<()> { unimplemented!() }
    pub fn stats(&self) -> Stats { unimplemented!() }
    pub fn verify(&self, report: &mut dyn FnMut(Error)) -> Result<VerifyReport> { unimplemented!() }
    pub fn pump(&self) -> Result<bool> { unimplemented!() }
    pub fn close(&self) -> Result<()> { unimplemented!() }
}
#[allow(missing_docs)]
impl View {
    pub fn seq(&self) -> Seq { unimplemented!() }
    pub fn store(&self) -> &Arc<Store> { unimplemented!() }
    pub fn check_open(&self) -> Result<()> { unimplemented!() }
    pub fn keyspaces(&self) -> impl Iterator<Item = &Arc<Kept>> { std::iter::empty() }
}
