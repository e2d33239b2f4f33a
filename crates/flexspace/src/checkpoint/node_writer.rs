//! # Node writer: appends nodes to the free blocks of a node file
//!
//! Nodes are written one after the other into each run of free blocks, in large pieces. A node does
//! not cross the end of a run. Blocks of the older root of the file are never written.

use std::path::PathBuf;
use std::sync::Arc;

use sheaf_log::types::StoreId;
use sheaf_platform::disk::File;
use sheaf_platform::error::{IoContext, IoOp, Result};

use super::block_set::BlockSet;
use super::node_format::{NodePlace, StoredNodeRef, file_header, node_checksum};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// An open node file.
#[derive(Clone, Debug)]
pub(crate) struct NodeFile {
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    pub(crate) space: StoreId,
    /// Number of the checkpoint that created the file.
    pub(crate) number: u64,
}

/// Writer of the nodes of one checkpoint.
#[derive(Debug)]
pub(crate) struct NodeWriter<'a> {
    target: &'a NodeFile,
    /// Blocks that must not be written.
    kept: &'a BlockSet,
    /// Blocks of the new root.
    pub(crate) used: BlockSet,
    buffer: Vec<u8>,
    /// Offset of the buffer, and the end of the run of free blocks that contains it.
    at: u64,
    run_end: u64,
    /// Bytes of the nodes that were written.
    pub(crate) written: u64,
    /// End of the last node that was written.
    pub(crate) end: u64,
}

impl<'a> NodeWriter<'a> {
    pub(crate) fn new(target: &'a NodeFile, kept: &'a BlockSet, used: BlockSet) -> NodeWriter<'a> {
        let (at, run_end) = kept.free_run(0);
        NodeWriter { target, kept, used, buffer: Vec::new(), at, run_end, written: 0, end: 0 }
    }

    /// Writes the header of a new file.
    ///
    /// # Errors
    ///
    /// Returns the error of the write.
    pub(crate) fn write_header(&self) -> Result<()> {
        let header = file_header(self.target.space, self.target.number);
        self.target.file.write_at(0, &header).during(IoOp::Write, &self.target.path)
    }

    /// Appends a node. Sets its checksum.
    ///
    /// # Errors
    ///
    /// Returns the error of a write.
    pub(crate) fn put(&mut self, number: u64, node: &mut [u8]) -> Result<StoredNodeRef> {
        let len = node.len() as u64;
        while self.at + self.buffer.len() as u64 + len > self.run_end {
            self.flush()?;
            (self.at, self.run_end) = self.kept.free_run(self.run_end);
        }
        let offset = self.at + self.buffer.len() as u64;
        let sum = node_checksum(self.target.space, self.target.number, offset, number, &node[4..]);
        node[..4].copy_from_slice(&sum.to_le_bytes());
        self.buffer.extend_from_slice(node);
        let place = NodePlace::new(offset, len);
        self.used.add(place);
        self.written += len;
        self.end = self.end.max(offset + len);
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(StoredNodeRef { place, number })
    }

    /// Writes the buffered nodes.
    ///
    /// # Errors
    ///
    /// Returns the error of the write.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let target = self.target;
            target.file.write_at(self.at, &self.buffer).during(IoOp::Write, &target.path)?;
            self.at += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}
