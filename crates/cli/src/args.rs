//! # The command line: verbs, flags, help
//!
//! Which verbs there are, their help, and the arguments that several of them share; each verb's own stand beside it.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};
use sheaf::Permissions;

use crate::demo::Demo;
use crate::notation::{parse_mode, parse_option, parse_seconds, parse_size};
use crate::verbs::advise::Advise;
use crate::verbs::backup::{Backup, Restore};
use crate::verbs::call::Call;
use crate::verbs::compact::Compact;
use crate::verbs::convert::Convert;
use crate::verbs::del::Del;
use crate::verbs::drop::Drop;
use crate::verbs::dump::Dump;
use crate::verbs::get::Get;
use crate::verbs::load::Load;
use crate::verbs::path::PathOf;
use crate::verbs::put::Put;
use crate::verbs::repair::Repair;
use crate::verbs::scan::Scan;
use crate::verbs::serve::Serve;
use crate::verbs::top::Top;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the key or keyspace is not there, or a question was answered with no
  2  the command line is wrong
  3  damage found: stored bytes are not what was written
  4  any other error: no such database, in use, no space, unsupported, ...
  128 + N  ended by signal N: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP

Ctrl-C, SIGTERM and SIGHUP end backup, restore, repair, convert and load in order: what was made
so far is removed, and a load keeps its batches. A second Ctrl-C ends at once. Where a process was
killed in the midst, the next run says what is left and what to do.

Keys and values are any bytes. On the command line they are taken as they are,
or as hexadecimal digits with --hex. A key that starts with a hyphen goes after
`--`:  sheaf get my.db -- -key

Reading verbs (get path scan dump stats advise verify keyspaces) open the database read-only
and never create anything. They, and backup, convert and compact, work while a process
of yours has the database open, too. `sheaf help VERB` shows an example of each verb.

A command that finds the database in use waits, 5 seconds unless --wait says otherwise, and
then names the process that uses it. Files of a database are for their owner (mode 600, and
700 for directories) unless --mode says otherwise where it is created.";

/// A Sheaf database at the shell.
#[derive(Debug, Parser)]
#[command(name = "sheaf", version, styles = STYLES, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Set a key to a value; creates the database and the keyspace if need be
    #[command(after_long_help = "\
Examples:
  sheaf put my.db ada lovelace
  sheaf put my.db photo - < photo.jpg
  sheaf put my.db --hex 00ff 68656c6c6f
  sheaf put my.db --keyspace users --engine flat --durable ada lovelace
  sheaf put my.db --keyspace users --engine cedrus --option branching=64 ada lovelace")]
    Put(Put),
    /// Print the value of a key
    #[command(after_long_help = "\
Into a pipe or a file the value goes byte for byte, with nothing added. On a
terminal a newline follows it and control bytes are shown as \\xNN; --raw sends
the bytes as they are there, too.

Examples:
  sheaf get my.db ada
  sheaf get my.db photo > photo.jpg
  sheaf get my.db --json ada          {\"key\":\"ada\",\"value\":\"lovelace\"}
  sheaf get my.db ada > /dev/null && echo there")]
    Get(Get),
    /// Print the file that is the value of a key, for other tools to read
    #[command(after_long_help = "\
In keyspaces of `delsm` a value above 8 KiB stands in a file of its own, which holds it and
nothing else; elsewhere one above 4 MiB, or that was streamed. Do not change it. Once the database is written to, the file may get
another name, or go. Exit code 1 if the key is not there or its value has no file of its own.

Example:
  file \"$(sheaf path my.db --keyspace photos cat)\"")]
    Path(PathOf),
    /// Remove keys, all in one commit
    #[command(after_long_help = "\
Exit code 1 if one of the keys was not there; the others are removed all the same.

Examples:
  sheaf del my.db ada
  sheaf del my.db --keyspace users ada alan grace")]
    Del(Del),
    /// List pairs, escaped, one a line
    #[command(after_long_help = "\
