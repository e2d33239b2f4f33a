//! # `advise`: recommended engine for the workload of a keyspace
//!
//! Reads the workload statistics that the database records (crates/engine/src/workload) and
//! predicts costs. With `--replay` also measures: runs the same mix on scratch databases of the
//! candidates, in turns.
//!
//! ## Replay
//!
//! Works in a new directory in `--tmp` and removes it at the end, also after an interruption. Uses
//! as many pairs as the keyspace has, but at most [`MAX_PAIR_BYTES`] for each engine, and scales
//! the memory budget with them. Ends early if the scratch databases take more disk space than
//! `--disk`.

use std::io::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};
use sheaf::{EngineStats, KeyspaceInfo, KeyspaceOverview, WorkloadStats};
use sheaf_advisor::{AdviceRequest, Candidate, Confidence};
use sheaf_advisor::{ReplayDatabase, ReplayOutcome, WorkloadMix};

use crate::args::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{GOOD, HEADING, HINT, NAME, on_stdout, spinner, stdout};
use crate::text_format::parse_size;
use crate::text_format::{many, printable, size};
use crate::workload::{self, short};

/// Arguments of `advise`.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Name of the keyspace [default: all keyspaces]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Also measure the workload on a scratch database of each engine
    #[arg(long)]
    pub(crate) replay: bool,
    /// Seconds of measurement for each engine
    #[arg(long, value_name = "SECONDS", default_value = "5", requires = "replay")]
    pub(crate) seconds: NonZeroU64,
    /// Directory for the scratch databases [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR", requires = "replay")]
    pub(crate) tmp: Option<PathBuf>,
    /// End the replay early if the scratch databases take more disk space than this
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size, requires = "replay")]
    pub(crate) disk: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Most bytes of pairs for each engine.
const MAX_PAIR_BYTES: u64 = 128 << 20;
/// Length of a turn.
const TURN: Duration = Duration::from_millis(250);

/// Keyspace with its workload statistics and the advice.
struct KeyspaceAdvice {
    info: KeyspaceInfo,
    load: WorkloadStats,
    keys: u64,
    advice: sheaf_advisor::Advice,
    replayed: Vec<(&'static str, ReplayOutcome)>,
}

pub(crate) fn run(args: &Advise) -> Result {
    let is_asked = |keyspace: &KeyspaceOverview| {
        let is_named = args.keyspace.as_ref().is_none_or(|name| *name == keyspace.info.name);
        is_named && keyspace.info.damage.is_none()
    };
    let all = args.database_args.overview()?.keyspaces.into_iter().filter(is_asked);
    let mut answers: Vec<KeyspaceAdvice> = all.map(|keyspace| advise_keyspace(args, keyspace)).collect();
    if let Some(name) = &args.keyspace
        && answers.is_empty()
    {
        return Err(Failure::Database(sheaf::Error::KeyspaceNotFound { name: name.clone() }));
    }
    if args.replay {
        for answer in
            answers.iter_mut().filter(|answer| answer.advice.confidence != Confidence::TooFewSamples)
        {
            replay(args, answer)?;
        }
    }
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", Json::Array(answers.iter().map(|answer| as_json(args, answer)).collect()))?;
    } else {
        answers.iter().try_for_each(|answer| print(&mut out, answer))?;
    }
    Ok(out.flush()?)
}

fn advise_keyspace(args: &Advise, keyspace: KeyspaceOverview) -> KeyspaceAdvice {
    let KeyspaceOverview { info, workload: load, stats: EngineStats { keys, .. }, .. } = keyspace;
    let advice = sheaf_advisor::advise(&AdviceRequest {
        workload: &load,
        key_count: keys,
        memory_budget: args.database_args.memory,
    });
    KeyspaceAdvice { info, load, keys, advice, replayed: Vec::new() }
}

