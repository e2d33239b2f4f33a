//! # Manifest: the tables and packs of a keyspace
//!
//! A pair of slots (`log::double_slot`) in the directory of the keyspace.
//!
//! ```text
//!  KEYS.0 KEYS.1  magic "SHEAFLSM":  generation 8 | owner 8 | up to 8 | next number 8 |
//!                                    tables: count 4, table ... | packs: count 4, number 8 ...
//!  table          level 1 | directory 8 | key list 8 |
//!                 flags 1: 1 all files linked, 2 may have files that its list does not name,
//!                          4 a key of it has several versions
//! ```
//!
//! `up to`: all commits of the keyspace up to this one are in tables, so that replay skips them.
//! Tables of level 0 are in order of age, newest first. Tables of other levels are in the order of
//! their keys.

use sheaf_log::double_slot::DoubleSlotState;
use sheaf_log::types::Seq;
use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::error::Damage;

/// Maximum number of levels.
pub(crate) const LEVELS: usize = 8;
const FILES_LINKED: u8 = 1;
const HAS_UNLISTED_FILES: u8 = 2;
const HAS_OLD_VERSIONS: u8 = 4;

/// Entry of the manifest for a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) level: u8,
    pub(crate) dir: u64,
    pub(crate) list: u64,
    pub(crate) flags: TableFlags,
}

/// Properties of a table that its list does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableFlags {
    /// True if all files of the table are durably in its directory.
    pub(crate) files_linked: bool,
    /// True if the directory may contain files that the list does not name.
    pub(crate) has_unlisted_files: bool,
    /// True if a key of the table has several versions.
    pub(crate) has_old_versions: bool,
}

impl TableFlags {
    fn bits(self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.files_linked, FILES_LINKED)
            | bit(self.has_unlisted_files, HAS_UNLISTED_FILES)
            | bit(self.has_old_versions, HAS_OLD_VERSIONS)
    }

    fn of(bits: u8) -> Option<TableFlags> {
        let has = |bit: u8| bits & bit != 0;
        let marks = TableFlags {
            files_linked: has(FILES_LINKED),
            has_unlisted_files: has(HAS_UNLISTED_FILES),
            has_old_versions: has(HAS_OLD_VERSIONS),
        };
        (marks.bits() == bits).then_some(marks)
    }
}

/// Content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableManifest {
    pub(crate) generation: u64,
    /// Owner, as in the head of a key list.
    pub(crate) owner: u64,
    pub(crate) flushed_seq: Seq,
    pub(crate) next_number: u64,
    pub(crate) tables: Vec<TableEntry>,
    pub(crate) packs: Vec<u64>,
}

impl TableManifest {
    /// Returns true if all numbers of directories, lists and packs are below the next number.
    pub(crate) fn has_issued_numbers(&self) -> bool {
        let next = self.next_number;
        self.tables.iter().all(|table| table.dir < next && table.list < next)
            && self.packs.iter().all(|pack| *pack < next)
    }
}

impl DoubleSlotState for TableManifest {
    const STEM: &'static str = "KEYS";
    const MAGIC: &'static [u8; 8] = b"SHEAFLSM";

    fn generation(&self) -> u64 {
        self.generation
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.generation);
        w.u64(self.owner);
        w.u64(self.flushed_seq.0);
        w.u64(self.next_number);
        w.list(&self.tables, |w, table| {
            w.u8(table.level);
            w.u64(table.dir);
            w.u64(table.list);
            w.u8(table.flags.bits());
        });
        w.list(&self.packs, |w, pack| w.u64(*pack));
        w.0
    }

    fn decode(body: &[u8]) -> Result<TableManifest, Damage> {
        let mut r = FieldReader::new(body);
        let (generation, owner) = (r.counter("generation")?, r.u64()?);
        let (flushed_seq, next) = (Seq(r.counter("commit")?), r.counter("next number")?);
        let tables = r.list(|r| {
            let (level, dir, list, flags) = (r.u8()?, r.u64()?, r.u64()?, r.u8()?);
            let marks = TableFlags::of(flags);
            let numbers =
                [("level", level.into(), LEVELS as u64), ("directory", dir, next), ("list", list, next)];
            match (numbers.into_iter().find(|(_, number, end)| number >= end), marks) {
                (Some((field, number, end)), _) => Err(Damage::bad_field(field, 0..end, number)),
                (None, Some(marks)) => Ok(TableEntry { level, dir, list, flags: marks }),
                (None, None) => Err(Damage::bad_field("flags", "known flags", u64::from(flags))),
            }
        })?;
        let packs = r.list(|r| match r.u64()? {
            pack if pack < next => Ok(pack),
            pack => Err(Damage::bad_field("pack", 0..next, pack)),
        })?;
        r.finish()?;
        Ok(TableManifest { generation, owner, flushed_seq, next_number: next, tables, packs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_never_given_is_damage() {
        let marks = TableFlags { files_linked: true, has_unlisted_files: false, has_old_versions: false };
        let entry = |dir, list| TableEntry { level: 1, dir, list, flags: marks };
        let good = TableManifest {
            next_number: 8,
            tables: vec![entry(6, 7)],
            packs: vec![5, 7],
            ..TableManifest::default()
        };
        assert_eq!(TableManifest::decode(&good.encode()).as_ref(), Ok(&good));
        for tables in [vec![entry(8, 7)], vec![entry(6, 8)]] {
            let bad = TableManifest { tables, ..good.clone() };
            assert!(TableManifest::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        let bad = TableManifest { packs: vec![5, 8], ..good };
        let expected = Damage::bad_field("pack", ..=7, 8);
        assert_eq!(TableManifest::decode(&bad.encode()), Err(expected));
    }
}
