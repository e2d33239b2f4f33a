//! # Arguments: read by hand, refused with the list of what there is

use std::path::PathBuf;
use std::time::Duration;

use crate::Result;
use crate::drive::SYNC_INTERVAL;
use crate::figures::Group;
use crate::subjects::Subject;
use crate::workload::Workload;

pub(crate) const HELP: &str = "\
sheaf-bench: Sheaf beside its peers, on this machine, in one run

sheaf-bench figures [OPTIONS]            measures all figures and prints them with their verdicts
  --pairs N          pairs of 27 + 127 bytes (5000000; 5m and 200k are understood)
  --peers A,B,…      of lmdb, rocksdb, leveldb, fjall, redb; or none (all built in but redb)
  --rounds N         rounds; medians are printed (3)
  --only A,B,…       of fill-random, get-uniform, get-miss, get-zipf, update-zipf, cpu, memory, tail, open,
                     durable, device-bytes, empty
  --seconds S        length of a timed phase (4)
  --tail-seconds S   length of each of the runs that look for the longest write (60)
  --sync-ms N        how often peers are synced between durable points, as we are; 0: never (100)
  --dir D            where the databases go, in a directory of their own that is removed (target/bench)
  --json             JSON on the standard output, in place of Markdown

sheaf-bench run WORKLOAD [OPTIONS]       one run, for profilers; the database is filled first
  WORKLOAD           fill-random, get-uniform, get-zipf, get-miss, update-zipf, durable
  --subject NAME     flat, null, or a peer (flat)
  --threads N        (2; fill-random 1)
  --pairs N, --seconds S, --sync-ms N, --dir D   as above
  --warm N           updates before the timed ones, as a multiple of the pairs (update-zipf: 2)
  --latencies        times each operation and prints percentiles
  --space-limit X    disk over live entries (1.6)
  --keep             keeps the database in --dir; uses the one that is there in place of a new one
";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Figures(Figures),
    Run(Run),
    Child(Child),
}

/// Options of `figures`.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) pairs: u64,
    pub(crate) peers: Vec<Subject>,
    pub(crate) rounds: u64,
    pub(crate) only: Vec<Group>,
    pub(crate) phase: Duration,
    pub(crate) tail: Duration,
    pub(crate) sync_every: Option<Duration>,
    pub(crate) dir: PathBuf,
    pub(crate) json: bool,
}

/// Options of `run`.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) workload: Workload,
    pub(crate) subject: Subject,
    pub(crate) threads: Option<u64>,
    pub(crate) pairs: u64,
    pub(crate) phase: Duration,
    pub(crate) sync_every: Option<Duration>,
    pub(crate) dir: PathBuf,
    pub(crate) warm: u64,
    pub(crate) latencies: bool,
    pub(crate) space_limit: f64,
    pub(crate) keep: bool,
}

/// Options of the writer that is killed.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) subject: Subject,
    pub(crate) pairs: u64,
    pub(crate) dir: PathBuf,
}

const PAIRS: u64 = 5_000_000;
const DIR: &str = "target/bench";

/// Reads a command line without the program's name.
pub(crate) fn parse(arguments: &[String]) -> Result<Command> {
    let Some((command, rest)) = arguments.split_first() else { return Ok(Command::Help) };
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Command::Help);
    }
    let mut rest = Rest(rest.iter());
    match command.as_str() {
        "figures" => figures(&mut rest).map(Command::Figures),
        "run" => run(&mut rest).map(Command::Run),
        "child-writer" => child(&mut rest).map(Command::Child),
        "help" => Ok(Command::Help),
        other => Err(format!("unknown command {other:?}; see sheaf-bench --help").into()),
    }
}

struct Rest<'a>(std::slice::Iter<'a, String>);

impl<'a> Rest<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next().map(String::as_str)
    }

    fn value(&mut self, option: &str) -> Result<&'a str> {
        self.next().ok_or_else(|| format!("{option} needs a value").into())
    }

    fn number(&mut self, option: &str, least: u64) -> Result<u64> {
        let text = self.value(option)?;
        match count(text) {
            Some(number) if number >= least => Ok(number),
            Some(_) => Err(format!("{option} {text}: at least {least}").into()),
            None => Err(format!("{option} {text}: not a number").into()),
        }
    }

    fn seconds(&mut self, option: &str) -> Result<Duration> {
        let text = self.value(option)?;
        match text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) if !time.is_zero() => Ok(time),
            _ => Err(format!("{option} {text}: not a time in seconds").into()),
        }
    }
}

