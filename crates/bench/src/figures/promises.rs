//! # Promises: the figures demanded, in their order

use crate::table::Bound::{AtLeast, AtMost};
use crate::table::Promise;

pub(super) const GET_UNIFORM: Promise =
    Promise { what: "get-uniform, 2 threads", bound: AtLeast, unit: "× LMDB", must: 2.0, aim: Some(3.0) };
pub(super) const GET_MISS: Promise = Promise {
    what: "get-miss, 2 threads",
    bound: AtLeast,
    unit: "× the best peer",
    must: 3.0,
    aim: Some(6.0),
};
pub(super) const FILL_RANDOM: Promise =
    Promise { what: "fill-random, 1 thread", bound: AtLeast, unit: "× RocksDB", must: 5.0, aim: Some(10.0) };
pub(super) const UPDATE_ZIPF: Promise = Promise {
    what: "update-zipf, 2 threads, after the log has wrapped",
    bound: AtLeast,
    unit: "× RocksDB",
    must: 6.0,
    aim: Some(12.0),
};
pub(super) const DURABLE_1: Promise = Promise {
    what: "durable writes of 100 bytes, 1 thread",
    bound: AtLeast,
    unit: "× the device's syncs",
    must: 0.9,
    aim: Some(1.0),
};
pub(super) const DURABLE_8: Promise = Promise {
    what: "durable writes of 100 bytes, 8 threads",
    bound: AtLeast,
    unit: "× the better of RocksDB and LevelDB",
    must: 1.8,
    aim: Some(2.7),
};
pub(super) const DURABLE_32: Promise = Promise {
    what: "durable writes of 100 bytes, 32 threads",
    bound: AtLeast,
    unit: "× the better of RocksDB and LevelDB",
    must: 2.5,
    aim: Some(4.5),
};
pub(super) const DEVICE_BYTES_TIGHT: Promise = Promise {
    what: "device bytes per user byte, update-zipf, steady state, disk ≤ 1.6 × live",
    bound: AtMost,
    unit: "",
    must: 1.8,
    aim: Some(1.6),
};
pub(super) const DEVICE_BYTES_WIDE: Promise = Promise {
    what: "device bytes per user byte, update-zipf, steady state, disk ≤ 1.8 × live",
    bound: AtMost,
    unit: "",
    must: 1.6,
    aim: Some(1.4),
};
pub(super) const DISK_TIGHT: Promise = Promise {
    what: "disk over live entries meanwhile, set to 1.6",
    bound: AtMost,
    unit: "×",
    must: 1.6,
    aim: None,
};
pub(super) const DISK_WIDE: Promise = Promise {
    what: "disk over live entries meanwhile, set to 1.8",
    bound: AtMost,
    unit: "×",
    must: 1.8,
    aim: None,
};
pub(super) const MEMORY: Promise = Promise {
    what: "volatile memory per key, by stats",
    bound: AtMost,
    unit: "bytes",
    must: 24.0,
    aim: Some(16.0),
};
pub(super) const CPU_GET: Promise =
    Promise { what: "CPU per get, one thread", bound: AtMost, unit: "µs", must: 0.7, aim: Some(0.5) };
pub(super) const CPU_UPDATE: Promise =
    Promise { what: "CPU per update, one thread", bound: AtMost, unit: "µs", must: 1.5, aim: Some(0.8) };
pub(super) const OPEN: Promise =
    Promise { what: "open after kill -9 in mid-write", bound: AtMost, unit: "s", must: 1.0, aim: Some(0.3) };
pub(super) const TAIL: Promise =
    Promise { what: "update-zipf, p99.99", bound: AtMost, unit: "ms", must: 2.0, aim: Some(0.6) };
pub(super) const LONGEST: Promise = Promise {
    what: "update-zipf, longest write (median of the runs)",
    bound: AtMost,
    unit: "ms",
    must: 30.0,
    aim: Some(10.0),
};
pub(super) const EMPTY: Promise =
    Promise { what: "an empty database on disk", bound: AtMost, unit: "KiB", must: 1024.0, aim: None };
