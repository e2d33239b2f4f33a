//! # Command line: verbs, flags, help
//!
//! Defines the verbs, their help, and the arguments that several verbs share. The arguments of one
//! verb are defined in its module.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};
use sheaf::Permissions;

use crate::demo::Demo;
use crate::text_format::{parse_budget, parse_mode, parse_option, parse_seconds};
use crate::verbs::advise::Advise;
use crate::verbs::backup::{Backup, Restore};
use crate::verbs::call::Call;
use crate::verbs::changes::ChangesArgs;
use crate::verbs::compact::Compact;
use crate::verbs::convert::Convert;
use crate::verbs::del::Del;
use crate::verbs::drop::DropArgs;
use crate::verbs::dump::Dump;
use crate::verbs::get::Get;
use crate::verbs::load::LoadArgs;
use crate::verbs::merge::Merge;
use crate::verbs::path::PathArgs;
use crate::verbs::put::Put;
use crate::verbs::rename::RenameArgs;
use crate::verbs::repair::Repair;
use crate::verbs::scan::Scan;
use crate::verbs::serve::Serve;
use crate::verbs::top::Top;
use crate::verbs::ttl::Ttl;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the key or keyspace does not exist, or a question was answered with no
  2  the command line is wrong
  3  damage: stored bytes are not the bytes that were written
  4  any other error: no such database, database in use, disk full, not supported, ...
  128 + N  ended by signal N: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP

Ctrl-C, SIGTERM and SIGHUP stop backup, restore, repair, convert and load cleanly: they remove
their partial output, and load keeps the batches that it has committed. A second Ctrl-C stops at
once. If a process was killed, the next run names the files that it left, and the remedy.

Keys and values are arbitrary bytes. Arguments are taken literally, or as hexadecimal digits with
--hex. A key that starts with a hyphen needs `--` before it:  sheaf get my.db -- -key

Verbs that read (get path scan dump stats advise verify keyspaces) open the database read-only
and never create anything. They, and backup, convert and compact, also work while another process
of the same user has the database open.

A verb that finds the database in use waits, 5 seconds unless --wait says otherwise. Then it fails
and names the process that uses the database. Database files are created with mode 600 and
directories with mode 700, unless --mode says otherwise.

`sheaf help VERB` shows the options and examples of a verb.";

/// Sheaf, an embedded key-value database: read, write and maintain databases
#[derive(Debug, Parser)]
#[command(name = "sheaf", version = version(), styles = STYLES, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
pub(crate) struct Cli {
    /// Verb with its arguments.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Returns the text of `--version`: version, commit and formats.
pub(crate) fn version() -> String {
    let formats = sheaf::disk_formats();
    format!(
        "{} (commit {}, disk formats {} to {})",
        env!("CARGO_PKG_VERSION"),
        env!("SHEAF_COMMIT"),
        formats.start(),
        formats.end()
    )
}

/// Verbs of the command.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Set a key to a value; creates the database and the keyspace if missing
    #[command(after_long_help = "\
Examples:
  sheaf put my.db ada lovelace
  sheaf put my.db photo - < photo.jpg
  sheaf put my.db --hex 00ff 68656c6c6f
  sheaf put my.db --keyspace users --engine flat --durable ada lovelace
  sheaf put my.db --keyspace users --engine cedrus --option branching=64 ada lovelace
  sheaf put my.db --keyspace sessions --ttl 10m ada token
  sheaf put my.db --keyspace sessions --option ttl=1h ada token    every pair expires")]
    Put(Put),
    /// Let the merge operator of the keyspace compute a value; creates the keyspace if missing
    #[command(after_long_help = "\
The operator is an option of the keyspace, chosen when it is created: --option merge=NAME. The
names are add, append, min, max, or (bits) and union (sets). `sheaf convert --option merge=NAME`
changes it. OPERAND is bytes; for `add`, and with --integer, it is an integer of 64 bits, which
`sheaf get --integer` prints. If the operator refuses OPERAND, nothing is written.

Examples:
  sheaf merge my.db --keyspace counters --option merge=add logins 1
  sheaf merge my.db --keyspace counters logins -2
  sheaf get my.db --keyspace counters --integer logins
  sheaf merge my.db --keyspace records --option merge=max --integer latency 250
  sheaf merge my.db --keyspace log --option merge=append today 'started;'")]
    Merge(Merge),
    /// Print the value of a key
    #[command(after_long_help = "\
A pipe or a file gets the exact bytes of the value. A terminal also gets a newline, and
control bytes are shown as \\xNN; with --raw a terminal gets the exact bytes too.

Examples:
  sheaf get my.db ada
  sheaf get my.db photo > photo.jpg
  sheaf get my.db --json ada          {\"key\":\"ada\",\"value\":\"lovelace\"}
  sheaf get my.db --keyspace counters --integer logins
  sheaf get my.db ada > /dev/null && echo exists")]
    Get(Get),
    /// Print the path of the file that contains the value of a key
    #[command(after_long_help = "\
Only a large value has a file of its own, which contains nothing else: with the engine `delsm`
usually a value above 8 KiB, with the other engines a value above 4 MiB. Do not change the file.
Later writes to the database may rename or delete it. Exit code 1 if the key does not exist or
its value has no file of its own.

Example:
  file \"$(sheaf path my.db --keyspace photos cat)\"")]
    Path(PathArgs),
    /// Print the seconds for which a key still exists, or `never`
    #[command(after_long_help = "\
