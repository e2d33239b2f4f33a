//! # Segments: the parts of data files that are filled, emptied and reused
//!
//! | file | contents |
//! |---|---|
//! | `data_file.rs` | data files, and checked reads from them |
//! | `buffer.rs` | bytes of a segment before they are flushed |
//! | `segment_allocator.rs` | sets of free segments, open segments and buffers |
//! | `placement.rs` | location of new bytes in the open segments |
//! | `preallocate.rs` | files and disk blocks for segments, ahead of writers |

pub(crate) mod buffer;
pub(crate) mod data_file;
pub(crate) mod placement;
mod preallocate;
pub(crate) mod segment_allocator;