/// Runs the mix on each candidate, in turns.
fn replay(args: &Advise, answer: &mut KeyspaceAdvice) -> Result {
    let whole = WorkloadMix::from_workload(&answer.load, answer.keys.max(1));
    let mix = whole.clone().limited_to_bytes(MAX_PAIR_BYTES);
    let part = mix.bytes().max(1) as f64 / whole.bytes().max(1) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the budget")]
    let memory = ((args.database_args.memory as f64 * part) as u64).max(4 << 20);
    let tmp = args.tmp.clone().unwrap_or_else(std::env::temp_dir);
    let engines: Vec<&'static str> =
        answer.advice.candidates.iter().map(|candidate| candidate.engine).collect();
    let scratch = tempfile::Builder::new()
        .prefix("sheaf-advise-")
        .tempdir_in(&tmp)
        .map_err(Failure::stream("create a directory in", &tmp))?;
    let interrupt = Interrupt::watch()?;
    let stop = || interrupt.is_caught();
    let is_full = || disk_bytes(scratch.path()) > args.disk;
    let bar = spinner("replay");
    let mut subjects = Vec::new();
    for engine in engines {
        if is_full() {
            break;
        }
        if let Some(subject) = ReplayDatabase::new(&scratch.path().join(engine), engine, &mix, memory, &stop)?
        {
            subjects.push((engine, subject));
        }
    }
    run_in_turns(&mut subjects, Duration::from_secs(args.seconds.get()), &|| stop() || is_full())?;
    bar.finish_and_clear();
    for (engine, subject) in subjects {
        answer.replayed.push((engine, subject.outcome().clone()));
        subject.close()?;
    }
    drop(scratch);
    interrupt.check(|| "the scratch databases were removed".to_owned())?;
    answer.replayed.sort_by(|a, b| b.1.per_second().total_cmp(&a.1.per_second()));
    Ok(())
}

/// Runs the subjects in turns. Checks between turns whether to stop.
fn run_in_turns(
    subjects: &mut [(&'static str, ReplayDatabase)],
    lasting: Duration,
    is_over: &dyn Fn() -> bool,
) -> Result {
    let never = || false;
    for (_, subject) in subjects.iter_mut() {
        subject.run(TURN, &never)?;
        subject.reset();
    }
    for _ in 0..(lasting.as_millis() / TURN.as_millis()).max(1) {
        if is_over() {
            break;
        }
        for (_, subject) in subjects.iter_mut() {
            subject.run(TURN, &never)?;
        }
    }
    Ok(())
}

/// Returns the disk space that the files in a directory take. Ignores files that disappear.
#[expect(clippy::disallowed_methods, reason = "sizes of files, without access to their content")]
fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
        Ok(found) => file_bytes(&found),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Returns the bytes of the blocks of a file.
#[cfg(unix)]
fn file_bytes(found: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(found) * 512
}

/// Returns the length of a file; its blocks are unknown.
#[cfg(not(unix))]
fn file_bytes(found: &std::fs::Metadata) -> u64 {
    found.len()
}

fn print(out: &mut impl Write, answer: &KeyspaceAdvice) -> Result {
    let (heading, name, good, hint) = (on_stdout(HEADING), on_stdout(NAME), on_stdout(GOOD), on_stdout(HINT));
    let KeyspaceAdvice { info, load, keys, advice, replayed } = answer;
    let label = printable(info.name.as_bytes());
    writeln!(out, "{heading}{label}{heading:#}  {}, {}", info.engine, many(*keys, "key"))?;
    for line in workload::lines(load) {
        writeln!(out, "  {hint}{line}{hint:#}")?;
    }
    writeln!(out, "  {good}{}{good:#}", verdict(answer))?;
    if advice.confidence == Confidence::TooFewSamples {
        return Ok(());
    }
    for (rank, candidate) in advice.candidates.iter().enumerate() {
        let measured = replayed.iter().find(|(engine, _)| *engine == candidate.engine);
        let measured = measured.map(|(_, outcome)| format_measured(outcome)).unwrap_or_default();
        let (engine, each) = (candidate.engine, nanoseconds(candidate.ns));
        writeln!(out, "  {}. {name}{engine:<12}{name:#} about {each} per operation{measured}", rank + 1)?;
        for reason in &candidate.reasons {
            writeln!(out, "       {reason}")?;
        }
        for hurt in &candidate.drawbacks {
            writeln!(out, "       but {hurt}")?;
        }
        if rank == 0 {
            let (index, all) = (size(candidate.index_bytes), size(candidate.resident_bytes));
            writeln!(out, "       memory: index {index}; {all} would hold all data in use")?;
        }
    }
    for (engine, why) in &advice.excluded {
        writeln!(out, "  -  {name}{engine:<12}{name:#} {why}")?;
    }
    Ok(())
}

/// Returns the advice as a sentence.
fn verdict(answer: &KeyspaceAdvice) -> String {
    let (engine, advice) = (answer.info.engine, &answer.advice);
    let Some(best) = advice.best() else {
        let seen = many(answer.load.samples, "operation");
        return format!("no advice yet: {seen} recorded (one in 64 is recorded)");
    };
    let stays = best.engine == engine;
    let is_as_good = |candidate: &Candidate| candidate.engine == engine && candidate.ns < best.ns * 1.1;
    let sure = match advice.confidence {
        Confidence::FewSamples => ", but few operations were recorded so far",
        Confidence::Extrapolated => {
            "; this is a guess, as no costs were measured for such a workload: measure with --replay"
        }
        Confidence::CloseCandidates if answer.replayed.is_empty() => {
            "; the best candidates are close: measure with --replay"
        }
        _ => "",
    };
    match () {
        () if stays => format!("{engine} suits this workload{sure}"),
        () if advice.candidates.iter().any(is_as_good) => {
            format!("{engine} suits this workload as well as {}{sure}", best.engine)
        }
        () => format!("{} would suit this workload better than {engine}{sure}", best.engine),
    }
}

fn format_measured(outcome: &ReplayOutcome) -> String {
    let each = nanoseconds(1e9 / outcome.per_second().max(1e-9));
    let (p50, p99) = (short(outcome.latency_percentile(0.5)), short(outcome.latency_percentile(0.99)));
    format!("; measured {each} ({:.0} per second, p50 {p50}, p99 {p99})", outcome.per_second())
}

fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.0} ns") } else { short(Duration::from_secs_f64(ns / 1e9)) }
}

