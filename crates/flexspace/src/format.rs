//! # Format: the head, the log's records, the checkpoint
//!
//! docs/format/flexspace.md has the layouts; this module is the only one that knows them.

use std::path::PathBuf;

use sheaf_base::codec::{COUNTED, Reader, Writer};
use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::{Damage, Result};
use sheaf_base::pair::State;
use sheaf_base::types::{SegmentId, StoreId};

use crate::extent::Extent;
use crate::options::Grain;
use crate::tree::MAX_LEN;

/// Where the log's segments are.
pub(crate) const LOG: &str = "log";
/// Where checkpoints are.
pub(crate) const TREE: &str = "tree";

/// One segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub(crate) id: SegmentId,
    /// Nothing behind this counts, if `is_final`.
    pub(crate) end: u64,
    pub(crate) is_final: bool,
}

/// What recovery starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) generation: u64,
    pub(crate) space: StoreId,
    /// Counts the openings for writing.
    pub(crate) incarnation: u64,
    pub(crate) grain: Grain,
    /// Everything up to here is durable, its data included.
    pub(crate) floor: u64,
    /// No log segment or checkpoint has this number or a higher one.
    pub(crate) next_number: u64,
    /// The checkpoint, and where the log goes on from it.
    pub(crate) newest: Chapter,
    /// The one before, with the log up to the newest: what recovery falls back on if that is damaged.
    pub(crate) older: Chapter,
}

/// A checkpoint and the log from there on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chapter {
    /// The checkpoint's number, and the last operation in it; 0 if there is none.
    pub(crate) checkpoint: u64,
    pub(crate) seq: u64,
    /// In order.
    pub(crate) logs: Vec<LogEntry>,
}

impl Chapter {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.checkpoint);
        w.u64(self.seq);
        w.list(&self.logs, |w, log| {
            w.u64(log.id.0);
            w.u64(log.end);
            w.u8(u8::from(log.is_final));
        });
    }

    fn decode(r: &mut Reader<'_>) -> Result<Chapter, Damage> {
        let log = |r: &mut Reader<'_>| {
            Ok(LogEntry { id: SegmentId(r.counter("log")?), end: r.u64()?, is_final: r.u8()? != 0 })
        };
        Ok(Chapter { checkpoint: r.counter("checkpoint")?, seq: r.counter("operation")?, logs: r.list(log)? })
    }
}

impl State for Head {
    const STEM: &'static str = "HEAD";
    const MAGIC: &'static [u8; 8] = b"SHEAFFLX";

    fn generation(&self) -> u64 {
        self.generation
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.generation);
        w.u128(self.space.0);
        w.u64(self.incarnation);
        w.u8(self.grain as u8);
        w.u64(self.floor);
        w.u64(self.next_number);
        self.newest.encode(&mut w);
        self.older.encode(&mut w);
        w.0
    }

    fn decode(body: &[u8]) -> Result<Head, Damage> {
        let mut r = Reader::new(body);
        let head = Head {
            generation: r.counter("generation")?,
            space: StoreId(r.u128()?),
            incarnation: r.counter("incarnation")?,
            grain: grain(&mut r)?,
            floor: r.counter("floor")?,
            next_number: r.counter("next number")?,
            newest: Chapter::decode(&mut r)?,
            older: Chapter::decode(&mut r)?,
        };
        r.finish()?;
        Ok(head)
    }
}

fn grain(r: &mut Reader<'_>) -> Result<Grain, Damage> {
    let bits = r.u8()?;
    Grain::from_bits(bits).ok_or(Damage::BadField { field: "grain", value: u64::from(bits) })
}

pub(crate) fn checkpoint_name(number: u64) -> PathBuf {
    PathBuf::from(TREE).join(format!("{number:016x}.img"))
}

/// The number in the name of a checkpoint.
pub(crate) fn checkpoint_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".img").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|number| *number < COUNTED)
}

/// A run of extents, by length and place.
pub(crate) type Run = Vec<(u64, Extent)>;

/// A change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Bytes came between.
    Insert { at: u64, run: Run },
    /// Bytes are kept elsewhere now.
    Remap { at: u64, run: Run },
    /// Bytes went.
    Collapse { at: u64, len: u64 },
    /// A segment is used (again) from now on.
    Open { segment: u32, serial: u64 },
    /// The caller's number.
    Mark(u64),
}

