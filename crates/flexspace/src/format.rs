//! # Format of the head, the log records and the checkpoint
//!
//! docs/format/flexspace.md specifies the layouts. Only this module encodes and decodes them.

use std::path::PathBuf;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::double_slot::DoubleSlotState;
use sheaf_log::types::{SegmentId, StoreId};
use sheaf_platform::codec::{COUNT_LIMIT, FieldReader, FieldWriter};
use sheaf_platform::error::{Damage, Result};

use crate::checkpoint::NodeRoot;
use crate::extent::{Extent, MAX_EXTENT};
use crate::options::GeometryKind;
use crate::tree::{MAX_LEN, TreeEntry};

/// Directory of the log segments.
pub(crate) const LOG_DIR: &str = "log";
/// Directory of the checkpoints.
pub(crate) const TREE_DIR: &str = "tree";

/// Version of the heads. Recovery points name a node file since 8.
const HEAD_VERSION: u32 = 8;
/// Layout of a checkpoint with a list of extents.
const LIST_LAYOUT: u64 = 1;
/// Layout of a checkpoint with the root of nodes in a node file.
const NODES_LAYOUT: u64 = 2;

/// Reference to one log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSegmentRef {
    pub(crate) id: SegmentId,
    /// If `is_final`, frames after this offset do not count.
    pub(crate) end: u64,
    pub(crate) is_final: bool,
}

/// State from which recovery starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpaceHead {
    pub(crate) generation: u64,
    pub(crate) space: StoreId,
    /// Number of times the space was opened for writing.
    pub(crate) incarnation: u64,
    pub(crate) geometry_kind: GeometryKind,
    /// All operations up to this one are durable, including their data.
    pub(crate) floor: u64,
    /// No log segment or checkpoint has this number or a higher one.
    pub(crate) next_number: u64,
    /// Newest checkpoint, and the log after it.
    pub(crate) newest: RecoveryPoint,
    /// Previous checkpoint, and the log up to the newest one. Recovery uses it if the newest
    /// checkpoint is damaged.
    pub(crate) older: RecoveryPoint,
}

/// Checkpoint and the log after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryPoint {
    /// Number of the checkpoint, 0 if there is none. `seq` is the last operation in it.
    pub(crate) checkpoint: u64,
    /// Number of the checkpoint that created the node file of this checkpoint, 0 if it has none.
    pub(crate) nodes: u64,
    pub(crate) seq: u64,
    /// Log segments in order.
    pub(crate) logs: Vec<LogSegmentRef>,
}

impl RecoveryPoint {
    fn encode(&self, w: &mut FieldWriter) {
        w.u64(self.checkpoint);
        w.u64(self.nodes);
        w.u64(self.seq);
        w.list(&self.logs, |w, log| {
            w.u64(log.id.0);
            w.u64(log.end);
            w.u8(u8::from(log.is_final));
        });
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<RecoveryPoint, Damage> {
        let log = |r: &mut FieldReader<'_>| {
            Ok(LogSegmentRef { id: SegmentId(r.counter("log")?), end: r.u64()?, is_final: r.u8()? != 0 })
        };
        Ok(RecoveryPoint {
            checkpoint: r.counter("checkpoint")?,
            nodes: r.counter("node file")?,
            seq: r.counter("operation")?,
            logs: r.list(log)?,
        })
    }
}

impl DoubleSlotState for SpaceHead {
    const STEM: &'static str = "HEAD";
    const MAGIC: &'static [u8; 8] = b"SHEAFFLX";
    const OLDEST_VERSION: u32 = HEAD_VERSION;
    const NEWEST_VERSION: u32 = HEAD_VERSION;

    fn version(&self) -> u32 {
        HEAD_VERSION
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.generation);
        w.u128(self.space.0);
        w.u64(self.incarnation);
        w.u8(self.geometry_kind as u8);
        w.u64(self.floor);
        w.u64(self.next_number);
        self.newest.encode(&mut w);
        self.older.encode(&mut w);
        w.0
    }

    fn decode(body: &[u8]) -> Result<SpaceHead, Damage> {
        let mut r = FieldReader::new(body);
        let head = SpaceHead {
            generation: r.counter("generation")?,
            space: StoreId(r.u128()?),
            incarnation: r.counter("incarnation")?,
            geometry_kind: decode_geometry_kind(&mut r)?,
            floor: r.counter("floor")?,
            next_number: r.counter("next number")?,
            newest: RecoveryPoint::decode(&mut r)?,
            older: RecoveryPoint::decode(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

/// Description of the valid bits of an extent, for errors.
pub(crate) const VALID_EXTENT: &str = "a hole, or bits of an address and a skip only";

/// Returns the maximum length of an extent.
pub(crate) fn max_len(extent: Extent) -> u64 {
    if extent.is_hole() { MAX_LEN } else { MAX_EXTENT - extent.skip() }
}

fn decode_geometry_kind(r: &mut FieldReader<'_>) -> Result<GeometryKind, Damage> {
    let bits = r.u8()?;
    let bad = || Damage::bad_field("geometry", "standard, tiny or fine", u64::from(bits));
    GeometryKind::from_bits(bits).ok_or_else(bad)
}

pub(crate) fn checkpoint_name(number: u64) -> PathBuf {
    PathBuf::from(TREE_DIR).join(format!("{number:016x}.img"))
}

/// Returns the number in the name of a checkpoint file.
pub(crate) fn checkpoint_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".img").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|number| *number < COUNT_LIMIT)
}

