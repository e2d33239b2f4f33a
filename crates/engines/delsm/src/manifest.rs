//! # Manifest: what a keyspace consists of
//!
//! A pair of slots (`base::pair`) in the keyspace's directory.
//!
//! ```text
//!  KEYS.0 KEYS.1  magic "SHEAFLSM":  generation 8 | owner 8 | up to 8 | next number 8 | tables: count 4, table ... |
//!                                    packs: count 4, number 8 ...
//!  table          level 1 | directory 8 | key list 8 | flags 1: 1 settled, 2 may hold files that its list does not name,
//!                                                              4 a key of it has several versions
//! ```
//!
//! `up to`: all commits of the keyspace up to there are in tables, so that replay skips them. Tables of level 0 come the
//! newest first, those of other levels in the order of their keys.

use sheaf_base::codec::{Reader, Writer};
use sheaf_base::error::Damage;
use sheaf_base::pair::State;
use sheaf_base::types::Seq;

/// Levels there may be.
pub(crate) const LEVELS: usize = 8;
const SETTLED: u8 = 1;
const LITTERED: u8 = 2;
const LAYERED: u8 = 4;

/// A table, as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) level: u8,
    pub(crate) dir: u64,
    pub(crate) list: u64,
    pub(crate) marks: Marks,
}

/// What is known of a table beside its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// All its files are in its directory, durably.
    pub(crate) settled: bool,
    /// Its directory may hold files that the list does not name.
    pub(crate) littered: bool,
    /// A key of it has several versions.
    pub(crate) layered: bool,
}

impl Marks {
    fn bits(self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.settled, SETTLED) | bit(self.littered, LITTERED) | bit(self.layered, LAYERED)
    }

    fn of(bits: u8) -> Option<Marks> {
        let has = |bit: u8| bits & bit != 0;
        let marks = Marks { settled: has(SETTLED), littered: has(LITTERED), layered: has(LAYERED) };
        (marks.bits() == bits).then_some(marks)
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) generation: u64,
    /// As in the head of a key list.
    pub(crate) owner: u64,
    pub(crate) up_to: Seq,
    pub(crate) next: u64,
    pub(crate) tables: Vec<TableEntry>,
    pub(crate) packs: Vec<u64>,
}

impl State for Manifest {
    const STEM: &'static str = "KEYS";
    const MAGIC: &'static [u8; 8] = b"SHEAFLSM";

    fn generation(&self) -> u64 {
        self.generation
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.generation);
        w.u64(self.owner);
        w.u64(self.up_to.0);
        w.u64(self.next);
        w.list(&self.tables, |w, table| {
            w.u8(table.level);
            w.u64(table.dir);
            w.u64(table.list);
            w.u8(table.marks.bits());
        });
        w.list(&self.packs, |w, pack| w.u64(*pack));
        w.0
    }

    fn decode(body: &[u8]) -> Result<Manifest, Damage> {
        let mut r = Reader::new(body);
        let (generation, owner) = (r.counter("generation")?, r.u64()?);
        let (up_to, next) = (Seq(r.counter("commit")?), r.counter("next number")?);
        let tables = r.list(|r| {
            let (level, dir, list, marks) = (r.u8()?, r.u64()?, r.u64()?, Marks::of(r.u8()?));
            match marks.filter(|_| usize::from(level) < LEVELS && dir < next && list < next) {
                Some(marks) => Ok(TableEntry { level, dir, list, marks }),
                None => Err(Damage::BadField { field: "table", value: dir }),
            }
        })?;
        let packs = r.list(|r| match r.u64()? {
            pack if pack < next => Ok(pack),
            pack => Err(Damage::BadField { field: "pack", value: pack }),
        })?;
        r.finish()?;
        Ok(Manifest { generation, owner, up_to, next, tables, packs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_never_given_is_damage() {
        let marks = Marks { settled: true, littered: false, layered: false };
        let entry = |dir, list| TableEntry { level: 1, dir, list, marks };
        let good = Manifest { next: 8, tables: vec![entry(6, 7)], packs: vec![5, 7], ..Manifest::default() };
        assert_eq!(Manifest::decode(&good.encode()).as_ref(), Ok(&good));
        for tables in [vec![entry(8, 7)], vec![entry(6, 8)]] {
            let bad = Manifest { tables, ..good.clone() };
            assert!(Manifest::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        let bad = Manifest { packs: vec![5, 8], ..good };
        let expected = Damage::BadField { field: "pack", value: 8 };
        assert_eq!(Manifest::decode(&bad.encode()), Err(expected));
    }
}
