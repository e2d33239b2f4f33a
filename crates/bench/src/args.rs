//! # Arguments: read by hand, refused with the list of what there is

use std::path::PathBuf;
use std::time::Duration;

use crate::Result;
use crate::drive::SYNC_INTERVAL;
use crate::figures::Group;
use crate::plan::Options;
use crate::spec::{self, Load};
use crate::subjects::Subject;
use crate::values::Part;

pub(crate) const HELP: &str = "\
sheaf-bench: Sheaf beside its peers, on this machine, in one run

sheaf-bench compare [OPTIONS]            runs workloads over stores, writes results.jsonl, report.md, report.html
  --quick            a first page in about 3 minutes: the main workloads, 200k pairs, 2 rounds of 0.4 s
  --only A,B,…       workloads, groups of them, or names with data and cap (NAME@DATA:CAP); see list (all)
  --stores A,B,…     of ours and of the peers; see list (all of ours, all peers built in but the variants)
  --pairs A,B,…      pairs; more than one show how cost grows (1m; 100k and 1_000_000 are understood)
  --threads A,B,…    in place of the table's, likewise
  --rounds N         rounds; medians are reported (3)
  --seconds S        length of a timed phase (4)
  --sync-ms N        how often peers are synced between durable points, as we are; 0: never (100)
  --dir D            where the databases go: new or empty; emptied at the end (target/bench)
  --out D            where the report goes: new, empty, or an earlier report (target/bench-report)

sheaf-bench paper NAME [OPTIONS]         reruns a paper's experiments: its figures, ours, the peers', each claim's fate
  NAME               flatstore, flexdb, cedrusdb, kreon, delsm; or all
  --scale X          multiplies the experiments' pairs (1); --quick: 0.02, one round of 0.4 s
  --stores, --rounds, --seconds, --sync-ms, --dir, --out   as above

sheaf-bench report FILE… [OPTIONS]       makes the report of stored runs; of two runs also whether they agree
  --out D            (target/bench-report)
  --guide FILE       also writes the tables between the marks of this Markdown file

sheaf-bench list                         workloads, stores with their settings, papers

sheaf-bench figures [OPTIONS]            measures all promised figures and prints them with their verdicts
  --pairs N          pairs of 27 + 127 bytes (5000000; 5m and 200k are understood)
  --peers A,B,…      peers, or none (lmdb, rocksdb, leveldb, fjall, as far as they are built in)
  --rounds N         rounds; medians are printed (3)
  --engine NAME      whose figures: flat, flex or cedrus (flat)
  --only A,B,…       of fill-random, get-uniform, get-miss, get-zipf, update-zipf, cpu, memory, tail, open, device-bytes;
                     flat: durable, empty; flex: scan, scan-down, ycsb, read-tail; cedrus: mixes, churn
  --seconds S        length of a timed phase (4)
  --tail-seconds S   length of each of the runs that look for the longest write (60)
  --sync-ms N, --dir D   as above (but the directory need not be empty)
  --keep             keeps the databases in --dir, and opens those that are there: for a run in pieces
  --json             JSON on the standard output, in place of Markdown

sheaf-bench batching [OPTIONS]           how writers share syncs: none, vertical, naive, pipelined, side by side
  --subject NAME     one of ours (flat)
  --threads A,B,…    writers (1,2,8,32); --flight A,B,…: commits that each has in flight (1,8)
  --rounds N         rounds; medians are printed (3)
  --seconds S        length of a phase (1)
  --dir D            as above

sheaf-bench values [OPTIONS]             large values: fills, device bytes, gets, keys alone, fills after removals, tails
  --stores A,B,…     of ours and of the peers (delsm, leveldb, rocksdb as far as they are built in)
  --sizes A,B,…      bytes of a value (4096,16384,65536)
  --only A,B,…       of fill, get, keys, refill, churn, tail (all but tail)
  --megabytes N      of keys and values (2000)
  --memory N         MiB of cache or memory budget (2048)
  --seconds S        length of the gets (4); --tail-seconds S: of the tail (60)
  --rounds N         rounds, each with its rows (1)
  --sync-ms N, --dir D   as above

sheaf-bench stream [OPTIONS]             one large value written and read piece by piece, beside a plain file; memory
  --subject NAME     one of ours (delsm)
  --megabytes N      of the value, below 4294 (1074)
  --memory N         MiB of memory budget (64)
  --rounds N         rounds; medians are printed (3)
  --dir D            as above