pub(crate) fn node_file_name(number: u64) -> PathBuf {
    PathBuf::from(TREE_DIR).join(format!("{number:016x}.nodes"))
}

/// Consecutive extents: length and location of each.
pub(crate) type ExtentRun = Vec<(u64, Extent)>;

/// Change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndexRecord {
    /// Bytes are inserted at `at`.
    Insert { at: u64, run: ExtentRun },
    /// The bytes from `at` are now stored in these extents.
    Remap { at: u64, run: ExtentRun },
    /// Bytes are removed.
    Collapse { at: u64, len: u64 },
    /// The segment is used from here on, with a new serial.
    Open { segment: u32, serial: u64 },
    /// Caller's mark.
    Mark(u64),
}

impl IndexRecord {
    fn encode(&self, w: &mut FieldWriter) {
        let run = |w: &mut FieldWriter, kind: u8, at: u64, run: &ExtentRun| {
            w.u8(kind);
            w.u64(at);
            w.list(run, |w, (len, extent)| {
                w.u64(extent.bits());
                w.u64(*len);
            });
        };
        match self {
            IndexRecord::Insert { at, run: extents } => run(w, 1, *at, extents),
            IndexRecord::Remap { at, run: extents } => run(w, 2, *at, extents),
            IndexRecord::Collapse { at, len } => {
                w.u8(3);
                w.u64(*at);
                w.u64(*len);
            }
            IndexRecord::Open { segment, serial } => {
                w.u8(4);
                w.u32(*segment);
                w.u64(*serial);
            }
            IndexRecord::Mark(mark) => {
                w.u8(5);
                w.u64(*mark);
            }
        }
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<IndexRecord, Damage> {
        let run = |r: &mut FieldReader<'_>| {
            r.list(|r| {
                let bits = r.u64()?;
                let bad = || Damage::bad_field("extent", VALID_EXTENT, bits);
                let extent = Extent::from_bits(bits).ok_or_else(bad)?;
                let (len, most) = (r.u64()?, max_len(extent));
                if len == 0 || len > most {
                    return Err(Damage::bad_field("extent length", 1..=most, len));
                }
                Ok((len, extent))
            })
        };
        let value = r.u8()?;
        Ok(match value {
            1 => IndexRecord::Insert { at: r.u64()?, run: run(r)? },
            2 => IndexRecord::Remap { at: r.u64()?, run: run(r)? },
            3 => IndexRecord::Collapse { at: r.u64()?, len: r.u64()? },
            4 => IndexRecord::Open { segment: r.u32()?, serial: r.u64()? },
            5 => IndexRecord::Mark(r.u64()?),
            _ => return Err(Damage::bad_field("record", 1..=5, u64::from(value))),
        })
    }
}

/// Encodes the records of one operation.
pub(crate) fn encode(records: &[IndexRecord]) -> Vec<u8> {
    let mut w = FieldWriter::default();
    records.iter().for_each(|record| record.encode(&mut w));
    w.0
}

/// Decodes the records of a frame.
pub(crate) fn decode(mut body: &[u8]) -> Result<Vec<IndexRecord>, Damage> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let mut r = FieldReader::new(body);
        records.push(IndexRecord::decode(&mut r)?);
        body = r.rest();
    }
    Ok(records)
}

/// Header of a checkpoint. `serials` is empty if a node file has them.
pub(crate) struct CheckpointHeader {
    pub(crate) seq: u64,
    pub(crate) mark: u64,
    pub(crate) entries: u64,
    pub(crate) serials: Vec<(u32, u64)>,
}

