//! # Values: parsers of the values of options
//!
//! A list is one argument, with commas. An error names the accepted values.

use std::time::Duration;

use crate::Result;
use crate::experiments::values::ValueMeasurement;
use crate::figures::FigureGroup;
use crate::subjects::BenchSubject;
use crate::workload::{self, Workload};

/// Several values in one argument.
pub(super) type ArgList<T> = Vec<T>;
/// Interval of syncs; `None` for no syncs.
pub(super) type SyncInterval = Option<Duration>;

/// Parses a count: `200`, `200k`, `5m`, `5_000_000`.
fn count(text: &str) -> Option<u64> {
    let text = text.replace('_', "").to_ascii_lowercase();
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'm' => (&text[..text.len() - 1], 1_000_000),
        _ => (&text[..], 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

pub(super) fn at_least<const LEAST: u64>(text: &str) -> Result<u64> {
    match count(text) {
        Some(number) if number >= LEAST => Ok(number),
        Some(_) => Err(format!("{text}: at least {LEAST}").into()),
        None => Err(format!("{text}: not a number").into()),
    }
}

fn each<T>(text: &str, value: impl Fn(&str) -> Result<T>) -> Result<ArgList<T>> {
    text.split(',').map(value).collect()
}

pub(super) fn numbers(text: &str) -> Result<ArgList<u64>> {
    each(text, at_least::<1>)
}

pub(super) fn pairs(text: &str) -> Result<u64> {
    let pairs = at_least::<1000>(text)?;
    if pairs > 1 << 32 { Err(format!("{text}: at most 2^32").into()) } else { Ok(pairs) }
}

pub(super) fn pairs_list(text: &str) -> Result<ArgList<u64>> {
    each(text, pairs)
}

/// Parses a list of names without checking them.
pub(super) fn name_list(text: &str) -> Result<ArgList<String>> {
    each(text, |name| Ok(name.to_owned()))
}

pub(super) fn seconds(text: &str) -> Result<Duration> {
    match text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("{text}: not a time in seconds").into()),
    }
}

pub(super) fn sync_every(text: &str) -> Result<SyncInterval> {
    let ms = at_least::<0>(text)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

pub(super) fn factor(text: &str) -> Result<f64> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(format!("{text}: not a positive number").into()),
    }
}

/// Parses megabytes and returns bytes.
pub(super) fn megabytes(text: &str) -> Result<u64> {
    Ok(at_least::<1>(text)?.saturating_mul(1_000_000))
}

/// Parses the megabytes of one value and returns bytes: at most 4 GiB - 1.
pub(super) fn gigabytes(text: &str) -> Result<u64> {
    let bytes = megabytes(text)?;
    if bytes > u64::from(u32::MAX) { Err("a value has less than 4 GiB".into()) } else { Ok(bytes) }
}

/// Parses MiB and returns bytes.
pub(super) fn mebibytes(text: &str) -> Result<u64> {
    Ok(at_least::<16>(text)?.saturating_mul(1 << 20))
}

pub(super) fn workload(name: &str) -> Result<Workload> {
    workload::select(&[name])?.into_iter().next().ok_or_else(|| "no such workload".into())
}

pub(super) fn store(name: &str) -> Result<BenchSubject> {
    BenchSubject::parse(name)
}

pub(super) fn own_engine(name: &str) -> Result<BenchSubject> {
    let subject = BenchSubject::parse(name)?;
    if !subject.is_ours() || subject.has_options() {
        return Err(format!("{name} is not an engine of Sheaf").into());
    }
    Ok(subject)
}

/// Parses the name of an engine that has promised figures.
pub(super) fn engine(name: &str) -> Result<BenchSubject> {
    match BenchSubject::parse(name)? {
        engine @ (BenchSubject::FLAT | BenchSubject::FLEX | BenchSubject::CEDRUS) => Ok(engine),
        other => Err(format!("{} has no figures; flat, flex and cedrus have", other.name()).into()),
    }
}

/// Removes duplicates and keeps the order.
fn deduplicate(subjects: ArgList<BenchSubject>) -> ArgList<BenchSubject> {
    let mut kept = Vec::new();
    for subject in subjects {
        if !kept.contains(&subject) {
            kept.push(subject);
        }
    }
    kept
}

pub(super) fn stores(names: &str) -> Result<ArgList<BenchSubject>> {
    each(names, store).map(deduplicate)
}

pub(super) fn own_engines(names: &str) -> Result<ArgList<BenchSubject>> {
    each(names, own_engine).map(deduplicate)
}

/// Parses names of peers; `none` is an empty list.
pub(super) fn peers(names: &str) -> Result<ArgList<BenchSubject>> {
    if names == "none" {
        return Ok(Vec::new());
    }
    let peer = |name: &str| match BenchSubject::parse(name)? {
        peer if peer.is_peer() => Ok(peer),
        _ => Err(format!("{name} is not a peer").into()),
    };
    each(names, peer).map(deduplicate)
}

/// Parses groups of figures. `headline` means those of all papers.
pub(super) fn groups(names: &str) -> Result<ArgList<FigureGroup>> {
    Ok(each(names, FigureGroup::parse)?.into_iter().flatten().collect())
}

pub(super) fn parts(names: &str) -> Result<ArgList<ValueMeasurement>> {
    each(names, ValueMeasurement::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        assert_eq!(count("5m"), Some(5_000_000));
        assert_eq!(count("200K"), Some(200_000));
        assert_eq!(count("1_000"), Some(1000));
        assert_eq!(count("m"), None);
        assert_eq!(count("99999999999999999999m"), None);
    }
}
