//! # Typed tables: keys, values and secondary indexes as Rust types

#![doc = include_str!("tables.md")]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/typed.md")]
struct Guide;

mod definition;
mod error;
mod index;
mod open;
mod rows;
mod table;

pub use error::{Error, Result};
pub use index::{Index, TableIndex};
pub use open::TableBuilder;
pub use rows::{IndexRows, Rows};
pub use table::{Table, TableCheck};
