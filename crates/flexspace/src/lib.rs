//! # FlexTree and FlexSpace
#![warn(missing_docs)]

pub mod tree;