fn as_json(args: &Advise, answer: &KeyspaceAdvice) -> Json {
    let sureness = match answer.advice.confidence {
        Confidence::TooFewSamples => "no",
        Confidence::FewSamples => "little",
        Confidence::CloseCandidates => "close",
        Confidence::Extrapolated => "outside",
        Confidence::High => "good",
        _ => "unknown",
    };
    json!({
        "keyspace": answer.info.name,
        "engine": answer.info.engine,
        "keys": answer.keys,
        "memory": args.database_args.memory,
        "load": workload::as_json(&answer.load),
        "sureness": sureness,
        "advised": answer.advice.best().map(|best| best.engine),
        "candidates": answer.advice.candidates.iter().map(|c| candidate_as_json(c, answer)).collect::<Vec<_>>(),
        "ruled_out": answer.advice.excluded.iter()
            .map(|(engine, why)| json!({ "engine": engine, "why": why }))
            .collect::<Vec<_>>(),
    })
}

fn candidate_as_json(candidate: &Candidate, answer: &KeyspaceAdvice) -> Json {
    let parts = candidate.parts.iter();
    let parts: Vec<Json> =
        parts.map(|part| json!({ "what": part.operation, "share": part.share, "ns": part.ns })).collect();
    let ns = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let replayed = answer.replayed.iter().find(|(engine, _)| *engine == candidate.engine);
    let replayed = replayed.map(|(_, outcome)| {
        json!({
            "operations": outcome.operations,
            "operations_per_second": outcome.per_second(),
            "p50_ns": ns(outcome.latency_percentile(0.5)),
            "p99_ns": ns(outcome.latency_percentile(0.99)),
            "longest_ns": ns(outcome.latency_percentile(1.0)),
        })
    });
    json!({
        "engine": candidate.engine,
        "ns": candidate.ns,
        "parts": parts,
        "index_bytes": candidate.index_bytes,
        "resident_bytes": candidate.resident_bytes,
        "memory_hits": candidate.hit_rate,
        "device_bytes_per_byte": candidate.write_amplification,
        "disk_bytes_per_live_byte": candidate.space_amplification,
        "reasons": candidate.reasons,
        "hurts": candidate.drawbacks,
        "replayed": replayed,
    })
}