Pairs can expire in a keyspace that was created with expiry, by `put --ttl` or `--option
expiry=on`; in another one the answer is `never`. Exit code 1 if the key does not exist or has
expired.

Examples:
  sheaf ttl my.db --keyspace sessions ada         599.213
  sheaf ttl my.db --keyspace sessions --json ada")]
    Ttl(Ttl),
    /// Remove keys, or a range of keys, in one commit
    #[command(after_long_help = "\
Exit code 1 if one of the keys does not exist; the others are removed nevertheless. --from and --to
remove a range of any size at once; they need an engine that keeps keys in order.

Examples:
  sheaf del my.db ada
  sheaf del my.db --keyspace users ada alan grace
  sheaf del my.db --keyspace log --from 2024-01 --to 2024-02")]
    Del(Del),
    /// List pairs of keys and values
    #[command(after_long_help = "\
Each line is key, TAB, value, with the escapes of `sheaf dump`. With --hex both are hexadecimal
digits. With --json each line is an object {\"key\":..,\"value\":..}, in which bytes that are not
UTF-8 appear as {\"hex\":\"..\"}.

--from, --to, --prefix and --reverse need an engine that keeps keys in order. The engines `flat`
and `cedrus` do not: they list every pair once, in no particular order, and these options are an
error.

Examples:
  sheaf scan my.db --limit 10
  sheaf scan my.db --prefix user: --json
  sheaf scan my.db --from a --to b --reverse")]
    Scan(Scan),
    /// Load pairs from a file or stdin; creates the database and the keyspace if missing
    #[command(after_long_help = "\
Each line is key, TAB, value, with the escapes of `sheaf dump`: \\t \\n \\r \\\\ and \\xNN.
With --lines the file is plain text without escapes: each line becomes a value, and its key is
its line number as ten decimal digits (0000000001, 0000000002, ...), so that the keys sort in
the order of the lines.

Pairs are committed in batches of up to 1,000. A malformed line stops the load with its line
number: earlier batches stay, and nothing of its own batch or after it is loaded. Loading the
same file again is harmless. A key has at most 65,535 bytes and a value at most 4 GiB - 1. Memory
holds at most one MiB of a longer value.

The last line of a dump contains the number of lines and their checksum: a dump that was cut off
or changed is an error. Without --sorted the batches before the error stay. Files of other tools have no such line. If their last line has no
newline, it is loaded, with a warning on stderr; with --replace nothing is replaced.

With --sorted the keys must ascend, as in a dump of an ordered engine. The load is atomic: all
pairs become visible at once at the end, or none. The engines flex and delsm write such a load
to their own files without the journal, which takes less time and about half of the writes. The
keyspace must be empty, unless --replace replaces its content with the file, or --keep keeps its
pairs and adds those of the file. With --keep a pair of the file replaces the one with its key,
and all pairs of the keyspace are written again: for less than 64 MiB of pairs, load without
--sorted.

Examples:
  sheaf load my.db pairs.tsv
  sheaf load my.db --sorted --replace pairs.tsv
  sheaf load my.db --sorted --keep more.tsv
  sheaf load my.db --lines /usr/share/dict/words
  sheaf dump old.db | sheaf load new.db -")]
    Load(LoadArgs),
    /// Print all pairs of a keyspace in the text format that `load` reads
    #[command(after_long_help = "\
Each line is key, TAB, value. Within them TAB, newline, carriage return and backslash are
written \\t \\n \\r \\\\, other control bytes and bytes that are not UTF-8 as \\xNN. Any bytes
survive dump and load. Use it to move data between engines and between format versions. The
format is specified in docs/format/dump.md. All pairs are of one snapshot.

The first line identifies a dump. The last one contains the number of lines and their checksum.
A truncated dump is an error of `load`: without --sorted, the batches of up to 1,000 pairs before
the end stay; with --sorted nothing is loaded. --plain leaves out both lines.

Damage stops a dump with exit code 3. With --skip-damaged the dump continues after each damaged
place, lists these places on stderr, and ends with exit code 3. `sheaf repair` may save more.

Examples:
  sheaf dump my.db > my.tsv
  sheaf dump my.db --keyspace users | sheaf load other.db --keyspace users -
  sheaf dump my.db --plain | grep error | cut -f1
  sheaf dump my.db --skip-damaged > saved.tsv 2> lost.txt")]
    Dump(Dump),
    /// Show statistics: keyspaces, logs, memory, recovery at the last open
    #[command(after_long_help = "\
The log `journal` serves the engines `flex` and `delsm`. The store log (`flat` in JSON) contains the
data of `flat`, `flat-ordered`, `cedrus` and `kreon`. The load of a keyspace is shown after some
thousand operations: one in 64 is measured.

Example:
  sheaf stats my.db --json | jq .memory")]
    Stats(ReportArgs),
    /// Show live statistics of a database that another process has open
    #[command(after_long_help = "\
Rates are those of the last interval. Ends with Ctrl-C, or when the database is closed.

Examples:
  sheaf top my.db
  sheaf top my.db --interval 5
  sheaf top my.db --once --json | jq .held_bytes")]
    Top(Top),
    /// Recommend an engine for the workload of each keyspace
    #[command(after_long_help = "\
A database records workload statistics of each keyspace: kinds of operations, sizes, skew. From
these and from measured costs of each engine, this verb predicts the cost of an operation with
each engine. With --replay it also measures: it runs the same mix, with generated keys and
values, on a scratch database of each engine.

Examples:
  sheaf advise my.db
  sheaf advise my.db --keyspace words --memory 256MiB
  sheaf advise my.db --replay --seconds 5 --tmp /mnt/disk")]
    Advise(Advise),
    /// Print the changes that a database retains, in commit order
    #[command(after_long_help = "\
Each change is a line: its kind, the keyspace, and for `put` the key, the value and the time of
expiry, if there is one, for `removed` and `expired` the key, for `range-removed` the first key and
the end, if there is one, for `created`, `loaded` and `converted` the engine, for `cleared` and
`dropped` nothing more. The fields are separated by TAB and have the escapes of `sheaf dump`. After
the changes of a commit follows a line `commit` with the position; --from continues there. With
--json each commit is an object {\"position\":..,\"changes\":[..]}.

The program that owns the database must have opened it with `retain_changes`. While a process has
the database open, that process sends the changes, and --follow waits for further commits. They
are printed when they are on the device, after about 100 ms. The verb then ends when it is
interrupted, or when the owner closes the database. A reader of the output that pauses for 30
seconds makes the owner end the connection.

Examples:
  sheaf changes my.db --limit 10
  sheaf changes my.db --follow
  sheaf changes my.db --keyspace users --prefix user: --json
  sheaf changes my.db --from 6a0f0e5c3f0d4b6e9d6b1f2a3c4d5e6f-1234")]
    Changes(ChangesArgs),
    /// Read all data, check every checksum, and report damage by file, offset and keyspace
    #[command(after_long_help = "\
Prints one line for each damaged place. Exit code 3 if there is any. The pairs of a keyspace are
counted only up to its first damaged pair.

Example:
  sheaf verify my.db; test $? -eq 3 && sheaf restore /backup/monday again.db")]
    Verify(ReportArgs),
    /// List keyspaces
    #[command(after_long_help = "\
Each line is name, engine and number of keys, separated by TABs, and the engine options that
were set, if any.

Example:
  sheaf keyspaces my.db | cut -f1")]
    Keyspaces(ReportArgs),
    /// List engines and their options
    #[command(after_long_help = "\
Options are set with --option when a keyspace is created, are stored with it, and are changed
by `sheaf convert`. For each option the list shows its values, its default and its effect.

Example:
  sheaf engines")]
    Engines,
    /// Copy the database, consistent across all keyspaces, into a new directory
    #[command(after_long_help = "\
The copy is a snapshot. It is read back from the device and compared, unless --no-verify is
given, and becomes a valid backup only after that. If anything fails, the partial copy is
removed. A backup cannot be opened: `sheaf restore` makes a database of it. If another process
has the database open, that process makes the copy and continues to work. Damaged pairs are
copied as they are: `sheaf verify` finds them. A keyspace that cannot be opened because of damage
makes the backup fail; drop or repair it first.

With --base, files that an earlier backup on the same file system already contains are
hard-linked and take no space, but are read and checked. Either backup may be removed later.

While there are commits, a backup pauses so that they keep about three quarters of their earlier
rate; it pauses for at most twice the time that it works. --rate limits the bytes per second
instead, and `--rate full` does not pause.

Examples:
  sheaf backup my.db /backup/monday
  sheaf backup my.db /backup/tuesday --base /backup/monday
  sheaf backup my.db /backup/friday --json")]
    Backup(Backup),
    /// Create a database from a backup
    #[command(after_long_help = "\
Every byte is checked against the checksums that the backup contains. A backup that is damaged or
incomplete is refused with the name of the file, and the partial database is removed. The backup
is not changed. `sheaf repair` salvages the intact data of a damaged backup.

Example:
  sheaf restore /backup/monday my.db")]
    Restore(Restore),
    /// Salvage the intact data of a damaged database or backup into a new database
    #[command(after_long_help = "\
The damaged database or backup is only read. Of a backup, a copy is made next to NEW and removed
at the end. A pair is certain, and is written to the new database, if
intact data proves that it is the newest version of its key. A pair is doubtful if its bytes are
intact, but a damaged place may contain a newer version or a removal. Doubtful pairs are listed,
and written only with --keep-doubtful. A pair is lost if it exists and cannot be read. It is
listed as lost with its key, if the key is known. For `flat`, `flat-ordered` and `cedrus` only the
unreadable record has it: such pairs are counted by file, as unnamed. For engines with ordered
keys the list also has each gap: two keys with unreadable ones in between. Every damaged place that
the repair found is listed as damage, also if nothing is lost by it.

The list is printed to stdout, or written to the file of --report. Keys are escaped as in `sheaf dump`.
Exit code 0 if nothing is lost or doubtful, 3 otherwise.

Examples:
  sheaf repair my.db new.db
  sheaf repair my.db new.db --keep-doubtful --report lost.txt")]
    Repair(Repair),
    /// Compact a keyspace: reclaim disk space and sort its records by key
    #[command(after_long_help = "\
Does all maintenance of the keyspace now. `flat-ordered` and `kreon` store records in order of
arrival, so a scan reads at random positions. For these engines compact also rewrites the records
that are out of order, in the order of their keys. That needs as much extra disk space as the
space limit allows. Compact can be interrupted at any time; work that is done is kept.

Example:
  sheaf compact my.db --keyspace words")]
    Compact(Compact),
    /// Change the engine of a keyspace, or the options of its engine
    #[command(after_long_help = "\
Copies the keyspace and then replaces it with the copy atomically: after an interruption at any
time, the keyspace is complete, in its old form or in the new one. The disk must have room for
both. --dry-run prints the space and the time needed and changes nothing. (It measures the time
with a sample of pairs in a scratch database next to this one.)

Examples:
  sheaf convert my.db --keyspace words --to flat --dry-run
  sheaf convert my.db --keyspace words --to flat
  sheaf convert my.db --keyspace words --to cedrus --option branching=64
  sheaf convert my.db --keyspace words --to flex --option compression=lz4")]
    Convert(Convert),
    /// Delete a keyspace with all its pairs
    #[command(after_long_help = "\
Asks for confirmation if stdin is a terminal. Otherwise --yes is required.

Example:
  sheaf drop my.db users --yes")]
    Drop(DropArgs),
    /// Give a keyspace another name
    #[command(after_long_help = "\
All pairs and options stay. It takes one commit, whatever the size of the keyspace.

Example:
  sheaf rename my.db users members")]
    Rename(RenameArgs),
    /// Serve the database to other processes until Ctrl-C or SIGTERM
    #[command(after_long_help = "\
An ADDRESS with a slash is the path of a Unix socket, through which processes of the same user
use shared memory. HOST:PORT or PORT is TCP. A PORT alone listens on loopback only. --flatrpc can
be given more than once.

TCP needs --token-file. With --insecure it is served without a token to every process that can
reach the address. Replies to wrong tokens are delayed, and their number is reported on stderr.
There is no encryption, not even of the token: use a tunnel between machines.

Creates the database if it does not exist. While it is served, no other process can open it for
writing: use `sheaf call`, or the crate sheaf-client. Verbs that read, and backup, convert and
compact, still work.

Examples:
  sheaf serve my.db --flatrpc /tmp/my.sock
  sheaf serve my.db --flatrpc /tmp/my.sock --flatrpc 7421 --token-file token.txt --workers 4
  sheaf serve my.db --flatrpc 0.0.0.0:7421 --token-file token.txt")]
    Serve(Serve),
    /// Send a request to a database that another process serves
    #[command(after_long_help = "\
A value of `-` is read from stdin. A pair must fit into one message, which has at most 4 MiB;
larger values can be written and read only without the server.

Examples:
  sheaf call /tmp/my.sock put ada lovelace
  sheaf call /tmp/my.sock put photo - < photo.jpg
  sheaf call /tmp/my.sock get ada
  sheaf call 7421 --token-file token.txt --keyspace words scan --limit 3
  sheaf call host:7421 --token-file token.txt ping")]
    Call(Call),
    /// Demonstrate loads, queries, batches, snapshots and the recovery after a kill
    #[command(after_long_help = "\
Works in a temporary directory, which is removed at the end. Loads FILE; without FILE it loads
the sources of the checkout around the current directory, or else a text of its own.

Examples:
  sheaf demo
  sheaf demo /usr/share/dict/words
  sheaf demo --dir /mnt/disk/demo")]
    Demo(Demo),
    /// Print the completions of the command line for a shell
    #[command(hide = true)]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a directory, which must exist
    #[command(hide = true)]
    Manuals {
        /// Directory
        dir: PathBuf,
    },
    /// Writer process that `demo` kills
    #[command(hide = true)]
    DemoWriter {
        /// Database of the demo.
        database: PathBuf,
    },
}

/// Time to wait for other processes.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Seconds to wait while another process uses the database; 0 does not wait. The time starts
    /// again when another process takes over the database, up to twelve times in total
    #[arg(long = "wait", value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(crate) time: Duration,
}

/// Permissions of the files and directories of a new database.
#[derive(Debug, Args)]
pub(crate) struct NewDatabaseModeArgs {
    /// Mode of the files of a new database, as octal digits such as 640; directories also get
    /// search permission [default: 600]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<Permissions>,
}

/// Permissions of the files and directories of a copy.
#[derive(Debug, Args)]
pub(crate) struct CopyModeArgs {
    /// Mode of the files of the new database, as octal digits such as 640; directories also get
    /// search permission [default: at most the mode of the source]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<Permissions>,
}

/// Database, and the resources to use on it.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// Directory of the database
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    /// Memory budget for indexes and caches, at least 1MiB, in bytes or with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_budget)]
    pub(crate) memory: u64,
    /// Maximum number of file descriptors for files of the database; values below 16 count as 16
    /// [default: a quarter of `ulimit -n`, at most 1024]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) open_files: Option<u32>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// Keyspace of a database.
#[derive(Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// Database.
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Name of the keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

/// Durability of writes.
#[derive(Debug, Args)]
pub(crate) struct DurabilityArgs {
    /// Sync every commit to the device before continuing. Without it a commit survives the kill of
    /// the process, and a power cut once the command has ended normally
    #[arg(long)]
    pub(crate) durable: bool,
}

/// Engine of a keyspace that may be created.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Engine of the new keyspace; an existing keyspace must have this engine
    #[arg(short, long, value_name = "NAME")]
    pub(crate) engine: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: EngineOptionArgs,
    #[command(flatten)]
    pub(crate) modes: NewDatabaseModeArgs,
}

/// Engine options on the command line.
#[derive(Debug, Args)]
pub(crate) struct EngineOptionArgs {
    /// Option of a new keyspace, such as branching=64, compression=lz4, ttl=10m or merge=add; may
    /// be repeated. `sheaf engines` lists the options
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = parse_option)]
    pub(crate) options: Vec<(String, u64)>,
}

/// Arguments of verbs that report on the whole database.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
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
