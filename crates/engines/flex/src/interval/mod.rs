//! # Interval: the content of an interval, in the space and in memory
//!
//! ```text
//!  space    run ── run ── ...                                       run
//!  memory   the same runs below a directory of their versions       block
//!           or two bytes of hash, an offset and a sum per version   fingerprints
//! ```

pub(crate) mod block;
pub(crate) mod fingerprints;
pub(crate) mod run;
