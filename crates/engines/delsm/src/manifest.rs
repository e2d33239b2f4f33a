//! # Manifest: what a keyspace consists of
//!
//! A pair of slots (`base::pair`) in the keyspace's directory.
//!
//! ```text
//!  KEYS.0 KEYS.1  magic "SHEAFLSM":  generation 8 | owner 8 | up to 8 | next number 8 | tables: count 4, table ... |
//!                                    packs: count 4, number 8 ...
//!  table          level 1 | directory 8 | key list 8 | flags 1: 1 settled, 2 may hold files that its list does not name
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

/// A table, as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) level: u8,
    pub(crate) dir: u64,
    pub(crate) list: u64,
    pub(crate) settled: bool,
    pub(crate) littered: bool,
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
            let settled = if table.settled { SETTLED } else { 0 };
            w.u8(settled | if table.littered { LITTERED } else { 0 });
        });
        w.list(&self.packs, |w, pack| w.u64(*pack));
        w.0
    }

    fn decode(body: &[u8]) -> Result<Manifest, Damage> {
        let mut r = Reader::new(body);
        let (generation, owner, up_to, next) = (r.u64()?, r.u64()?, Seq(r.u64()?), r.u64()?);
        let tables = r.list(|r| {
            let (level, dir, list, flags) = (r.u8()?, r.u64()?, r.u64()?, r.u8()?);
            if usize::from(level) >= LEVELS || flags > SETTLED | LITTERED || dir >= next || list >= next {
                return Err(Damage::BadField { field: "table", value: dir });
            }
            Ok(TableEntry {
                level,
                dir,
                list,
                settled: flags & SETTLED != 0,
                littered: flags & LITTERED != 0,
            })
        })?;
        let packs = r.list(|r| r.u64())?;
        r.finish()?;
        Ok(Manifest { generation, owner, up_to, next, tables, packs })
    }
}
