//! # Options: engine options that are set when a keyspace is created
//!
//! An engine lists its options (`EngineFactory::options`). The creator of a keyspace sets some of
//! them. The catalog stores these values for the lifetime of the keyspace. An option that was not
//! set has the default of the engine, also in keyspaces that are older than the option.
//!
//! ## Invariants
//!
//! 1. An engine is created only with values that it allows, from users and from files alike.
//! 2. A default that the files of an engine depend on never changes.
//! 3. At most one option names a merge operator: `merge:NAME` with the value 1.

use std::collections::BTreeMap;
use std::fmt;

use sheaf_platform::codec::{FieldReader, FieldWriter, utf8};
use sheaf_platform::error::{Damage, Error, Result};

/// Longest name of an option that is read from a file, in bytes.
const MAX_NAME: usize = 64;
/// First bytes of the option that names a merge operator.
const MERGE_PREFIX: &str = "merge:";
/// Longest name of a merge operator, in bytes.
const MAX_OPERATOR_NAME: usize = 48;

/// Returns whether `name` may be the name of a merge operator.
#[must_use]
pub fn is_operator_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_OPERATOR_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Values that an option allows within its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionDomain {
    /// All values.
    Any,
    /// Powers of two.
    PowersOfTwo,
    /// Multiples of this number.
    MultiplesOf(u64),
    /// Values with these names, from 0 on.
    Named(&'static [&'static str]),
}

/// Codec of new values. All engines have this option.
pub const COMPRESSION: OptionSpec = OptionSpec {
    name: "compression",
    min: 0,
    max: 2,
    domain: OptionDomain::Named(&["none", "lz4", "zstd"]),
    default: 0,
    help: "codec of values from 192 bytes on; lz4 is fast, zstd is smaller and needs a build with it",
};

/// Expiry of pairs. Keyspaces of all engines have this option.
pub const EXPIRY: OptionSpec = OptionSpec {
    name: "expiry",
    min: 0,
    max: 1,
    domain: OptionDomain::Named(&["off", "on"]),
    default: 0,
    help: "on: pairs may have a time at which they expire; costs 12 bytes for each value",
};

/// Options with named values.
const NAMED: [&OptionSpec; 2] = [&COMPRESSION, &EXPIRY];

/// Specification of an engine option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Name of the option.
    pub name: &'static str,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Allowed values within the range.
    pub domain: OptionDomain,
    /// Value of an option that is not set.
    pub default: u64,
    /// Description in one line.
    pub help: &'static str,
}

impl OptionSpec {
    /// Returns true if `value` is allowed.
    #[must_use]
    pub fn allows(&self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
            && match self.domain {
                OptionDomain::Any | OptionDomain::Named(_) => true,
                OptionDomain::PowersOfTwo => value.is_power_of_two(),
                OptionDomain::MultiplesOf(unit) => value.is_multiple_of(unit),
            }
    }

    /// Returns the text of `value`: its name if the option has named values, else the number.
    #[must_use]
    pub fn value_text(&self, value: u64) -> String {
        self.value_name(value).map_or_else(|| value.to_string(), str::to_owned)
    }

    fn value_name(&self, value: u64) -> Option<&'static str> {
        let OptionDomain::Named(names) = self.domain else { return None };
        usize::try_from(value).ok().and_then(|at| names.get(at)).copied()
    }

    /// Returns the value with this name. Returns `None` if the option has no such name.
    #[must_use]
    pub fn named_value(&self, text: &str) -> Option<u64> {
        let OptionDomain::Named(names) = self.domain else { return None };
        names.iter().position(|name| *name == text).map(|at| at as u64)
    }
}

/// Returns the value that `text` names for the option `name`, for options with named values:
/// `lz4` for `compression`, `on` for `expiry`. Returns `None` if there is no such name.
///
/// ```
/// use sheaf_log::options::named_value;
///
/// assert_eq!(named_value("compression", "lz4"), Some(1));
/// assert_eq!(named_value("branching", "64"), None);
/// ```
#[must_use]
pub fn named_value(name: &str, text: &str) -> Option<u64> {
    NAMED.iter().find(|spec| spec.name == name)?.named_value(text)
}

/// Writes the name, values and default: `branching: 4 to 256, a power of two; default 16`.
impl fmt::Display for OptionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let OptionDomain::Named(names) = self.domain {
            return write!(
                f,
                "{}: {}; default {}",
                self.name,
                names.join(", "),
                self.value_text(self.default)
            );
        }
        write!(f, "{}: {} to {}", self.name, self.min, self.max)?;
        match self.domain {
            OptionDomain::Any | OptionDomain::Named(_) => {}
            OptionDomain::PowersOfTwo => f.write_str(", a power of two")?,
            OptionDomain::MultiplesOf(unit) => write!(f, ", a multiple of {unit}")?,
        }
        write!(f, "; default {}", self.default)
    }
}

/// Engine options that were set, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions(BTreeMap<String, u64>);

