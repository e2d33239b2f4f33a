//! # Merge: values that operators compute from operands
//!
//! A keyspace can name a merge operator in its options. A merge reads the value of a key, lets the
//! operator compute the new one, and commits it with the condition that the key is unchanged
//! (docs/commit.md R16). Merges of one key that run at the same time share a commit (`groups`).
//!
//! The database stores only computed values: reads need no operator, and every part of the database
//! that copies pairs treats them as plain values (decisions/0056).

mod built_in;
pub(crate) mod groups;
mod set;

use std::fmt;
use std::sync::Arc;

use sheaf_engine::contract::EngineOp;
use sheaf_log::options::is_operator_name;
use sheaf_store::{Expires, KeyspaceState, ReadPoint, Store};

pub use self::set::{decode_set, encode_set};
use crate::keyspace::read_expected;
use crate::{Error, KeyspaceOptions, Result, Value};

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guide/merge.md")]
struct Guide;

/// Function that computes the value of a key from its present value and an operand.
///
/// The result must depend on the arguments only, and `merge` must have no side effects: it may run
/// several times for one call. No lock is held while it runs. Closures of this signature are
/// operators.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use sheaf::{KeyspaceOptions, MergeRefusal};
///
/// let longest = |_key: &[u8], present: Option<&[u8]>, operand: &[u8]| match present {
///     _ if operand.is_empty() => Err(MergeRefusal::new("an empty name")),
///     Some(present) if present.len() >= operand.len() => Ok(present.to_vec()),
///     _ => Ok(operand.to_vec()),
/// };
/// let db = sheaf::Database::builder().merge_operator("longest", longest).open(dir.path())?;
/// let names = db.keyspace("names", KeyspaceOptions::default().merge_operator("longest"))?;
/// names.merge("ada", "byron")?;
/// names.merge("ada", "king")?;
/// assert_eq!(names.get("ada")?, Some("byron".into()));
/// assert!(names.merge("ada", "").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait MergeOperator: Send + Sync {
    /// Returns the new value of `key`. `present` is its value, or `None` if the key is missing.
    ///
    /// # Errors
    ///
    /// Returns the reason if the operator refuses the operand, or cannot use the present value. The
    /// call then fails and writes nothing.
    fn merge(
        &self,
        key: &[u8],
        present: Option<&[u8]>,
        operand: &[u8],
    ) -> std::result::Result<Vec<u8>, MergeRefusal>;
}

impl<F> MergeOperator for F
where
    F: Fn(&[u8], Option<&[u8]>, &[u8]) -> std::result::Result<Vec<u8>, MergeRefusal> + Send + Sync,
{
    fn merge(
        &self,
        key: &[u8],
        present: Option<&[u8]>,
        operand: &[u8],
    ) -> std::result::Result<Vec<u8>, MergeRefusal> {
        self(key, present, operand)
    }
}

/// Reason why an operator refuses an operand.
///
/// ```
/// assert_eq!(sheaf::MergeRefusal::new("no number").to_string(), "no number");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeRefusal(String);

impl MergeRefusal {
    /// Returns a refusal with this reason, which becomes part of the error of the call.
    ///
    /// ```
    /// let refusal = sheaf::MergeRefusal::new("the operand is no number");
    /// # assert!(!refusal.to_string().is_empty());
    /// ```
    #[must_use]
    pub fn new(reason: impl Into<String>) -> MergeRefusal {
        MergeRefusal(reason.into())
    }
}

impl fmt::Display for MergeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MergeRefusal {}

/// Returns the names of the operators that every database has.
///
/// ```
/// assert_eq!(sheaf::merge_operators(), ["add", "append", "max", "min", "or", "union"]);
/// ```
#[must_use]
pub fn merge_operators() -> &'static [&'static str] {
    &built_in::NAMES
}

/// Operators that this process registered for a database.
#[derive(Clone, Default)]
pub(crate) struct MergeRegistry {
    registered: Vec<(String, Arc<dyn MergeOperator>)>,
}

impl MergeRegistry {
    pub(crate) fn add(&mut self, name: &str, operator: Arc<dyn MergeOperator>) {
        self.registered.push((name.to_owned(), operator));
    }

