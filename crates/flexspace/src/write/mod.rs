//! # Write: execution of operations
//!
//! | file | contents |
//! |---|---|
//! | `edit.rs` | operations of several parts, and cursors |
//! | `commit.rs` | the steps of an operation, and the resources that it needs |
//! | `writer.rs` | all state that operations change, under one lock |
//! | `written_ops.rs` | the records of an operation, and the position of its last bytes |
//! | `log.rs` | frames with the changes of the index |
//! | `flush.rs` | writing of buffers and frames to the kernel |
//! | `throttle.rs` | delays of writers when space is low |

mod commit;
pub(crate) mod edit;
mod flush;
pub(crate) mod log;
pub(crate) mod throttle;
pub(crate) mod writer;
mod written_ops;