A line is key, TAB, value, escaped as in `sheaf dump`; with --hex both are
hexadecimal digits; with --json a line is an object {\"key\":..,\"value\":..}, where
bytes that are not UTF-8 appear as {\"hex\":\"..\"}.

Limits and --reverse need an engine that keeps its keys in order. `flat` does not:
it lists every pair once, in no particular order, and answers a limit with an error.

Examples:
  sheaf scan my.db --limit 10
  sheaf scan my.db --prefix user: --json
  sheaf scan my.db --from a --to b --reverse")]
    Scan(Scan),
    /// Read pairs from a file or stdin; creates the database and the keyspace if need be
    #[command(after_long_help = "\
A line is key, TAB, value, with the escapes of `sheaf dump`: \\t \\n \\r \\\\ and \\xNN.
With --lines the file is plain text, without escapes: each line becomes a value under
its number as ten decimal digits (0000000001, 0000000002, ...), so that the keys sort
as the lines stand.

Pairs are committed in batches of up to 1,000. A malformed line stops the load with its
line number: the batches before it stay, nothing of its own batch or after it is loaded.
Loading the same file again is harmless. A key has at most 65,535 bytes, a value 4 GiB - 1;
memory holds a mebibyte of a longer value.

A dump says at its end how many lines it has, and their checksum: one that was cut off or
changed is an error. Plain lines of other tools have no such end; if the last one has no
newline, it is loaded and a note goes to stderr, and with --replace nothing is replaced.

With --sorted the keys must ascend, as in a dump of an engine with ordered keys. Then all
of it is there at the end, at once, or nothing; engines with files of their own (flex,
delsm) take it without the journal, in less time and with half of the writes. The keyspace
must be empty, or --replace puts the file in its place.

Examples:
  sheaf load my.db pairs.tsv
  sheaf load my.db --sorted --replace pairs.tsv
  sheaf load my.db --lines /usr/share/dict/words
  sheaf dump old.db | sheaf load new.db -")]
    Load(Load),
    /// Write all pairs of a keyspace, as a text that `load` reads
    #[command(after_long_help = "\
A line is key, TAB, value. Within them TAB, newline, carriage return and backslash are
written \\t \\n \\r \\\\, other control bytes and bytes that are not UTF-8 as \\xNN; any bytes
survive dump and load. This is the way between engines and between format versions; it
is specified in docs/format/dump.md. All pairs are from one moment.

The first line says that it is a dump, the last one how many lines there are, and their
checksum: `load` refuses a dump that was cut off. --plain leaves both away.

Damage ends a dump with exit code 3. With --skip-damaged it goes on behind each damaged place,
lists these on stderr, and ends with exit code 3; `sheaf repair` saves more where it can.

Examples:
  sheaf dump my.db > my.tsv
  sheaf dump my.db --keyspace users | sheaf load other.db --keyspace users -
  sheaf dump my.db --plain | grep error | cut -f1
  sheaf dump my.db --skip-damaged > saved.tsv 2> lost.txt")]
    Dump(Dump),
    /// Show figures: keyspaces, logs, memory, how the opening went
    #[command(after_long_help = "Example:\n  sheaf stats my.db --json | jq .memory")]
    Stats(Report),
    /// Watch a database that a process has open, live
    #[command(after_long_help = "\
Rates are of the last interval. Ends with Ctrl-C, or when the database is closed.

Examples:
  sheaf top my.db
  sheaf top my.db --interval 5
  sheaf top my.db --once --json | jq .held_bytes")]
    Top(Top),
    /// Say which engine suits what a keyspace is used for
    #[command(after_long_help = "\
A database keeps a sketch of how each keyspace is used: kinds of operations, sizes, skew.
From it, and from what each engine was measured to take, this predicts what an operation of
that load would cost with each. With --replay it also measures: the same mix, with made-up
keys and values, on a scratch database of each engine, in turns.

Examples:
  sheaf advise my.db
  sheaf advise my.db --keyspace words --memory 256MiB
  sheaf advise my.db --replay --seconds 5 --tmp /mnt/disk")]
    Advise(Advise),
    /// Read everything and report damage by file, offset and keyspace
    #[command(after_long_help = "\
Every stored byte is read and checked. Each damage is a line on stdout; the exit code is 3
if there was any.

Example:
  sheaf verify my.db || sheaf restore /backup/monday again.db")]
    Verify(Report),
    /// List keyspaces
    #[command(after_long_help = "\
A line is name, engine, number of keys, with TABs between, and what was chosen of the engine's
options, if anything was.

Example:
  sheaf keyspaces my.db | cut -f1")]
    Keyspaces(Report),
    /// List engines and their options
    #[command(after_long_help = "\
An option is chosen with --option when a keyspace is created, stays with it, and is changed
by `sheaf convert`. For each one its values, what it is if nobody chose, and what it is about.

Example:
  sheaf engines")]
    Engines,
    /// Copy the database into a new directory, consistent over all keyspaces
    #[command(after_long_help = "\
The copy is one moment's. What was written is read back from the device and compared, and
only then is it a backup; if anything fails, nothing is left of it. Nobody opens or changes
a backup: `sheaf restore` makes a database of it. Where another process has the database
open, that one makes the copy, and goes on meanwhile.

With --base, files that an earlier backup on the same file system has already are given a
second name there and take no room. Either backup may be removed afterwards. They are read
all the same.

While others commit, a backup rests as long as it takes for them to keep three quarters of
the speed they had before it, and no longer than twice as long as it works. With --rate it takes
so many bytes a second at most, whatever others do; `--rate full` takes all.

Examples:
  sheaf backup my.db /backup/monday
  sheaf backup my.db /backup/tuesday --base /backup/monday
  sheaf backup my.db /backup/friday --json")]
    Backup(Backup),
    /// Make a database of a backup
    #[command(after_long_help = "\
Every byte is checked on the way; a backup that is damaged or not finished is refused, with
the file's name, and nothing is left of the database. The backup stays as it is.

Example:
  sheaf restore /backup/monday my.db")]
    Restore(Restore),
    /// Salvage what is right of a damaged database into a new one
    #[command(after_long_help = "\
Only reads the damaged one. A pair goes into the new one if it is certain: what is whole
proves that it is the newest version of its key. One whose bytes are right, but which
something damaged may have superseded or removed, is doubtful: it is listed, and goes along
with --keep-doubtful. Keys whose values are gone are listed as lost.

The list goes to stdout, or into a file with --report; keys are escaped as in `sheaf dump`.
Exit code 0 if nothing is lost, 3 if anything is.

Examples:
  sheaf repair my.db new.db
  sheaf repair my.db new.db --keep-doubtful --report lost.txt")]
    Repair(Repair),
    /// Put the records of a keyspace into the order of its keys, for scans
    #[command(after_long_help = "\
Keyspaces of `flat-ordered` and `kreon` have their records where they arrived, so that a
scan reads each from another place. This writes those that are out of place again, in
order, and cleans up behind itself; it needs as much room as the space limit allows
beside the data. It can be interrupted: what is done stays done. Exit code 4 with engines
that have nothing to sort.

Example:
  sheaf compact my.db --keyspace words")]
    Compact(Compact),
    /// Have another engine keep a keyspace, or the same one with other options
    #[command(after_long_help = "\
Copies the keyspace and puts the copy in its place, at once: interrupted at any moment it
is the old one or the new one, whole. Beside the old one there must be room for the new
one meanwhile; --dry-run says how much, and about how long it takes, and changes nothing.
(It measures with some thousand pairs in a scratch database beside this one.)

Examples:
  sheaf convert my.db --keyspace words --to flat --dry-run
  sheaf convert my.db --keyspace words --to flat
  sheaf convert my.db --keyspace words --to cedrus --option branching=64")]
    Convert(Convert),
    /// Drop a keyspace and everything in it
    #[command(after_long_help = "\
Asks first if stdin is a terminal; elsewhere it needs --yes.

Example:
  sheaf drop my.db users --yes")]
    Drop(Drop),
    /// Serve the database to other processes, until it is told to end (Ctrl-C, SIGTERM)
    #[command(after_long_help = "\
An ADDRESS with a slash in it is a socket through which processes of the same user get
shared memory; HOST:PORT or PORT is TCP. TCP stays on this machine unless HOST says
otherwise, and needs --token-file, or --insecure to be served to whoever can reach it.
Wrong tokens are answered late, and reported here. The token and everything else goes
over the wire as it is: use a tunnel between machines. The option can be given more than once.

Creates the database if need be. While it is served nobody else can open it for writing: use
`sheaf call`, or the crate sheaf-client. Verbs that read, and backup, convert, compact, work beside it.

Examples:
  sheaf serve my.db --flatrpc /tmp/my.sock
  sheaf serve my.db --flatrpc /tmp/my.sock --flatrpc 7421 --token-file token.txt --workers 4
  sheaf serve my.db --flatrpc 0.0.0.0:7421 --token-file token.txt")]
    Serve(Serve),
    /// Use a database that another process serves
    #[command(after_long_help = "\
Examples:
  sheaf call /tmp/my.sock put ada lovelace
  sheaf call /tmp/my.sock get ada
  sheaf call 7421 --token-file token.txt --keyspace words scan --limit 3
  sheaf call host:7421 --token-file token.txt ping")]
    Call(Call),
    /// See it work: load, query, batch, snapshot, kill a writer, reopen, verify
    #[command(after_long_help = "\
Works in a temporary directory, which is removed at the end, on the source lines of the
checkout it is started in, on a FILE given, or else on a text of its own.

Examples:
  sheaf demo
  sheaf demo /usr/share/dict/words
  sheaf demo --dir /mnt/disk/demo")]
    Demo(Demo),
    /// The writer that `demo` kills
    #[command(hide = true)]
    DemoWriter {
        /// The demo's database.
        database: PathBuf,
    },
}

/// How long to wait.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Seconds to wait while another process uses the database: 0 is not at all. They count anew when
    /// it gets another owner
    #[arg(long = "wait", value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(crate) time: Duration,
}

