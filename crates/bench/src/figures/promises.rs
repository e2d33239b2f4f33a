//! # Promises: the required figures, in the order of the engines `flat`, `flex` and `cedrus`

use crate::promise_table::BoundKind::{AtLeast, AtMost};
use crate::promise_table::PromisedFigure;

pub(super) const GET_UNIFORM: PromisedFigure = PromisedFigure {
    what: "get-uniform, 2 threads",
    bound: AtLeast,
    unit: "× LMDB",
    must: 2.0,
    aim: Some(3.0),
};
pub(super) const GET_MISS: PromisedFigure = PromisedFigure {
    what: "get-miss, 2 threads",
    bound: AtLeast,
    unit: "× the best peer",
    must: 3.0,
    aim: Some(6.0),
};
pub(super) const FILL_RANDOM: PromisedFigure = PromisedFigure {
    what: "fill-random, 1 thread",
    bound: AtLeast,
    unit: "× RocksDB",
    must: 5.0,
    aim: Some(10.0),
};
pub(super) const UPDATE_ZIPF: PromisedFigure = PromisedFigure {
    what: "update-zipf, 2 threads, after the log has wrapped",
    bound: AtLeast,
    unit: "× RocksDB",
    must: 6.0,
    aim: Some(12.0),
};
pub(super) const DURABLE_1: PromisedFigure = PromisedFigure {
    what: "durable writes of 100 bytes, 1 thread",
    bound: AtLeast,
    unit: "× the device's syncs",
    must: 0.9,
    aim: Some(1.0),
};
pub(super) const DURABLE_8: PromisedFigure = PromisedFigure {
    what: "durable writes of 100 bytes, 8 threads",
    bound: AtLeast,
    unit: "× the better of RocksDB and LevelDB",
    must: 1.8,
    aim: Some(2.7),
};
pub(super) const DURABLE_32: PromisedFigure = PromisedFigure {
    what: "durable writes of 100 bytes, 32 threads",
    bound: AtLeast,
    unit: "× the better of RocksDB and LevelDB",
    must: 2.5,
    aim: Some(4.5),
};
pub(super) const DEVICE_BYTES_LOW_SPACE: PromisedFigure = PromisedFigure {
    what: "device bytes per user byte, update-zipf, steady state, disk ≤ 1.6 × live",
    bound: AtMost,
    unit: "",
    must: 1.8,
    aim: Some(1.6),
};
pub(super) const DEVICE_BYTES_HIGH_SPACE: PromisedFigure = PromisedFigure {
    what: "device bytes per user byte, update-zipf, steady state, disk ≤ 1.8 × live",
    bound: AtMost,
    unit: "",
    must: 1.6,
    aim: Some(1.4),
};
pub(super) const DISK_LOW_SPACE: PromisedFigure = PromisedFigure {
    what: "disk over live entries during the updates, space_limit 1.6",
    bound: AtMost,
    unit: "×",
    must: 1.6,
    aim: None,
};
pub(super) const DISK_HIGH_SPACE: PromisedFigure = PromisedFigure {
    what: "disk over live entries during the updates, space_limit 1.8",
    bound: AtMost,
    unit: "×",
    must: 1.8,
    aim: None,
};
pub(super) const MEMORY: PromisedFigure = PromisedFigure {
    what: "index memory per key (stats)",
    bound: AtMost,
    unit: "bytes",
    must: 24.0,
    aim: Some(16.0),
};
pub(super) const CPU_GET: PromisedFigure =
    PromisedFigure { what: "CPU per get, one thread", bound: AtMost, unit: "µs", must: 0.7, aim: Some(0.5) };
pub(super) const CPU_UPDATE: PromisedFigure = PromisedFigure {
    what: "CPU per update, one thread",
    bound: AtMost,
    unit: "µs",
    must: 1.5,
    aim: Some(0.8),
};
pub(super) const OPEN: PromisedFigure = PromisedFigure {
    what: "open after kill -9 in mid-write",
    bound: AtMost,
    unit: "s",
    must: 1.0,
    aim: Some(0.3),
};
pub(super) const TAIL: PromisedFigure =
    PromisedFigure { what: "update-zipf, p99.99", bound: AtMost, unit: "ms", must: 2.0, aim: Some(0.6) };
pub(super) const LONGEST: PromisedFigure = PromisedFigure {
    what: "update-zipf, longest write (median of the runs)",
    bound: AtMost,
    unit: "ms",
    must: 30.0,
    aim: Some(10.0),
};
pub(super) const EMPTY: PromisedFigure =
    PromisedFigure { what: "an empty database on disk", bound: AtMost, unit: "KiB", must: 1024.0, aim: None };

/// Promises of `flex`.
pub(super) mod flex {
    use super::{AtLeast, AtMost, PromisedFigure};

    const fn at_least(what: &'static str, unit: &'static str, must: f64, aim: f64) -> PromisedFigure {
        PromisedFigure { what, bound: AtLeast, unit, must, aim: Some(aim) }
    }

    const fn at_most(what: &'static str, unit: &'static str, must: f64, aim: f64) -> PromisedFigure {
        PromisedFigure { what, bound: AtMost, unit, must, aim: Some(aim) }
    }

