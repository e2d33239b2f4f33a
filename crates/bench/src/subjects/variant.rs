//! # Variants: engines of Sheaf with options, as subjects with names of their own
//!
//! The name is `ENGINE:OPTION=VALUE`, with further options after further colons:
//! `delsm:file-bytes=256:level-factor=8`.

use std::sync::{Mutex, PoisonError};

use ::sheaf::KeyspaceOptions;

use crate::Result;

/// All names that were interned. A process uses a few.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Returns the same name with a static lifetime.
///
/// # Errors
///
/// Returns an error if the engine is unknown, or an option is unknown, not a number or out of its
/// range.
pub(super) fn intern(name: &str) -> Result<&'static str> {
    check(name)?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return Ok(known);
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.push(kept);
    Ok(kept)
}

/// Splits a name into engine and options.
fn split(name: &str) -> Result<(&str, Vec<(&str, u64)>)> {
    let mut parts = name.split(':');
    let engine = parts.next().unwrap_or_default();
    let mut options = Vec::new();
    for part in parts {
        let wrong = || format!("{name:?}: {part:?} is not OPTION=NUMBER");
        let (option, value) = part.split_once('=').ok_or_else(wrong)?;
        let named = ::sheaf::named_option_value(option, value);
        let number = named.map_or_else(|| value.parse(), Ok).map_err(|_| wrong())?;
        options.push((option, number));
    }
    Ok((engine, options))
}

fn check(name: &str) -> Result<()> {
    let (engine, options) = split(name)?;
    if !::sheaf::engines().contains(&engine) {
        return Err(format!("{name:?}: {engine:?} is not an engine of Sheaf").into());
    }
    let specs = [::sheaf::engine_options(engine), ::sheaf::keyspace_options()].concat();
    for (option, value) in options {
        let Some(spec) = specs.iter().find(|spec| spec.name == option) else {
            let known: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
            return Err(
                format!("{name:?}: unknown option {option:?}; {engine} has: {}", known.join(", ")).into()
            );
        };
        if !spec.allows(value) {
            return Err(format!("{name:?}: {option} must be from {} to {}", spec.min, spec.max).into());
        }
    }
    Ok(())
}

/// Returns the options of the keyspace for an engine, or for an engine with options.
///
/// # Errors
///
/// Returns an error if an option is not written as `OPTION=NUMBER` or `compression=CODEC`.
pub(super) fn keyspace_options(name: &str) -> Result<KeyspaceOptions> {
    let (engine, options) = split(name)?;
    let chosen = KeyspaceOptions::default().engine(engine);
    Ok(options.into_iter().fold(chosen, |chosen, (option, value)| chosen.option(option, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused_with_the_known_ones() {
        for (name, reason) in [
            ("fast:file-bytes=256", "not an engine"),
            ("lmdb:file-bytes=256", "not an engine"),
            ("delsm:files=256", "file-bytes"),
            ("delsm:file-bytes=1", "from 256"),
            ("delsm:file-bytes", "not OPTION=NUMBER"),
            ("delsm:file-bytes=many", "not OPTION=NUMBER"),
        ] {
            let error = intern(name).unwrap_err().to_string();
            assert!(error.contains(reason), "{name}: {error}");
        }
        assert!(intern("delsm:file-bytes=256:level-factor=8:compression=lz4").is_ok());
    }
}