/// Modes of what is created.
#[derive(Debug, Args)]
pub(crate) struct Modes {
    /// Mode of its files if the database is created, as octal digits such as 640; directories have
    /// search permission with it (600; of a copy: at most that of the source)
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<Permissions>,
}

/// Which database, and how much memory to use on it.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The database's directory
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    /// Memory budget for indexes and caches: bytes, or with KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) memory: u64,
    /// File descriptors for the database's files, at least 16 [default: a quarter of `ulimit -n`, at most 1024]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) open_files: Option<u32>,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Which keyspace of it.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The database.
    #[command(flatten)]
    pub(crate) place: Place,
    /// The keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

/// How to write.
#[derive(Debug, Args)]
pub(crate) struct Durable {
    /// Have every commit on the device before going on (a plain one survives a killed process, and
    /// a power cut from the orderly end of the command on)
    #[arg(long)]
    pub(crate) durable: bool,
}

/// The engine of a keyspace that is about to be created.
#[derive(Debug, Args)]
pub(crate) struct Creation {
    /// The engine, if the keyspace is created; an existing one must have this engine
    #[arg(short, long, value_name = "NAME")]
    pub(crate) engine: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) modes: Modes,
}

/// What is chosen of an engine's options.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// An option of the engine, as `branching=64`; `sheaf engines` lists them. More than once for more
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = parse_option)]
    pub(crate) options: Vec<(String, u64)>,
}

/// Arguments of the verbs that report on the whole database.
#[derive(Debug, Args)]
pub(crate) struct Report {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_visible_verb_has_an_example() {
        for verb in Cli::command().get_subcommands().filter(|v| !v.is_hide_set()) {
            let help = verb.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("sheaf {}", verb.get_name())), "{}", verb.get_name());
        }
    }
}