sheaf-bench advise [OPTIONS]             whether the engine that `sheaf advise` names is the fastest, by ten loads it was not made with
  --only A,B,…       of those loads (all; crates/bench/tables/advise.toml)
  --measure          in place of that: the costs that the advice goes by, as lines of crates/sheaf/src/advise/costs.tsv
  --seconds S        length of each load on each engine (2); of each cost (0.3)
  --dir D            as for figures

sheaf-bench recovery [OPTIONS]           opening by replay of the whole log, and from a checkpoint
  --subject NAME     one of ours (flat)
  --pairs N, --rounds N, --dir D   as for figures

sheaf-bench backup [OPTIONS]             backups beside the device's speed, and updates beside backups
  --subject NAME     one of ours (flat)
  --threads N        that update (2)
  --pairs N, --rounds N, --seconds S, --dir D   as for figures

sheaf-bench run WORKLOAD [OPTIONS]       one run in this process, for profilers; the database is filled first
  WORKLOAD           see list
  --subject NAME     one of ours, null, or a peer (flat)
  --threads N        (the table's)
  --pairs N, --seconds S, --sync-ms N, --dir D   as for figures
  --warm N           updates before the timed ones, as a multiple of the pairs (updates: 2)
  --latencies        times each operation and prints percentiles
  --space-limit X    disk over live entries (1.6)
  --keep             keeps the database in --dir; uses the one that is there in place of a new one
";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    List,
    Host,
    Figures(Figures),
    Run(Box<Run>),
    Compare(Compare),
    Paper(Paper),
    Report(Report),
    Batching(Batching),
    Recovery(Recovery),
    Backup(Backup),
    Values(Values),
    Stream(Stream),
    Advise(Advise),
}

/// Options of `compare`.
#[derive(Clone, Debug)]
pub(crate) struct Compare {
    pub(crate) loads: Vec<Load>,
    pub(crate) pairs: Vec<u64>,
    pub(crate) threads: Vec<u64>,
    pub(crate) options: Options,
}

/// Options of `paper`.
#[derive(Clone, Debug)]
pub(crate) struct Paper {
    pub(crate) papers: Vec<crate::paper::Paper>,
    pub(crate) scale: f64,
    /// Stores were named: no stand-ins are added.
    pub(crate) only_stores: bool,
    pub(crate) options: Options,
}

/// Options of `report`.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) out: PathBuf,
    pub(crate) guide: Option<PathBuf>,
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
    pub(crate) keep: bool,
    pub(crate) json: bool,
    /// Whose figures.
    pub(crate) engine: Subject,
}

/// Options of `batching`.
#[derive(Clone, Debug)]
pub(crate) struct Batching {
    pub(crate) subject: Subject,
    pub(crate) threads: Vec<u64>,
    pub(crate) flight: Vec<u64>,
    pub(crate) rounds: u64,
    pub(crate) phase: Duration,
    pub(crate) dir: PathBuf,
}

/// Options of `advise`.
#[derive(Clone, Debug)]
pub(crate) struct Advise {
    pub(crate) only: Vec<String>,
    pub(crate) measure: bool,
    pub(crate) phase: Duration,
    pub(crate) dir: PathBuf,
}

/// Options of `recovery`.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) subject: Subject,
    pub(crate) pairs: u64,
    pub(crate) rounds: u64,
    pub(crate) dir: PathBuf,
}

/// Options of `backup`.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(crate) subject: Subject,
    pub(crate) pairs: u64,
    pub(crate) threads: u64,
    pub(crate) phase: Duration,
    pub(crate) rounds: u64,
    pub(crate) dir: PathBuf,
}

/// Options of `values`.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) stores: Vec<Subject>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) only: Vec<Part>,
    pub(crate) bytes: u64,
    pub(crate) memory: u64,
    pub(crate) phase: Duration,
    pub(crate) tail: Duration,
    pub(crate) rounds: u64,
    pub(crate) sync_every: Option<Duration>,
    pub(crate) dir: PathBuf,
}

/// Options of `stream`.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) subject: Subject,
    pub(crate) bytes: u64,
    pub(crate) memory: u64,
    pub(crate) rounds: u64,
    pub(crate) dir: PathBuf,
}

/// Options of `run`.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) load: Load,
    pub(crate) subject: Subject,
    pub(crate) threads: Option<u64>,
    pub(crate) pairs: u64,
    pub(crate) phase: Duration,
    pub(crate) sync_every: Option<Duration>,
    pub(crate) dir: PathBuf,
    pub(crate) warm: Option<u64>,
    pub(crate) latencies: bool,
    pub(crate) space_limit: f64,
    pub(crate) keep: bool,
}

const PAIRS: u64 = 5_000_000;
const DIR: &str = "target/bench";
const OUT: &str = "target/bench-report";