    /// Checks the names of the operators.
    pub(crate) fn check(&self) -> Result<()> {
        for (index, (name, _)) in self.registered.iter().enumerate() {
            let is_used = built_in::NAMES.contains(&name.as_str())
                || self.registered[..index].iter().any(|(other, _)| other == name);
            let reason = match is_operator_name(name) {
                false => format!("{name:?} is no name: use 1 to 48 letters, digits, '-', '_' and '.'"),
                true if is_used => format!("there is already an operator {name:?}"),
                true => continue,
            };
            return Err(Error::InvalidArgument { argument: "merge operator", reason });
        }
        Ok(())
    }

    /// Returns the operator `name`, if this process has it.
    fn get(&self, name: &str) -> Option<&dyn MergeOperator> {
        let registered = self.registered.iter().find(|(other, _)| other == name);
        registered.map(|(_, operator)| &**operator).or_else(|| built_in::operator(name))
    }

    /// Checks that this process has the operator that the options of a new keyspace name.
    pub(crate) fn check_known(&self, name: Option<&str>) -> Result<()> {
        match name.filter(|name| is_operator_name(name) && self.get(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let built_in = built_in::NAMES.join(", ");
                let reason = format!(
                    "there is no operator {name:?}: the built-in ones are {built_in}, and a program registers \
                     others with `Builder::merge_operator`"
                );
                Err(Error::InvalidArgument { argument: "merge operator", reason })
            }
        }
    }

    /// Checks the operator that `options` choose for keyspace `name`: this process must have it,
    /// unless it is that of the keyspace already.
    pub(crate) fn check_options(&self, store: &Store, name: &str, options: &KeyspaceOptions) -> Result<()> {
        let (chosen, keyspace) = (options.options.merge_operator(), store.find_keyspace(name)?);
        match keyspace.is_some_and(|keyspace| keyspace.options().merge_operator() == chosen) {
            true => Ok(()),
            false => self.check_known(chosen),
        }
    }

    /// Returns the operator of a keyspace.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the keyspace has none, or if this process did not
    /// register it.
    pub(crate) fn of<'r>(&'r self, state: &'r KeyspaceState) -> Result<NamedOperator<'r>> {
        let keyspace = state.name();
        let reason = match state.options().merge_operator() {
            None => format!("keyspace {keyspace:?} has no merge operator; create it with one, or convert it"),
            Some(name) => match self.get(name) {
                Some(operator) => return Ok(NamedOperator { keyspace: state, name, operator }),
                None => format!(
                    "keyspace {keyspace:?} needs the merge operator {name:?}, which this process did not \
                     register"
                ),
            },
        };
        Err(Error::InvalidArgument { argument: "merge operator", reason })
    }
}

/// Operator of a keyspace, with the names for errors.
#[derive(Clone, Copy)]
pub(crate) struct NamedOperator<'r> {
    keyspace: &'r KeyspaceState,
    name: &'r str,
    operator: &'r dyn MergeOperator,
}

impl NamedOperator<'_> {
    pub(crate) fn merge(
        &self,
        key: &[u8],
        present: Option<&[u8]>,
        operand: &[u8],
    ) -> std::result::Result<Vec<u8>, MergeRefusal> {
        self.operator.merge(key, present, operand)
    }

    /// Returns the error of a call with a refused operand.
    pub(crate) fn refused(&self, refusal: &MergeRefusal) -> Error {
        let reason = format!(
            "the merge operator {:?} of keyspace {:?} refused it: {refusal}",
            self.name,
            self.keyspace.name()
        );
        Error::InvalidArgument { argument: "operand", reason }
    }
}

/// Present value of a key that is merged.
pub(crate) struct MergeBase<'k> {
    /// Operation that makes a commit stale if the key has changed.
    pub(crate) expect: EngineOp<'k>,
    pub(crate) value: Option<Value>,
    /// Expiry of the merged value: that of the present pair.
    pub(crate) expires: Expires,
}

/// Reads the present value of `key` and its expiry time.
pub(crate) fn read_base<'k>(store: &Store, state: &KeyspaceState, key: &'k [u8]) -> Result<MergeBase<'k>> {
    let (expect, value) = read_expected(store, state, key)?;
    // A change between the two reads makes the commit stale.
    let expires = match value.is_some() && state.has_expiry() {
        true => match state.expires_at(ReadPoint::LATEST, key)? {
            Some(Some(time)) => Expires::At(time),
            Some(None) => Expires::Never,
            // The pair has just expired.
            None => return Ok(MergeBase { expect, value: None, expires: Expires::Default }),
        },
        false => Expires::Default,
    };
    Ok(MergeBase { expect, value, expires })
}
