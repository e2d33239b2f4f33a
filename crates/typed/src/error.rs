//! # Errors of typed tables

use std::fmt;

/// Result of the calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a typed table.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The database returned an error.
    Database(sheaf::Error),
    /// A value cannot be encoded.
    Encode {
        /// Name of the table.
        table: String,
        /// Reason of the encoder.
        reason: String,
    },
    /// The stored bytes are not an encoding of the type.
    Decode {
        /// Name of the table.
        table: String,
        /// Encoded key of the row.
        key: Vec<u8>,
        /// Reason of the decoder.
        reason: String,
    },
    /// A unique index has the key already, for another row.
    Duplicate {
        /// Name of the table.
        table: String,
        /// Name of the index.
        index: String,
        /// Encoded key of the index.
        index_key: Vec<u8>,
    },
    /// Another handle has opened the table with other indexes. Open the table again.
    Redefined {
        /// Name of the table.
        table: String,
    },
    /// The table was opened without this [`Index`](crate::Index) or a clone of it.
    UnknownIndex {
        /// Name of the table.
        table: String,
        /// Name of the index.
        index: String,
    },
    /// The definition of the table is not valid.
    InvalidDefinition {
        /// Name of the table.
        table: String,
        /// Reason.
        reason: String,
    },
    /// An index has an entry of a row that does not exist: the keyspace of the rows was changed
    /// without the table. Open the table with another [version](crate::Index::version) of the
    /// index.
    OutdatedIndex {
        /// Name of the table.
        table: String,
        /// Name of the index.
        index: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Database(error) => error.fmt(f),
            Error::Encode { table, reason } => {
                write!(f, "table {table:?}: cannot encode the value: {reason}")
            }
            Error::Decode { table, key, reason } => {
                write!(f, "table {table:?}: cannot decode the row with the key ")?;
                write!(f, "\"{}\": {reason}", key.escape_ascii())
            }
            Error::Duplicate { table, index, index_key } => {
                let key = index_key.escape_ascii();
                write!(f, "table {table:?}: another row has the key \"{key}\" in the unique index {index:?}")
            }
            Error::Redefined { table } => {
                write!(f, "table {table:?} was opened with other indexes since; open it again")
            }
            Error::UnknownIndex { table, index } => {
                write!(f, "table {table:?} was opened without this index {index:?} (or a clone of it)")
            }
            Error::InvalidDefinition { table, reason } => write!(f, "table {table:?}: {reason}"),
            Error::OutdatedIndex { table, index } => {
                write!(f, "table {table:?}: the index {index:?} has an entry of a missing row; ")?;
                write!(f, "open the table with another version of the index to build it again")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Database(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sheaf::Error> for Error {
    fn from(error: sheaf::Error) -> Error {
        Error::Database(error)
    }
}
