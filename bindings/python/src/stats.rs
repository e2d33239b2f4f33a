//! # Statistics and reports as dicts, from which the Python package makes dataclasses

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sheaf::{
    BackupReport, BulkLoadReport, CompactionReport, ConversionReport, DatabaseStats, EngineStats,
    RepairReport, VerifyReport,
};

macro_rules! dict {
    ($py:expr, $($name:ident: $value:expr),* $(,)?) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($name), $value)?;)*
        dict
    }};
}

type Dict<'py> = PyResult<Bound<'py, PyDict>>;

/// Returns the name of a phase in lower case, with `_` between words.
pub(crate) fn phase_name(variant: String) -> String {
    let mut name = String::with_capacity(variant.len());
    for (index, letter) in variant.chars().enumerate() {
        if letter.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

pub(crate) fn backup<'py>(py: Python<'py>, report: &BackupReport) -> Dict<'py> {
    Ok(dict!(
        py,
        seq: report.seq,
        files: report.files,
        copied_bytes: report.copied_bytes,
        linked_bytes: report.linked_bytes,
    ))
}

pub(crate) fn verify<'py>(py: Python<'py>, report: &VerifyReport) -> Dict<'py> {
    Ok(dict!(
        py,
        pairs: report.pairs,
        frames: report.frames,
        bytes: report.bytes,
        findings: report.findings,
        files: &report.files,
    ))
}

pub(crate) fn conversion<'py>(py: Python<'py>, report: &ConversionReport) -> Dict<'py> {
    Ok(dict!(
        py,
        copied_pairs: report.copied_pairs,
        bytes: report.bytes,
        passes: report.passes,
        is_direct: report.is_direct,
    ))
}

pub(crate) fn bulk_load<'py>(py: Python<'py>, report: &BulkLoadReport) -> Dict<'py> {
    Ok(dict!(
        py,
        pairs: report.pairs,
        bytes: report.bytes,
        is_direct: report.is_direct,
    ))
}

pub(crate) fn compaction<'py>(py: Python<'py>, report: &CompactionReport) -> Dict<'py> {
    Ok(dict!(
        py,
        rewritten_pairs: report.rewritten_pairs,
        rewritten_bytes: report.rewritten_bytes,
        skipped_pairs: report.skipped_pairs,
    ))
}

pub(crate) fn keyspace<'py>(py: Python<'py>, figures: &EngineStats, disk_bytes: u64) -> Dict<'py> {
    Ok(dict!(
        py,
        keys: figures.keys,
        index_bytes: figures.index_bytes,
        pinned_versions: figures.pinned_versions,
        encoded_raw_bytes: figures.encoded_raw_bytes,
        encoded_bytes: figures.encoded_bytes,
        disk_bytes: disk_bytes,
    ))
}

pub(crate) fn repair<'py>(
    py: Python<'py>,
    report: &RepairReport,
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyList>)> {
    let keyspaces = PyList::empty(py);
    for found in &report.keyspaces {
        keyspaces.append(dict!(
            py,
            name: &found.name,
            engine: &found.engine,
            certain: found.certain,
            doubtful: found.doubtful,
            lost: found.lost,
            is_complete: found.is_complete(),
        ))?;
    }
    let whole = dict!(
        py,
        seq: report.seq,
        damage_count: report.damage_count,
        damaged_files: report.damaged_files.iter().map(|file| &file.path).collect::<Vec<_>>(),
        is_complete: report.is_complete(),
    );
    Ok((whole, keyspaces))
}

pub(crate) fn database<'py>(py: Python<'py>, figures: &DatabaseStats) -> Dict<'py> {
    let dict = dict!(
        py,
        visible_seq: figures.visible_seq,
        durable_seq: figures.durable_seq,
        unsynced_age: figures.unsynced_age.as_secs_f64(),
        sync_rounds: figures.sync_rounds,
        sync_waits: figures.sync_waits,
        views: figures.views,
        oldest_view_seq: figures.oldest_view_seq,
        pinned_states: figures.pinned_states,
        pinned_bytes: figures.pinned_bytes,
        throttles: figures.throttles,
        checkpoints: figures.checkpoints,
        checkpoint_bytes: figures.checkpoint_bytes,
        blob_bytes_written: figures.blob_bytes_written,
        poisoned: figures.poisoned.map(|cause| cause.name()),
        has_ipc: figures.has_ipc,
    );
    let memory = &figures.memory;
    dict.set_item(
        "memory",
        dict!(
            py,
            budget: memory.budget,
            index: memory.index,
            versions: memory.versions,
            buffers: memory.buffers,
            cache: memory.cache,
        ),
    )?;
    let opening = &figures.opening;
    dict.set_item(
        "opening",
        dict!(
            py,
            is_clean: opening.is_clean,
            duration: opening.duration.as_secs_f64(),
            frames_scanned: opening.frames_scanned,
            records_replayed: opening.records_replayed,
            discarded_bytes: opening.discarded_bytes,
        ),
    )?;
    let descriptors = &figures.descriptors;
    let limits =
        dict!(py, limit: descriptors.limit, in_use: descriptors.in_use, reopened: descriptors.reopened);
    dict.set_item("descriptors", limits)?;
    dict.set_item("stalls", stalls(py, figures)?)?;
    dict.set_item("logs", logs(py, figures)?)?;
    Ok(dict)
}

fn stalls<'py>(py: Python<'py>, figures: &DatabaseStats) -> PyResult<Bound<'py, PyList>> {
    let stalls = PyList::empty(py);
    for stall in &figures.stalls {
        stalls.append(dict!(
            py,
            kind: stall.kind.name(),
            count: stall.count,
            total: stall.total.as_secs_f64(),
            longest: stall.longest.as_secs_f64(),
        ))?;
    }
    Ok(stalls)
}

fn logs<'py>(py: Python<'py>, figures: &DatabaseStats) -> PyResult<Bound<'py, PyList>> {
    let logs = PyList::empty(py);
    for log in &figures.logs {
        logs.append(dict!(
            py,
            name: log.name,
            segments: log.segments,
            disk_bytes: log.disk_bytes,
            live_bytes: log.live_bytes,
            appended_bytes: log.appended_bytes,
            relocated_bytes: log.relocated_bytes,
            freed_segments: log.freed_segments,
            damaged_segments: log.damaged_segments,
        ))?;
    }
    Ok(logs)
}