/// Reads a command line without the program's name.
pub(crate) fn parse(arguments: &[String]) -> Result<Command> {
    let Some((command, rest)) = arguments.split_first() else { return Ok(Command::Help) };
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Command::Help);
    }
    let mut rest = Rest(rest.iter());
    match command.as_str() {
        "figures" => figures(&mut rest).map(Command::Figures),
        "run" => run(&mut rest).map(|run| Command::Run(Box::new(run))),
        "compare" => compare(&mut rest, arguments).map(Command::Compare),
        "paper" => paper(&mut rest, arguments).map(Command::Paper),
        "report" => report(&mut rest).map(Command::Report),
        "batching" => batching(&mut rest).map(Command::Batching),
        "recovery" => recovery(&mut rest).map(Command::Recovery),
        "backup" => backup(&mut rest).map(Command::Backup),
        "values" => values(&mut rest).map(Command::Values),
        "stream" => stream(&mut rest).map(Command::Stream),
        "advise" => advise(&mut rest).map(Command::Advise),
        "list" => Ok(Command::List),
        "host" => Ok(Command::Host),
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

    /// A comma-separated list of numbers.
    fn numbers(&mut self, option: &str, least: u64) -> Result<Vec<u64>> {
        let text = self.value(option)?;
        let number = |part: &str| match count(part) {
            Some(number) if number >= least => Ok(number),
            Some(_) => Err(format!("{option} {part}: at least {least}").into()),
            None => Err(format!("{option} {part}: not a number").into()),
        };
        text.split(',').map(number).collect()
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
        keep: false,
        json: false,
        engine: Subject::FLAT,
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
            "--keep" => options.keep = true,
            "--engine" => options.engine = with_figures(rest.value(option)?)?,
            other => return Err(format!("figures has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    Ok(options)
}

/// An engine that figures were promised of.
fn with_figures(name: &str) -> Result<Subject> {
    match Subject::parse(name)? {
        engine @ (Subject::FLAT | Subject::FLEX | Subject::CEDRUS) => Ok(engine),
        other => Err(format!("{} has no figures; flat, flex and cedrus have", other.name()).into()),
    }
}

/// Peers by name, each once; `none` for none.
fn peers(names: &str) -> Result<Vec<Subject>> {
    let mut peers = Vec::new();
    for name in names.split(',').filter(|name| *name != "none") {
        let peer = Subject::parse(name)?;
        if !peer.is_peer() {
            return Err(format!("{name} is not a peer").into());
        }
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    Ok(peers)
}

fn run(rest: &mut Rest<'_>) -> Result<Run> {
    let name = rest.value("run")?;
    let load = spec::select(&[name])?.into_iter().next().ok_or("no such workload")?;
    let mut options = Run {
        load,
        subject: Subject::FLAT,
        threads: None,
        pairs: PAIRS,
        phase: Duration::from_secs(10),
        sync_every: Some(SYNC_INTERVAL),
        dir: PathBuf::from(DIR),
        warm: None,
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
            "--warm" => options.warm = Some(rest.number(option, 0)?),
            "--latencies" => options.latencies = true,
            "--space-limit" => options.space_limit = factor(rest, option)?,
            "--keep" => options.keep = true,
            other => return Err(format!("run has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    Ok(options)
}

fn batching(rest: &mut Rest<'_>) -> Result<Batching> {
    let mut options = Batching {
        subject: Subject::FLAT,
        threads: vec![1, 2, 8, 32],
        flight: vec![1, 8],
        rounds: 3,
        phase: Duration::from_secs(1),
        dir: PathBuf::from(DIR),
    };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--threads" => options.threads = rest.numbers(option, 1)?,
            "--flight" => options.flight = rest.numbers(option, 1)?,
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--seconds" => options.phase = rest.seconds(option)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("batching has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    is_ours(options.subject)?;
    Ok(options)
}

fn is_ours(subject: Subject) -> Result<()> {
    if subject.is_peer() || subject == Subject::NULL {
        return Err(format!("{} is not an engine of ours", subject.name()).into());
    }
    Ok(())
}

fn recovery(rest: &mut Rest<'_>) -> Result<Recovery> {
    let mut options = Recovery { subject: Subject::FLAT, pairs: PAIRS, rounds: 3, dir: PathBuf::from(DIR) };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--pairs" => options.pairs = pairs(rest, option)?,
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("recovery has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    is_ours(options.subject)?;
    Ok(options)
}

fn advise(rest: &mut Rest<'_>) -> Result<Advise> {
    let (mut only, mut measure, mut phase, mut dir) = (Vec::new(), false, None, PathBuf::from(DIR));
    while let Some(option) = rest.next() {
        match option {
            "--only" => only = rest.value(option)?.split(',').map(str::to_owned).collect(),
            "--measure" => measure = true,
            "--seconds" => phase = Some(rest.seconds(option)?),
            "--dir" => dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("advise has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    let phase = phase.unwrap_or(Duration::from_millis(if measure { 300 } else { 2000 }));
    Ok(Advise { only, measure, phase, dir })
}

fn stream(rest: &mut Rest<'_>) -> Result<Stream> {
    let mut options = Stream {
        subject: Subject::parse("delsm")?,
        bytes: 1_074_000_000,
        memory: 64 << 20,
        rounds: 3,
        dir: PathBuf::from(DIR),
    };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--megabytes" => options.bytes = rest.number(option, 1)?.saturating_mul(1_000_000),
            "--memory" => options.memory = rest.number(option, 16)?.saturating_mul(1 << 20),
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("stream has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    if options.bytes > u64::from(u32::MAX) {
        return Err("--megabytes: a value has less than 4 GiB".into());
    }
    is_ours(options.subject)?;
    Ok(options)
}

fn backup(rest: &mut Rest<'_>) -> Result<Backup> {
    let mut options = Backup {
        subject: Subject::FLAT,
        pairs: PAIRS,
        threads: 2,
        phase: Duration::from_secs(4),
        rounds: 3,
        dir: PathBuf::from(DIR),
    };
    while let Some(option) = rest.next() {
        match option {
            "--subject" => options.subject = Subject::parse(rest.value(option)?)?,
            "--pairs" => options.pairs = pairs(rest, option)?,
            "--threads" => options.threads = rest.number(option, 1)?,
            "--seconds" => options.phase = Duration::from_secs(rest.number(option, 1)?),
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("backup has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    is_ours(options.subject)?;
    Ok(options)
}

fn values(rest: &mut Rest<'_>) -> Result<Values> {
    let mut options = Values {
        stores: Part::stores(),
        sizes: vec![4 << 10, 16 << 10, 64 << 10],
        only: Part::ALL.into_iter().filter(|part| *part != Part::Tail).collect(),
        bytes: 2_000_000_000,
        memory: crate::subjects::MEMORY,
        phase: Duration::from_secs(4),
        tail: Duration::from_secs(60),
        rounds: 1,
        sync_every: Some(SYNC_INTERVAL),
        dir: PathBuf::from(DIR),
    };
    while let Some(option) = rest.next() {
        match option {
            "--stores" => options.stores = stores(rest.value(option)?)?,
            "--sizes" => options.sizes = rest.numbers(option, 8)?,
            "--only" => {
                options.only = rest.value(option)?.split(',').map(Part::parse).collect::<Result<_>>()?
            }
            "--megabytes" => options.bytes = rest.number(option, 1)?.saturating_mul(1_000_000),
            "--memory" => options.memory = rest.number(option, 16)?.saturating_mul(1 << 20),
            "--seconds" => options.phase = rest.seconds(option)?,
            "--tail-seconds" => options.tail = rest.seconds(option)?,
            "--rounds" => options.rounds = rest.number(option, 1)?,
            "--sync-ms" => options.sync_every = sync_every(rest, option)?,
            "--dir" => options.dir = PathBuf::from(rest.value(option)?),
            other => return Err(format!("values has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    Ok(options)
}

fn factor(rest: &mut Rest<'_>, option: &str) -> Result<f64> {
    let text = rest.value(option)?;
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(format!("{option} {text}: not a positive number").into()),
    }
}

/// Stores by name, each once.
fn stores(names: &str) -> Result<Vec<Subject>> {
    let mut stores = Vec::new();
    for name in names.split(',') {
        let store = Subject::parse(name)?;
        if !stores.contains(&store) {
            stores.push(store);
        }
    }
    Ok(stores)
}

/// The line for the report: where files went says nothing about the figures.
fn without_places(arguments: &[String]) -> String {
    let is_place = |argument: &String| argument == "--dir" || argument == "--out";
    let kept = arguments.iter().enumerate().filter(|(place, argument)| {
        !is_place(argument)
            && !place.checked_sub(1).and_then(|before| arguments.get(before)).is_some_and(is_place)
    });
    kept.map(|(_, argument)| argument.as_str()).collect::<Vec<_>>().join(" ")
}

fn defaults(arguments: &[String]) -> Options {
    Options {
        subjects: Subject::ours().into_iter().chain(Subject::main_peers()).collect(),
        rounds: 3,
        seconds: 4.0,
        sync_every: Some(SYNC_INTERVAL),
        settle: Duration::from_secs(60),
        dir: PathBuf::from(DIR),
        out: PathBuf::from(OUT),
        command: without_places(arguments),
    }
}

/// An option that comparisons and papers have in common; false if it is none.
fn common(options: &mut Options, option: &str, rest: &mut Rest<'_>) -> Result<bool> {
    match option {
        "--stores" => options.subjects = stores(rest.value(option)?)?,
        "--rounds" => options.rounds = rest.number(option, 1)?,
        "--seconds" => options.seconds = rest.seconds(option)?.as_secs_f64(),
        "--sync-ms" => options.sync_every = sync_every(rest, option)?,
        "--dir" => options.dir = PathBuf::from(rest.value(option)?),
        "--out" => options.out = PathBuf::from(rest.value(option)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Turns `options` into those of a quick run; what follows on the line may still change them.
fn quick(options: &mut Options, rounds: u64) {
    (options.rounds, options.seconds, options.settle) = (rounds, 0.4, Duration::from_secs(5));
}

fn compare(rest: &mut Rest<'_>, arguments: &[String]) -> Result<Compare> {
    let mut options = defaults(arguments);
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    if is_quick {
        quick(&mut options, 2);
    }
    let mut loads: Vec<Load> = spec::all()?.into_iter().filter(|load| load.quick || !is_quick).collect();
    let (mut pairs, mut threads) = (vec![if is_quick { 200_000 } else { 1_000_000 }], Vec::new());
    while let Some(option) = rest.next() {
        match option {
            "--quick" => {}
            "--only" => loads = spec::select(&rest.value(option)?.split(',').collect::<Vec<_>>())?,
            "--pairs" => pairs = rest.numbers(option, 1000)?,
            "--threads" => threads = rest.numbers(option, 1)?,
            other if common(&mut options, other, rest)? => {}
            other => return Err(format!("compare has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    if pairs.iter().any(|pairs| *pairs > 1 << 32) {
        return Err("--pairs: at most 2^32".into());
    }
    Ok(Compare { loads, pairs, threads, options })
}

fn paper(rest: &mut Rest<'_>, arguments: &[String]) -> Result<Paper> {
    let papers = crate::paper::select(rest.value("paper")?)?;
    let mut options = defaults(arguments);
    let mut scale = 1.0;
    while let Some(option) = rest.next() {
        match option {
            "--quick" => {
                quick(&mut options, 1);
                scale = 0.02;
            }
            "--scale" => scale = factor(rest, option)?,
            other if common(&mut options, other, rest)? => {}
            other => return Err(format!("paper has no option {other:?}; see sheaf-bench --help").into()),
        }
    }
    let only_stores = arguments.iter().any(|argument| argument == "--stores");
    Ok(Paper { papers, scale, only_stores, options })
}

fn report(rest: &mut Rest<'_>) -> Result<Report> {
    let mut options = Report { files: Vec::new(), out: PathBuf::from(OUT), guide: None };
    while let Some(option) = rest.next() {
        match option {
            "--out" => options.out = PathBuf::from(rest.value(option)?),
            "--guide" => options.guide = Some(PathBuf::from(rest.value(option)?)),
            other if other.starts_with("--") => {
                return Err(format!("report has no option {other:?}; see sheaf-bench --help").into());
            }
            file => options.files.push(PathBuf::from(file)),
        }
    }
    if options.files.is_empty() {
        return Err("report wants the results.jsonl of a run".into());
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
            ("compare --only get-all", "unknown workload"),
            ("compare --stores flat,oracle", "unknown store"),
            ("compare --pairs 1k,many", "not a number"),
            ("compare --pairs 5000m", "at most 2^32"),
            ("compare --speed 3", "no option"),
            ("paper bigtable", "unknown paper"),
            ("paper flatstore --scale -1", "not a positive number"),
            ("report", "wants the results"),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(matches!(line(""), Ok(Command::Help)));
        assert!(matches!(line("figures --help"), Ok(Command::Help)));
    }

    #[test]
    fn a_quick_comparison_is_small_and_can_still_be_changed() {
        let Ok(Command::Compare(compare)) =
            line("compare --quick --out /o --rounds 5 --stores flat,null --threads 1,2 --dir /d")
        else {
            panic!("not a comparison")
        };
        assert_eq!((compare.options.rounds, compare.pairs, compare.threads), (5, vec![200_000], vec![1, 2]));
        assert_eq!(compare.options.subjects, [Subject::FLAT, Subject::NULL]);
        assert_eq!(compare.options.command, "compare --quick --rounds 5 --stores flat,null --threads 1,2");
        assert!(compare.loads.iter().all(|load| load.quick) && compare.loads.len() > 8);
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