/// Writes a checkpoint: its header and the index entries.
///
/// # Errors
///
/// Returns the errors of `out`.
pub(crate) fn write_checkpoint(
    summary: &CheckpointHeader,
    entries: impl Iterator<Item = TreeEntry<Extent>>,
    out: &mut dyn ImageSink,
) -> Result<()> {
    let mut w = FieldWriter::default();
    w.u64s([&LIST_LAYOUT, &summary.seq, &summary.mark, &summary.entries]);
    w.u64(summary.serials.len() as u64);
    for (segment, serial) in &summary.serials {
        w.u32(*segment);
        w.u64(*serial);
    }
    out.put(&w.0)?;
    for TreeEntry { len, item, .. } in entries {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&item.bits().to_le_bytes());
        bytes[8..].copy_from_slice(&len.to_le_bytes());
        out.put(&bytes)?;
    }
    Ok(())
}

/// Writes a checkpoint whose extents are in a node file.
///
/// # Errors
///
/// Returns the errors of `out`.
pub(crate) fn write_node_checkpoint(
    summary: &CheckpointHeader,
    root: &NodeRoot,
    out: &mut dyn ImageSink,
) -> Result<()> {
    let mut w = FieldWriter::default();
    w.u64s([&NODES_LAYOUT, &summary.seq, &summary.mark, &summary.entries]);
    root.encode(&mut w);
    out.put(&w.0)
}

/// Reads the output of [`write_checkpoint`] or [`write_node_checkpoint`]. Calls `each` with the
/// entries of a list in order, or returns the root of the nodes.
pub(crate) fn read_checkpoint(
    image: &mut dyn ImageSource,
    mut each: impl FnMut(u64, Extent),
) -> Result<(CheckpointHeader, Option<NodeRoot>)> {
    let number = |image: &mut dyn ImageSource| {
        let mut bytes = [0; 8];
        image.fill(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let layout = number(image)?;
    let (seq, mark, entries) = (number(image)?, number(image)?, number(image)?);
    match layout {
        LIST_LAYOUT => {}
        NODES_LAYOUT => {
            let summary = CheckpointHeader { seq, mark, entries, serials: Vec::new() };
            return Ok((summary, Some(NodeRoot::read(image)?)));
        }
        _ => return Err(image.invalid_field("layout", (LIST_LAYOUT..=NODES_LAYOUT).into(), layout)),
    }
    let segments = number(image)?;
    let mut serials = Vec::new();
    for _ in 0..segments {
        let mut segment = [0; 4];
        image.fill(&mut segment)?;
        serials.push((u32::from_le_bytes(segment), number(image)?));
    }
    let mut total = 0;
    for _ in 0..entries {
        let (bits, len) = (number(image)?, number(image)?);
        let bad = || image.invalid_field("extent", VALID_EXTENT.into(), bits);
        let extent = Extent::from_bits(bits).ok_or_else(bad)?;
        let most = max_len(extent).min(MAX_LEN - total);
        if len == 0 || len > most {
            return Err(image.invalid_field("extent length", (1..=most).into(), len));
        }
        total += len;
        each(len, extent);
    }
    Ok((CheckpointHeader { seq, mark, entries, serials }, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeItem;

    #[test]
    fn records_and_head_round_trip_and_prefixes_are_rejected() {
        let records = vec![
            IndexRecord::Insert { at: 7, run: vec![(100, Extent::new(4096)), (1 << 61, Extent::HOLE)] },
            IndexRecord::Remap { at: u64::MAX, run: vec![(1, Extent::new(8).suffix(131_071))] },
            IndexRecord::Collapse { at: 1, len: 2 },
            IndexRecord::Open { segment: 3, serial: 1 << 40 },
            IndexRecord::Mark(9),
        ];
        let bytes = encode(&records);
        assert_eq!(decode(&bytes), Ok(records));
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode(&[9]).is_err());
        let beyond_chunk = IndexRecord::Insert { at: 0, run: vec![(131_072, Extent::new(8).suffix(1))] };
        assert!(decode(&encode(&[beyond_chunk])).is_err());
        let head = SpaceHead {
            generation: 1,
            space: StoreId(2),
            incarnation: 3,
            geometry_kind: GeometryKind::Fine,
            floor: 4,
            next_number: 5,
            newest: RecoveryPoint {
                checkpoint: 6,
                nodes: 5,
                seq: 7,
                logs: vec![LogSegmentRef { id: SegmentId(8), end: 9, is_final: true }],
            },
            older: RecoveryPoint { checkpoint: 3, nodes: 1, seq: 2, logs: Vec::new() },
        };
        let bytes = head.encode();
        assert_eq!(SpaceHead::decode(&bytes), Ok(head));
        assert!((0..bytes.len()).all(|len| SpaceHead::decode(&bytes[..len]).is_err()));
    }
}
