//! # Read: access to states of a space
//!
//! | file | contents |
//! |---|---|
//! | `current.rs` | the newest version, which readers load without a lock |
//! | `view.rs` | views: reading a state |
//! | `check.rs` | verification of everything on disk |
//! | `pinned_space.rs` | a state as files, for backups |

pub(crate) mod check;
pub(crate) mod current;
pub(crate) mod pinned_space;
pub(crate) mod view;
