//! # Extension module `sheaf._sheaf`: Python objects over the public API of Sheaf
//!
//! Contains the calls that must be fast or that need Rust. The Python package around it adds the
//! mapping protocols, dataclasses, exceptions and docs.
//!
//! ## Threads
//!
//! 1. A call of the library runs with the GIL released. No lock of this module is held then,
//!    except that of one iterator, stream, batch or transaction. A thread that waits for such a
//!    lock releases the GIL.
//! 2. Long calls run in a worker thread (`worker`), and the calling thread checks for signals. All
//!    Python callbacks run in the calling thread, except that of a stall.

mod batch;
mod bulk_load;
mod changes;
mod database;
mod error;
mod input;
mod keyspace;
mod options;
mod scan;
mod shared;
mod snapshot;
mod space;
mod stats;
mod stream;
mod transaction;
mod wait;
mod worker;

use pyo3::prelude::*;

#[pymodule]
fn _sheaf(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<database::RawDatabase>()?;
    module.add_class::<space::RawSpace>()?;
    module.add_class::<keyspace::RawKeyspace>()?;
    module.add_class::<snapshot::RawSnapshot>()?;
    module.add_class::<snapshot::RawSnapshotKeyspace>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<batch::RawBatch>()?;
    module.add_class::<batch::CommitTicket>()?;
    module.add_class::<transaction::RawTransaction>()?;
    module.add_class::<transaction::TransactionScan>()?;
    module.add_class::<changes::Changes>()?;
    module.add_class::<changes::Commit>()?;
    module.add_class::<changes::Change>()?;
    module.add_class::<changes::RawChangeCursor>()?;
    module.add_class::<wait::PollNotifier>()?;
    module.add_class::<wait::CommitWait>()?;
    module.add_class::<stream::RawReader>()?;
    module.add_class::<stream::RawWriter>()?;
    module.add_class::<bulk_load::RawBulkLoader>()?;
    module.add_function(wrap_pyfunction!(options::engines, module)?)?;
    module.add_function(wrap_pyfunction!(options::engine_options, module)?)?;
    module.add_function(wrap_pyfunction!(database::restore, module)?)?;
    module.add_function(wrap_pyfunction!(database::repair, module)?)?;
    module.add("MAX_KEY", sheaf::MAX_KEY)?;
    module.add("MAX_VALUE", sheaf::MAX_VALUE)?;
    module.add("MAX_BATCH", sheaf::MAX_BATCH)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