impl Record {
    fn encode(&self, w: &mut Writer) {
        let run = |w: &mut Writer, kind: u8, at: u64, run: &Run| {
            w.u8(kind);
            w.u64(at);
            w.list(run, |w, (len, extent)| {
                w.u64(extent.bits());
                w.u64(*len);
            });
        };
        match self {
            Record::Insert { at, run: extents } => run(w, 1, *at, extents),
            Record::Remap { at, run: extents } => run(w, 2, *at, extents),
            Record::Collapse { at, len } => {
                w.u8(3);
                w.u64(*at);
                w.u64(*len);
            }
            Record::Open { segment, serial } => {
                w.u8(4);
                w.u32(*segment);
                w.u64(*serial);
            }
            Record::Mark(mark) => {
                w.u8(5);
                w.u64(*mark);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Record, Damage> {
        let run = |r: &mut Reader<'_>| {
            r.list(|r| {
                let bits = r.u64()?;
                let extent =
                    Extent::from_bits(bits).ok_or(Damage::BadField { field: "extent", value: bits })?;
                let len = r.u64()?;
                if len == 0 || len > MAX_LEN {
                    return Err(Damage::BadField { field: "extent length", value: len });
                }
                Ok((len, extent))
            })
        };
        let value = r.u8()?;
        Ok(match value {
            1 => Record::Insert { at: r.u64()?, run: run(r)? },
            2 => Record::Remap { at: r.u64()?, run: run(r)? },
            3 => Record::Collapse { at: r.u64()?, len: r.u64()? },
            4 => Record::Open { segment: r.u32()?, serial: r.u64()? },
            5 => Record::Mark(r.u64()?),
            _ => return Err(Damage::BadField { field: "record", value: u64::from(value) }),
        })
    }
}

/// The records of one operation.
pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut w = Writer::default();
    records.iter().for_each(|record| record.encode(&mut w));
    w.0
}

/// The records of a frame.
pub(crate) fn decode(mut body: &[u8]) -> Result<Vec<Record>, Damage> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let mut r = Reader::new(body);
        records.push(Record::decode(&mut r)?);
        body = r.rest();
    }
    Ok(records)
}

/// What a checkpoint starts with.
pub(crate) struct Summary {
    pub(crate) seq: u64,
    pub(crate) mark: u64,
    pub(crate) entries: u64,
    pub(crate) serials: Vec<(u32, u64)>,
}

/// Writes the summary.
pub(crate) fn save_summary(summary: &Summary, out: &mut dyn ImageSink) -> Result<()> {
    let mut w = Writer::default();
    w.u64(summary.seq);
    w.u64(summary.mark);
    w.u64(summary.entries);
    w.u64(summary.serials.len() as u64);
    for (segment, serial) in &summary.serials {
        w.u32(*segment);
        w.u64(*serial);
    }
    out.put(&w.0)
}

/// Writes one entry.
pub(crate) fn save_entry(len: u64, extent: Extent, out: &mut dyn ImageSink) -> Result<()> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&extent.bits().to_le_bytes());
    bytes[8..].copy_from_slice(&len.to_le_bytes());
    out.put(&bytes)
}

/// Reads what [`save_summary`] and [`save_entry`] wrote; the entries, in order, go to `each`.
pub(crate) fn load(image: &mut dyn ImageSource, mut each: impl FnMut(u64, Extent)) -> Result<Summary> {
    let number = |image: &mut dyn ImageSource| {
        let mut bytes = [0; 8];
        image.fill(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let (seq, mark) = (number(image)?, number(image)?);
    let (entries, segments) = (number(image)?, number(image)?);
    let mut serials = Vec::new();
    for _ in 0..segments {
        let mut segment = [0; 4];
        image.fill(&mut segment)?;
        serials.push((u32::from_le_bytes(segment), number(image)?));
    }
    let mut total = 0;
    for _ in 0..entries {
        let (bits, len) = (number(image)?, number(image)?);
        let extent = Extent::from_bits(bits).ok_or_else(|| image.nonsense("extent", bits))?;
        if len == 0 || len > MAX_LEN - total {
            return Err(image.nonsense("extent length", len));
        }
        total += len;
        each(len, extent);
    }
    Ok(Summary { seq, mark, entries, serials })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Content;

    #[test]
    fn records_and_head_come_back_and_no_prefix_of_them_does() {
        let records = vec![
            Record::Insert { at: 7, run: vec![(100, Extent::new(4096)), (1 << 61, Extent::HOLE)] },
            Record::Remap { at: u64::MAX, run: vec![(1, Extent::new(8).tail(131_071))] },
            Record::Collapse { at: 1, len: 2 },
            Record::Open { segment: 3, serial: 1 << 40 },
            Record::Mark(9),
        ];
        let bytes = encode(&records);
        assert_eq!(decode(&bytes), Ok(records));
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode(&[9]).is_err());
        let head = Head {
            generation: 1,
            space: StoreId(2),
            incarnation: 3,
            grain: Grain::Fine,
            floor: 4,
            next_number: 5,
            newest: Chapter {
                checkpoint: 6,
                seq: 7,
                logs: vec![LogEntry { id: SegmentId(8), end: 9, is_final: true }],
            },
            older: Chapter { checkpoint: 3, seq: 2, logs: Vec::new() },
        };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Ok(head));
        assert!((0..bytes.len()).all(|len| Head::decode(&bytes[..len]).is_err()));
    }
}