impl EngineOptions {
    /// Sets the option `name` to `value`. The keyspace checks the name and value when it is
    /// created.
    pub fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value);
    }

    /// Returns the value of the option `name`, or `None` if it was not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Sets the merge operator. The keyspace checks the name when it is created.
    pub fn set_merge_operator(&mut self, name: &str) {
        self.0.retain(|other, _| !other.starts_with(MERGE_PREFIX));
        self.set(&format!("{MERGE_PREFIX}{name}"), 1);
    }

    /// Returns the name of the merge operator, or `None` if there is none.
    #[must_use]
    pub fn merge_operator(&self) -> Option<&str> {
        self.0.keys().find_map(|name| name.strip_prefix(MERGE_PREFIX))
    }

    /// Returns the value of the option, or its default if it was not set.
    #[must_use]
    pub fn value(&self, spec: &OptionSpec) -> u64 {
        self.get(spec.name).unwrap_or(spec.default)
    }

    /// Returns true if no option was set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the options that were set, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns these options, completed with `others`. A value in `self` takes precedence.
    #[must_use]
    #[doc(hidden)]
    pub fn or(&self, others: &EngineOptions) -> EngineOptions {
        let mut all = others.clone();
        if self.merge_operator().is_some() {
            all.0.retain(|name, _| !name.starts_with(MERGE_PREFIX));
        }
        all.0.extend(self.0.clone());
        all
    }

    /// Returns a value for each of `specs`: the one that was set, or the default.
    #[must_use]
    #[doc(hidden)]
    pub fn with_defaults(&self, specs: &[OptionSpec]) -> EngineOptions {
        let mut all: BTreeMap<_, _> =
            specs.iter().map(|spec| (spec.name.to_owned(), self.value(spec))).collect();
        let merge = self.0.iter().filter(|(name, _)| name.starts_with(MERGE_PREFIX));
        all.extend(merge.map(|(name, value)| (name.clone(), *value)));
        EngineOptions(all)
    }

    /// Checks the options against `specs`, the options of `engine`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] for an unknown option and for a value that is not
    /// allowed.
    #[doc(hidden)]
    pub fn check(&self, engine: &str, specs: &[OptionSpec]) -> Result<()> {
        let refused = |why| Err(Error::InvalidArgument { argument: "option", reason: why });
        if self.0.keys().filter(|name| name.starts_with(MERGE_PREFIX)).nth(1).is_some() {
            return refused("more than one merge operator".to_owned());
        }
        for (name, value) in self.iter() {
            if let Some(operator) = name.strip_prefix(MERGE_PREFIX) {
                if !is_operator_name(operator) {
                    return refused(format!(
                        "merge={operator:?} names no merge operator: a name has 1 to {MAX_OPERATOR_NAME} \
                         letters, digits, '-', '_' and '.'"
                    ));
                }
                if value != 1 {
                    return refused(format!("{name}={value}: the value must be 1; merge={operator} sets it"));
                }
                continue;
            }
            let Some(spec) = specs.iter().find(|spec| spec.name == name) else {
                let known: String = specs.iter().map(|spec| format!("({spec}), ")).collect();
                return refused(format!(
                    "{engine} has no option {name:?}; its options are {known}(merge: a merge operator)"
                ));
            };
            if !spec.allows(value) {
                return refused(format!("{engine} does not allow {name}={value} ({spec})"));
            }
        }
        Ok(())
    }

    /// Returns an option that has a different value in `asked`. `specs` are the options of the
    /// engine that `self` belongs to.
    #[must_use]
    #[doc(hidden)]
    pub fn conflict<'s>(&self, asked: &EngineOptions, specs: &'s [OptionSpec]) -> Option<&'s OptionSpec> {
        specs.iter().find(|spec| asked.get(spec.name).is_some_and(|value| value != self.value(spec)))
    }

    /// Appends the options that are set.
    #[doc(hidden)]
    pub fn encode(&self, w: &mut FieldWriter) {
        let all: Vec<(&str, u64)> = self.iter().collect();
        w.list(&all, |w, (name, value)| {
            w.bytes(name.as_bytes());
            w.u64(*value);
        });
    }

    /// Decodes options from a file. Does not check that an engine has them.
    ///
    /// # Errors
    ///
    /// Returns the damage if the bytes are not valid or name an option twice.
    pub fn decode(r: &mut FieldReader<'_>) -> Result<EngineOptions, Damage> {
        let all = r.list(|r| {
            let name = r.bytes()?;
            if name.len() > MAX_NAME {
                return Err(Damage::BadLength { got: name.len() as u64, max: MAX_NAME as u64 });
            }
            Ok((utf8("option", name)?.to_owned(), r.u64()?))
        })?;
        let count = all.len();
        let options = EngineOptions(all.into_iter().collect());
        match options.0.len() == count {
            true => Ok(options),
            // a duplicate
            false => Err(Damage::bad_field("different options", count as u64, options.0.len() as u64)),
        }
    }
}

