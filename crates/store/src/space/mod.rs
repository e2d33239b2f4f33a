//! # Space: segments of the logs, ROOT, garbage collection and the deletion of files

pub(crate) mod compact;
pub(crate) mod gc;
pub(crate) mod log;
pub(crate) mod preallocate;
pub(crate) mod root_writer;
