//! # `advise`: recommended engine for the workload of a keyspace
//!
//! Reads the workload statistics that the database records (crates/base/src/load) and predicts
//! costs. With `--replay` also measures: runs the same mix on scratch databases of the candidates,
//! in turns.
//!
//! ## Replay
//!
//! Works in a new directory in `--tmp` and removes it at the end, also after an interruption. Uses
//! as many pairs as the keyspace has, but at most [`MOST_BYTES`] for each engine, and scales the
//! memory budget with them. Ends early if the scratch databases take more disk space than `--disk`.

use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};
use sheaf::advise::{self, Candidate, Question, Sureness};
use sheaf::{EngineStats, KeyspaceInfo, KeyspaceOverview, LoadStats};
use sheaf_replay::{Mix, Outcome, Subject};

use crate::args::Place;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::notation::parse_size;
use crate::notation::{many, printable, size};
use crate::output::{GOOD, HEADING, HINT, NAME, on_stdout, spinner, stdout};
use crate::usage::{self, short};

/// Arguments of `advise`.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    #[command(flatten)]
    pub(crate) place: Place,
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
const MOST_BYTES: u64 = 128 << 20;
/// Length of a turn.
const SLICE: Duration = Duration::from_millis(250);

/// Keyspace with its workload statistics and the advice.
struct Answer {
    info: KeyspaceInfo,
    load: LoadStats,
    keys: u64,
    advice: advise::Advice,
    replayed: Vec<(&'static str, Outcome)>,
}

pub(crate) fn run(args: &Advise) -> Result {
    let is_asked = |keyspace: &KeyspaceOverview| {
        let is_named = args.keyspace.as_ref().is_none_or(|name| *name == keyspace.info.name);
        is_named && keyspace.info.damage.is_none()
    };
    let all = args.place.overview()?.keyspaces.into_iter().filter(is_asked);
    let mut answers: Vec<Answer> = all.map(|keyspace| answer(args, keyspace)).collect();
    if let Some(name) = &args.keyspace
        && answers.is_empty()
    {
        return Err(Failure::Database(sheaf::Error::NoKeyspace { name: name.clone() }));
    }
    if args.replay {
        for answer in answers.iter_mut().filter(|answer| answer.advice.sureness != Sureness::No) {
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

fn answer(args: &Advise, keyspace: KeyspaceOverview) -> Answer {
    let KeyspaceOverview { info, load, stats: EngineStats { keys, .. }, .. } = keyspace;
    let advice = advise::advise(&Question { load: &load, keys, memory: args.place.memory });
    Answer { info, load, keys, advice, replayed: Vec::new() }
}

/// Runs the mix on each candidate, in turns.
fn replay(args: &Advise, answer: &mut Answer) -> Result {
    let whole = Mix::of(&answer.load, answer.keys.max(1));
    let mix = whole.clone().within(MOST_BYTES);
    let part = mix.bytes().max(1) as f64 / whole.bytes().max(1) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the budget")]
    let memory = ((args.place.memory as f64 * part) as u64).max(4 << 20);
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
        if let Some(subject) = Subject::new(&scratch.path().join(engine), engine, &mix, memory, &stop)? {
            subjects.push((engine, subject));
        }
    }
    in_turns(&mut subjects, Duration::from_secs(args.seconds.get()), &|| stop() || is_full())?;
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
fn in_turns(
    subjects: &mut [(&'static str, Subject)],
    lasting: Duration,
    is_over: &dyn Fn() -> bool,
) -> Result {
    let never = || false;
    for (_, subject) in subjects.iter_mut() {
        subject.run(SLICE, &never)?;
        subject.reset();
    }
    for _ in 0..(lasting.as_millis() / SLICE.as_millis()).max(1) {
        if is_over() {
            break;
        }
        for (_, subject) in subjects.iter_mut() {
            subject.run(SLICE, &never)?;
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
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

fn print(out: &mut impl Write, answer: &Answer) -> Result {
    let (heading, name, good, hint) = (on_stdout(HEADING), on_stdout(NAME), on_stdout(GOOD), on_stdout(HINT));
    let Answer { info, load, keys, advice, replayed } = answer;
    let label = printable(info.name.as_bytes());
    writeln!(out, "{heading}{label}{heading:#}  {}, {}", info.engine, many(*keys, "key"))?;
    for line in usage::lines(load) {
        writeln!(out, "  {hint}{line}{hint:#}")?;
    }
    writeln!(out, "  {good}{}{good:#}", verdict(answer))?;
    if advice.sureness == Sureness::No {
        return Ok(());
    }
    for (rank, candidate) in advice.candidates.iter().enumerate() {
        let measured = replayed.iter().find(|(engine, _)| *engine == candidate.engine);
        let measured = measured.map(|(_, outcome)| measured_as(outcome)).unwrap_or_default();
        let (engine, each) = (candidate.engine, nanoseconds(candidate.ns));
        writeln!(out, "  {}. {name}{engine:<12}{name:#} about {each} per operation{measured}", rank + 1)?;
        for reason in &candidate.reasons {
            writeln!(out, "       {reason}")?;
        }
        for hurt in &candidate.hurts {
            writeln!(out, "       but {hurt}")?;
        }
        if rank == 0 {
            let (index, all) = (size(candidate.index), size(candidate.resident));
            writeln!(out, "       memory: index {index}; {all} would hold all data in use")?;
        }
    }
    for (engine, why) in &advice.ruled_out {
        writeln!(out, "  -  {name}{engine:<12}{name:#} {why}")?;
    }
    Ok(())
}

/// Returns the advice as a sentence.
fn verdict(answer: &Answer) -> String {
    let (engine, advice) = (answer.info.engine, &answer.advice);
    let Some(best) = advice.best() else {
        let seen = many(answer.load.samples, "operation");
        return format!("no advice yet: {seen} recorded (one in 64 is recorded)");
    };
    let stays = best.engine == engine;
    let is_as_good = |candidate: &Candidate| candidate.engine == engine && candidate.ns < best.ns * 1.1;
    let sure = match advice.sureness {
        Sureness::Little => ", but few operations were recorded so far",
        Sureness::Outside => {
            "; this is a guess, as no costs were measured for such a workload: measure with --replay"
        }
        Sureness::Close if answer.replayed.is_empty() => {
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

fn measured_as(outcome: &Outcome) -> String {
    let each = nanoseconds(1e9 / outcome.per_second().max(1e-9));
    let (p50, p99) = (short(outcome.latency(0.5)), short(outcome.latency(0.99)));
    format!("; measured {each} ({:.0} per second, p50 {p50}, p99 {p99})", outcome.per_second())
}

fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.0} ns") } else { short(Duration::from_secs_f64(ns / 1e9)) }
}

fn as_json(args: &Advise, answer: &Answer) -> Json {
    let sureness = match answer.advice.sureness {
        Sureness::No => "no",
        Sureness::Little => "little",
        Sureness::Close => "close",
        Sureness::Outside => "outside",
        Sureness::Good => "good",
        _ => "unknown",
    };
    json!({
        "keyspace": answer.info.name,
        "engine": answer.info.engine,
        "keys": answer.keys,
        "memory": args.place.memory,
        "load": usage::as_json(&answer.load),
        "sureness": sureness,
        "advised": answer.advice.best().map(|best| best.engine),
        "candidates": answer.advice.candidates.iter().map(|c| candidate_as_json(c, answer)).collect::<Vec<_>>(),
        "ruled_out": answer.advice.ruled_out.iter()
            .map(|(engine, why)| json!({ "engine": engine, "why": why }))
            .collect::<Vec<_>>(),
    })
}

fn candidate_as_json(candidate: &Candidate, answer: &Answer) -> Json {
    let parts = candidate.parts.iter();
    let parts: Vec<Json> =
        parts.map(|part| json!({ "what": part.what, "share": part.share, "ns": part.ns })).collect();
    let ns = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let replayed = answer.replayed.iter().find(|(engine, _)| *engine == candidate.engine);
    let replayed = replayed.map(|(_, outcome)| {
        json!({
            "operations": outcome.operations,
            "operations_per_second": outcome.per_second(),
            "p50_ns": ns(outcome.latency(0.5)),
            "p99_ns": ns(outcome.latency(0.99)),
            "longest_ns": ns(outcome.latency(1.0)),
        })
    });
    json!({
        "engine": candidate.engine,
        "ns": candidate.ns,
        "parts": parts,
        "index_bytes": candidate.index,
        "resident_bytes": candidate.resident,
        "memory_hits": candidate.hits,
        "device_bytes_per_byte": candidate.device,
        "disk_bytes_per_live_byte": candidate.space,
        "reasons": candidate.reasons,
        "hurts": candidate.hurts,
        "replayed": replayed,
    })
}