    pub(in super::super) const GET_UNIFORM: PromisedFigure =
        at_least("get-uniform, 2 threads", "× LMDB", 1.4, 2.0);
    pub(in super::super) const GET_ZIPF: PromisedFigure = at_least("get-zipf, 2 threads", "× LMDB", 1.4, 2.0);
    pub(in super::super) const GET_MISS: PromisedFigure =
        at_least("get-miss, 2 threads", "× the best peer", 1.3, 2.0);
    pub(in super::super) const SCAN: PromisedFigure =
        at_least("seek and 50 pairs upwards", "× LMDB", 1.2, 2.0);
    pub(in super::super) const SCAN_DOWN: PromisedFigure =
        at_least("seek and 50 pairs downwards", "× LMDB", 1.2, 2.0);
    pub(in super::super) const UPDATE_ZIPF: PromisedFigure =
        at_least("update-zipf, 2 threads", "× RocksDB", 5.4, 8.0);
    pub(in super::super) const FILL_RANDOM: PromisedFigure =
        at_least("fill-random, 1 thread", "× RocksDB", 2.5, 4.0);
    pub(in super::super) const YCSB: [PromisedFigure; 6] = [
        at_least("YCSB A", "× RocksDB", 3.6, 5.0),
        at_least("YCSB B", "× RocksDB", 4.1, 6.0),
        at_least("YCSB C", "× RocksDB", 3.2, 5.0),
        at_least("YCSB D", "× RocksDB", 3.5, 5.0),
        at_least("YCSB E", "× RocksDB", 10.0, 14.0),
        at_least("YCSB F", "× RocksDB", 4.5, 5.0),
    ];
    pub(in super::super) const YCSB_BEST: PromisedFigure = PromisedFigure {
        what: "YCSB, the worst of the six",
        bound: AtLeast,
        unit: "× the best peer",
        must: 1.0,
        aim: None,
    };
    pub(in super::super) const DEVICE_FILL: PromisedFigure =
        at_most("device bytes per user byte, fill-random", "", 2.2, 2.0);
    pub(in super::super) const DEVICE_UPDATE: PromisedFigure =
        at_most("device bytes per user byte, update-zipf of 5 × the data", "", 1.6, 1.45);
    pub(in super::super) const DISK: PromisedFigure =
        at_most("disk over live data during the run", "×", 1.5, 1.3);
    pub(in super::super) const READ_TAIL: PromisedFigure =
        at_most("YCSB A, p99.9 of reads", "µs", 30.0, 15.0);
    pub(in super::super) const READ_LONGEST: PromisedFigure =
        at_most("YCSB A, longest read (median of the runs)", "ms", 20.0, 8.0);
    pub(in super::super) const MEMORY: PromisedFigure =
        at_most("FlexTree and sparse index per pair (stats)", "bytes", 10.0, 5.0);
    pub(in super::super) const CPU_GET: PromisedFigure = at_most("CPU per get, one thread", "µs", 1.2, 0.8);
    pub(in super::super) const CPU_UPDATE: PromisedFigure =
        at_most("CPU per update, one thread", "µs", 3.0, 2.0);
}

/// Promises of `cedrus`.
pub(super) mod cedrus {
    use super::{AtLeast, AtMost, PromisedFigure};

    const fn at_least(what: &'static str, unit: &'static str, must: f64) -> PromisedFigure {
        PromisedFigure { what, bound: AtLeast, unit, must, aim: None }
    }

    const fn at_most(what: &'static str, unit: &'static str, must: f64, aim: Option<f64>) -> PromisedFigure {
        PromisedFigure { what, bound: AtMost, unit, must, aim }
    }

    pub(in super::super) const GET_UNIFORM: PromisedFigure =
        at_least("get-uniform, 2 threads", "× LMDB", 1.5);
    pub(in super::super) const GET_MISS: PromisedFigure =
        at_least("get-miss, 2 threads", "× the best peer", 2.0);
    pub(in super::super) const FILL_RANDOM: PromisedFigure =
        at_least("fill-random, 1 thread", "× RocksDB", 4.0);
    pub(in super::super) const MIXES_ROCKSDB: [PromisedFigure; 3] = [
        at_least("95 % reads, zipf", "× RocksDB", 5.0),
        at_least("90 % reads, zipf", "× RocksDB", 5.0),
        at_least("50 % updates, zipf", "× RocksDB", 5.0),
    ];
    pub(in super::super) const MIXES_LMDB: [PromisedFigure; 2] =
        [at_least("95 % reads, zipf", "× LMDB", 2.0), at_least("90 % reads, zipf", "× LMDB", 2.0)];
    pub(in super::super) const MEMORY: PromisedFigure =
        at_most("index memory per key (stats)", "bytes", 16.0, Some(12.0));
    pub(in super::super) const TAIL: PromisedFigure = at_most("updates of 50 %, p99.99", "ms", 2.0, None);
    pub(in super::super) const LONGEST: PromisedFigure =
        at_most("updates of 50 %, longest (median of the runs)", "ms", 30.0, None);
    pub(in super::super) const OPEN_CLOSED: PromisedFigure = at_most("open after a close", "ms", 50.0, None);
    pub(in super::super) const OPEN_KILLED: PromisedFigure =
        at_most("open after kill -9 in mid-write", "s", 0.5, Some(0.3));
    pub(in super::super) const DEVICE_FILL: PromisedFigure =
        at_most("device bytes per user byte, fill-random", "", 3.0, None);
    pub(in super::super) const DEVICE_MIX: PromisedFigure =
        at_most("device bytes per user byte, 50 % updates, zipf", "", 3.0, None);
    pub(in super::super) const CHURN: PromisedFigure =
        at_least("removals and inserts of 4 × the data", "× the speed of inserts", 0.7);
    pub(in super::super) const CHURN_DISK: PromisedFigure =
        at_most("disk over live data during the run", "×", 1.4, None);
}