/// `200`, `200k`, `5m`, `5_000_000`.
fn count(text: &str) -> Option<u64> {
    let text = text.replace('_', "").to_ascii_lowercase();
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'm' => (&text[..text.len() - 1], 1_000_000),
        _ => (&text[..], 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn pairs(rest: &mut Rest<'_>, option: &str) -> Result<u64> {
    let pairs = rest.number(option, 1000)?;
    if pairs > 1 << 32 { Err("--pairs: at most 2^32".into()) } else { Ok(pairs) }
}

fn sync_every(rest: &mut Rest<'_>, option: &str) -> Result<Option<Duration>> {
    let ms = rest.number(option, 0)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

fn figures(rest: &mut Rest<'_>) -> Result<Figures> {
    let mut options = Figures {
        pairs: PAIRS,
        peers: Subject::usual_peers(),
        rounds: 3,
        only: Group::ALL.to_vec(),
        phase: Duration::from_secs(4),
        tail: Duration::from_secs(60),
        sync_every: Some(SYNC_INTERVAL),
        dir: PathBuf::from(DIR),
        json: false,
    };
    while let Some(option) = rest.next() {
        match option {
            "--pairs" => options.pairs = pairs(rest, option)?,
            "--peers" => options.peers = peers(rest.value(option)?)?,
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--only" => {
                options.only = rest.value(option)?.split(',').map(Group::parse).collect::<Result<_>>()?
            }
            "--seconds" => options.phase = rest.seconds(option)?,
            "--tail-seconds" => options.tail = rest.seconds(option)?,
            "--sync-ms" => options.sync_every = sync_every(rest, option)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            "--json" => options.json = true,
            other => return Err(format!("figures has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    Ok(options)
}

/// Peers by name, each once; `none` for none.
fn peers(names: &str) -> Result<Vec<Subject>> {
    let mut peers = Vec::new();
    for name in names.split(',').filter(|name| *name != "none") {
        let peer = Subject::parse(name)?;
        if !Subject::PEERS.contains(&peer) {
            return Err(format!("{name} is not a peer").into());
        }
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    Ok(peers)
}

fn run(rest: &mut Rest<'_>) -> Result<Run> {
    let workload = Workload::parse(rest.value("run")?)?;
    let mut options = Run {
        workload,
        subject: Subject::Flat,
        threads: None,
        pairs: PAIRS,
        phase: Duration::from_secs(10),
        sync_every: Some(SYNC_INTERVAL),
        dir: PathBuf::from(DIR),
        warm: 2,
        latencies: false,
        space_limit: 1.6,
        keep: false,
    };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--threads" => options.threads = Some(rest.number(option, 1)?),
            "--pairs" => options.pairs = pairs(rest, option)?,
            "--seconds" => options.phase = rest.seconds(option)?,
            "--sync-ms" => options.sync_every = sync_every(rest, option)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            "--warm" => options.warm = rest.number(option, 0)?,
            "--latencies" => options.latencies = true,
            "--space-limit" => {
                let text = rest.value(option)?;
                options.space_limit = text.parse().map_err(|_| format!("{option} {text}: not a number"))?;
            }
            "--keep" => options.keep = true,
            other => return Err(format!("run has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    Ok(options)
}

fn child(rest: &mut Rest<'_>) -> Result<Child> {
    let mut options = Child { subject: Subject::Flat, pairs: PAIRS, dir: PathBuf::new() };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--pairs" => options.pairs = pairs(rest, option)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("child-writer has no option {other:?}").into()),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Command> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn figures_take_their_options() {
        let Ok(Command::Figures(options)) =
            line("figures --pairs 200k --peers none --rounds 2 --only tail,cpu --sync-ms 0 --json")
        else {
            panic!("not figures")
        };
        assert_eq!(
            (options.pairs, options.rounds, options.peers.len(), options.only.len()),
            (200_000, 2, 0, 2)
        );
        assert!(options.json && options.sync_every.is_none());
    }

    #[test]
    fn wrong_lines_are_refused_with_a_reason() {
        for (text, reason) in [
            ("figure", "unknown command"),
            ("figures --pairs many", "not a number"),
            ("figures --pairs 10", "at least 1000"),
            ("figures --peers oracle", "unknown store"),
            ("figures --peers flat", "not a peer"),
            ("figures --only everything", "unknown group"),
            ("figures --seconds 0", "not a time"),
            ("figures --rounds", "needs a value"),
            ("run get-all", "unknown workload"),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(matches!(line(""), Ok(Command::Help)));
        assert!(matches!(line("figures --help"), Ok(Command::Help)));
    }

    #[test]
    fn counts_have_units() {
        assert_eq!(count("5m"), Some(5_000_000));
        assert_eq!(count("200K"), Some(200_000));
        assert_eq!(count("1_000"), Some(1000));
        assert_eq!(count("m"), None);
        assert_eq!(count("99999999999999999999m"), None);
    }
}
