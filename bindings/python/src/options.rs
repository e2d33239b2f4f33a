//! # Options: of the opening, of keyspaces and of ranges

use std::ops::Bound as RangeBound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheaf::{Builder, ChangeRetention, Database, Durability, Error, KeyspaceOptions, Permissions, Stall};

use crate::error::exception;
use crate::input::Input;

/// Returns the durability of `"buffer"` or `"sync"`.
pub(crate) fn durability(name: &str) -> PyResult<Durability> {
    match name {
        "buffer" => Ok(Durability::Buffer),
        "sync" => Ok(Durability::Sync),
        other => Err(PyValueError::new_err(format!("durability must be 'buffer' or 'sync', not {other:?}"))),
    }
}

/// Returns a time of `seconds`, which must be finite and not negative.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name} must be a number of seconds, not {seconds}")))
}

/// Returns the path of the argument `argument`. A path may have any bytes except NUL.
pub(crate) fn path(py: Python<'_>, argument: &'static str, path: PathBuf) -> PyResult<PathBuf> {
    let reason = match path.as_os_str().as_bytes() {
        [] => "the path is empty",
        bytes if bytes.contains(&0) => "the path contains a NUL byte",
        _ => return Ok(path),
    };
    Err(exception(py, &Error::InvalidArgument { argument, reason: reason.to_owned() }))
}

fn on_stall(builder: Builder, callback: Py<PyAny>) -> Builder {
    builder.on_stall(move |stall: &Stall| {
        let _ = Python::try_attach(|py| {
            let arguments = (stall.kind.name(), stall.keyspace.as_deref(), stall.duration.as_secs_f64());
            if let Err(raised) = callback.call1(py, arguments) {
                raised.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    })
}

/// Returns a retention of bytes and seconds, which also waits for cursors if that is true.
fn retention((bytes, age, until_cursors_pass): (u64, f64, bool)) -> PyResult<ChangeRetention> {
    let retention = ChangeRetention::new(bytes, seconds("seconds", age)?);
    Ok(if until_cursors_pass { retention.until_cursors_pass() } else { retention })
}

/// Returns a builder with the options of `sheaf.open`. An option that is `None` has its default.
pub(crate) fn builder(options: &Bound<'_, PyDict>) -> PyResult<Builder> {
    let mut builder = Database::builder();
    for (name, value) in options.iter() {
        if value.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        builder = match name.as_str() {
            "create" => builder.create(value.extract()?),
            "read_only" => builder.read_only(value.extract()?),
            "ipc" => builder.ipc(value.extract()?),
            "wait" => builder.wait(seconds("wait", value.extract()?)?),
            "memory" => builder.memory(value.extract()?),
            "open_files" => builder.open_files(value.extract()?),
            "durability" => builder.durability(durability(value.extract()?)?),
            "sync_interval" => builder.sync_interval(seconds("sync_interval", value.extract()?)?),
            "background_threads" => builder.background_threads(value.extract()?),
            "space_limit" => builder.space_limit(value.extract()?),
            "stall_threshold" => builder.stall_threshold(seconds("stall_threshold", value.extract()?)?),
            "retain_changes" => match value.extract::<bool>() {
                Ok(false) => builder.retain_changes(None),
                _ => builder.retain_changes(retention(value.extract()?)?),
            },
            "on_stall" => on_stall(builder, value.unbind()),
            "permissions" => {
                let (files, directories) = value.extract()?;
                builder.permissions(Permissions::new(files, directories))
            }
            other => return Err(PyValueError::new_err(format!("there is no option {other:?}"))),
        };
    }
    Ok(builder)
}

/// Returns the options of a keyspace. Option names in Python have `_` instead of `-`;
/// `merge` names the merge operator.
pub(crate) fn keyspace_options(
    engine: Option<&str>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<KeyspaceOptions> {
    let mut result = KeyspaceOptions::default();
    if let Some(engine) = engine {
        result = result.engine(engine);
    }
    if let Some(options) = options {
        for (name, value) in options.iter() {
            let name: String = name.extract()?;
            result = match &*name {
                "merge" => result.merge_operator(&value.extract::<String>()?),
                _ => result.option(&name.replace('_', "-"), value.extract()?),
            };
        }
    }
    Ok(result)
}

/// Lower and upper bound of a scan.
pub(crate) type Range = (RangeBound<Vec<u8>>, RangeBound<Vec<u8>>);

/// Returns the first key after all keys that begin with `prefix`, or `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut after = prefix[..=kept].to_vec();
    after[kept] += 1;
    Some(after)
}

/// Returns the keys from `start` to `stop` that begin with `prefix`. Each is `None` or a buffer.
/// The flags tell whether the ends are included.
pub(crate) fn range(
    start: (Option<&Bound<'_, PyAny>>, bool),
    stop: (Option<&Bound<'_, PyAny>>, bool),
    prefix: Option<&Bound<'_, PyAny>>,
) -> PyResult<Range> {
    let bound = |key: &[u8], is_included: bool| match is_included {
        true => RangeBound::Included(key.to_vec()),
        false => RangeBound::Excluded(key.to_vec()),
    };
    let (low, high) = (Input::optional(start.0)?, Input::optional(stop.0)?);
    let mut low = low.map_or(RangeBound::Unbounded, |key| bound(&key, start.1));
    let mut high = high.map_or(RangeBound::Unbounded, |key| bound(&key, stop.1));
    if let Some(prefix) = Input::optional(prefix)?.filter(|prefix| !prefix.is_empty()) {
        if !matches!(&low, RangeBound::Included(key) | RangeBound::Excluded(key) if key.as_slice() >= &*prefix)
        {
            low = RangeBound::Included(prefix.to_vec());
        }
        if let Some(after) = after_prefix(&prefix)
            && !matches!(&high, RangeBound::Included(key) | RangeBound::Excluded(key) if *key < after)
        {
            high = RangeBound::Excluded(after);
        }
    }
    Ok((low, high))
}

/// Return the names of all engines.
#[pyfunction]
pub(crate) fn engines() -> Vec<&'static str> {
    sheaf::engines()
}

/// Return the options of an engine as tuples of name, least and largest value, default, and help.
#[pyfunction]
pub(crate) fn engine_options(engine: &str) -> Vec<(String, u64, u64, u64, &'static str)> {
    let specs = sheaf::engine_options(engine).iter();
    specs.map(|spec| (spec.name.replace('-', "_"), spec.min, spec.max, spec.default, spec.help)).collect()
}