/// Writes the options that were set: `branching=64 compression=lz4 merge=add`.
impl fmt::Display for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            f.write_str(if index > 0 { " " } else { "" })?;
            if let Some(operator) = name.strip_prefix(MERGE_PREFIX) {
                write!(f, "merge={operator}")?;
                continue;
            }
            match NAMED.iter().find(|spec| spec.name == name) {
                Some(spec) => write!(f, "{name}={}", spec.value_text(value))?,
                None => write!(f, "{name}={value}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: OptionSpec = OptionSpec {
        name: "width",
        min: 4,
        max: 256,
        domain: OptionDomain::PowersOfTwo,
        default: 16,
        help: "how wide it is",
    };
    const LENGTH: OptionSpec = OptionSpec {
        name: "length",
        min: 8,
        max: 32,
        domain: OptionDomain::MultiplesOf(8),
        default: 32,
        ..WIDTH
    };

    fn chosen(pairs: &[(&str, u64)]) -> EngineOptions {
        let mut options = EngineOptions::default();
        pairs.iter().for_each(|(name, value)| options.set(name, *value));
        options
    }

    #[test]
    fn disallowed_options_are_refused_with_name_range_and_default() {
        let check = |pairs: &[(&str, u64)]| match chosen(pairs).check("e", &[WIDTH, LENGTH]) {
            Err(Error::InvalidArgument { argument: "option", reason: why }) => Some(why),
            other => other.map(|()| None).unwrap(),
        };
        for good in [4, 16, 256] {
            assert_eq!(check(&[("width", good), ("length", 24)]), None);
        }
        for bad in [0, 2, 17, 512, u64::MAX] {
            let why = check(&[("width", bad)]).unwrap();
            assert_eq!(
                why,
                format!("e does not allow width={bad} (width: 4 to 256, a power of two; default 16)")
            );
        }
        assert!(check(&[("length", 12)]).unwrap().contains("a multiple of 8; default 32"));
        let why = check(&[("depth", 1)]).unwrap();
        assert!(
            why.contains("\"depth\"") && why.contains("width: 4 to 256") && why.contains("length: 8 to 32")
        );
        assert!(chosen(&[("depth", 1)]).check("e", &[]).is_err());
    }

    #[test]
    fn set_options_override_the_default() {
        let options = chosen(&[("width", 64)]);
        assert_eq!((options.value(&WIDTH), options.value(&LENGTH)), (64, 32));
        let specs = [WIDTH, LENGTH];
        assert_eq!(options.conflict(&chosen(&[("width", 64), ("length", 32)]), &specs), None);
        assert_eq!(options.conflict(&chosen(&[("width", 16)]), &specs), Some(&WIDTH));
        assert_eq!(options.conflict(&chosen(&[("length", 8)]), &specs), Some(&LENGTH));
        let all = chosen(&[("width", 4)]).or(&chosen(&[("width", 8), ("length", 8)]));
        assert_eq!(all.to_string(), "length=8 width=4");
        let named = chosen(&[("compression", 1), ("expiry", 1), ("width", 4)]);
        assert_eq!(named.to_string(), "compression=lz4 expiry=on width=4");
        assert_eq!(COMPRESSION.to_string(), "compression: none, lz4, zstd; default none");
    }

    #[test]
    fn a_merge_operator_is_one_option_with_a_valid_name() {
        let mut options = chosen(&[("width", 4)]);
        options.set_merge_operator("append");
        options.set_merge_operator("add");
        assert_eq!((options.merge_operator(), &*options.to_string()), (Some("add"), "merge=add width=4"));
        options.check("e", &[WIDTH]).unwrap();
        let mut other = EngineOptions::default();
        other.set_merge_operator("max");
        assert_eq!(other.or(&options).to_string(), "merge=max width=4");
        assert_eq!(options.with_defaults(&[WIDTH, LENGTH]).merge_operator(), Some("add"));
        for bad in ["merge:", "merge:a b", "merge:\0", &format!("merge:{}", "x".repeat(49))] {
            assert!(chosen(&[(bad, 1)]).check("e", &[]).is_err(), "{bad}");
        }
        assert!(chosen(&[("merge:add", 2)]).check("e", &[]).is_err());
        assert!(chosen(&[("merge:add", 1), ("merge:max", 1)]).check("e", &[]).is_err());
    }

    #[test]
    fn changed_bytes_decode_to_damage_or_other_options() {
        let options = chosen(&[("width", 64), ("length", 24)]);
        let mut w = FieldWriter::default();
        options.encode(&mut w);
        let read = |bytes: &[u8]| {
            let mut r = FieldReader::new(bytes);
            EngineOptions::decode(&mut r).and_then(|options| r.finish().map(|()| options))
        };
        assert_eq!(read(&w.0).unwrap(), options);
        for at in 0..w.0.len() {
            assert!(read(&w.0[..at]).is_err(), "cut at {at}");
            let mut bytes = w.0.clone();
            bytes[at] ^= 0x81;
            assert!(read(&bytes).is_err() || read(&bytes).unwrap() != options, "byte {at}");
        }
        let mut twice = FieldWriter::default();
        twice.list(&["a", "a"], |w, name| {
            w.bytes(name.as_bytes());
            w.u64(1);
        });
        assert!(read(&twice.0).is_err());
    }
}
