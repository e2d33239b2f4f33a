//! # Workloads: the workload table, parsed and expanded
//!
//! `tables/workloads.toml` describes each workload in a few lines; its head explains the fields.
//! `tables/workloads-papers.toml` continues it with workloads that only papers use.
//! This module expands them to one [`Workload`] for each kind of data, share in per cent, and cap
//! on memory. `plan` adds the properties of a run: pairs, seconds, stores.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Result;
use crate::data::{DataSpec, ValueSizes};
use crate::keys::KeyLayout;
use crate::phase_spec::{KeyChoice, OperationMix};

const TABLE: &str =
    concat!(include_str!("../tables/workloads.toml"), include_str!("../tables/workloads-papers.toml"));

/// Content of a database when a workload begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InitialState {
    /// No pairs.
    Empty,
    /// All pairs; shared with other workloads, which do not remove them.
    #[default]
    Full,
    /// All pairs, in a database that no other workload uses.
    Own,
}

/// End of the process before a measured opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CloseMode {
    Closed,
    Killed,
    /// Killed, and the database's pages are dropped from the page cache before the opening.
    KilledCold,
}

/// One workload, for one kind of data and one cap.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Name in options and reports: `NAME@DATA:CAP`.
    pub(crate) name: String,
    /// Name in the table, without data and cap.
    pub(crate) base: String,
    pub(crate) group: String,
    pub(crate) about: String,
    pub(crate) data: DataKind,
    pub(crate) start: InitialState,
    pub(crate) mix: OperationMix,
    pub(crate) choice: KeyChoice,
    /// Operations as a multiple of the pairs. Without it, the phase ends by time.
    pub(crate) length: Option<f64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) threads: Vec<u64>,
    pub(crate) durable: bool,
    pub(crate) aged: f64,
    pub(crate) removed: f64,
    pub(crate) compacted: bool,
    pub(crate) space_limit: Option<f64>,
    pub(crate) cap: Option<f64>,
    /// Share of the cap that is the memory budget of the store.
    pub(crate) budget: f64,
    pub(crate) open: Option<CloseMode>,
    pub(crate) unsynced: bool,
    pub(crate) timeline: bool,
    pub(crate) quick: bool,
}

/// A kind of data, without the number of pairs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DataKind {
    pub(crate) name: String,
    pub(crate) keys: KeyLayout,
    pub(crate) values: ValueSizes,
    share: f64,
}

/// Smallest number of pairs of any data, as the generators need some.
const MIN_PAIRS: u64 = 1000;
/// Bound on the bytes of a kind of data, as a multiple of the bytes of as many UDB pairs. A kind
/// with larger pairs gets fewer of them.
const MAX_DATA_FACTOR: f64 = 4.0;

impl DataKind {
    /// Returns the data for a run of `pairs` pairs.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
    pub(crate) fn of(&self, pairs: u64) -> DataSpec {
        let mut data = DataSpec { keys: self.keys, values: self.values.clone(), pairs };
        let most = MAX_DATA_FACTOR * pairs as f64 * DataSpec::udb(1).pair_bytes() / data.pair_bytes();
        data.pairs = ((pairs as f64 * self.share).min(most) as u64).max(MIN_PAIRS);
        data
    }

    /// Returns the data for `pairs` times the share of this kind, without a bound on its bytes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
    pub(crate) fn exactly(&self, pairs: f64) -> DataSpec {
        let pairs = ((pairs * self.share) as u64).max(MIN_PAIRS);
        DataSpec { keys: self.keys, values: self.values.clone(), pairs }
    }
}

/// Returns all workloads in the order of the table.
pub(crate) fn all() -> Result<Vec<Workload>> {
    read(TABLE)
}

/// Returns the workloads that match `names`, in the order of the table. A name is that of a
/// workload, a group or a table row, or `PREFIX*`. An error lists the known names.
pub(crate) fn select(names: &[&str]) -> Result<Vec<Workload>> {
    let all = all()?;
    let mut is_meant = vec![false; all.len()];
    for name in names {
        let meant = matching(&all, name);
        if meant.is_empty() {
            return Err(unknown(name, &all).into());
        }
        meant.into_iter().for_each(|place| is_meant[place] = true);
    }
    Ok(all.iter().zip(is_meant).filter(|(_, is_meant)| *is_meant).map(|(load, _)| load.clone()).collect())
}

/// Returns the places of the workloads that match one name. With a `*` at the end, these are all
/// with that prefix. Otherwise they are the workload of that name, else the group, else the
/// workloads of that row of the table.
fn matching(all: &[Workload], name: &str) -> Vec<usize> {
    let those = |is_it: &dyn Fn(&Workload) -> bool| -> Vec<usize> {
        all.iter().enumerate().filter(|(_, load)| is_it(load)).map(|(place, _)| place).collect()
    };
    if let Some(prefix) = name.strip_suffix('*') {
        return those(&|load| load.name.starts_with(prefix));
    }
    let ways: [fn(&Workload) -> &str; 3] = [|load| &load.name, |load| &load.group, |load| &load.base];
    ways.iter()
        .map(|way| those(&|load| way(load) == name))
        .find(|meant| !meant.is_empty())
        .unwrap_or_default()
}

fn unknown(name: &str, all: &[Workload]) -> String {
    let mut known: Vec<&str> = all.iter().map(|load| &*load.base).collect();
    known.dedup();
    let mut groups: Vec<&str> = all.iter().map(|load| &*load.group).collect();
    groups.sort_unstable();
    groups.dedup();
    format!(
        "unknown workload {name:?}; there are: {}; and the groups {}; a * at the end means all that begin so",
        known.join(", "),
        groups.join(", ")
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadTable {
    data: BTreeMap<String, DataKindRow>,
    workload: Vec<WorkloadRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataKindRow {
    key: usize,
    value: String,
    #[serde(default)]
    ordered: bool,
    #[serde(default = "default_share")]
    share: f64,
}

fn default_share() -> f64 {
    1.0
}

/// A number, or the word `percent`, which means the share that is being expanded.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum RowAmount {
    Number(f64),
    Percent(PercentWord),
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PercentWord {
    Percent,
}

impl RowAmount {
    fn with(&self, percent: u64) -> f64 {
        match self {
            RowAmount::Number(number) => *number,
            RowAmount::Percent(PercentWord::Percent) => percent as f64 / 100.0,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadRow {
    name: String,
    group: String,
    about: String,
    #[serde(default = "udb")]
    data: Vec<String>,
    #[serde(default)]
    from: InitialState,
    mix: String,
    choice: KeyChoice,
    length: Option<RowAmount>,
    seconds: Option<f64>,
    #[serde(default = "two_threads")]
    threads: Vec<u64>,
    #[serde(default)]
    durable: bool,
    #[serde(default)]
    aged: f64,
    removed: Option<RowAmount>,
    #[serde(default)]
    compacted: bool,
    space_limit: Option<f64>,
    #[serde(default)]
    caps: Vec<f64>,
    budget: Option<RowAmount>,
    #[serde(default)]
    percent: Vec<u64>,
    open: Option<CloseMode>,
    #[serde(default)]
    unsynced: bool,
    #[serde(default)]
    timeline: bool,
    #[serde(default)]
    quick: bool,
}

fn udb() -> Vec<String> {
    vec!["udb".to_owned()]
}

fn two_threads() -> Vec<u64> {
    vec![2]
}

fn read(text: &str) -> Result<Vec<Workload>> {
    let table: WorkloadTable = toml::from_str(text)?;
    let mut loads = Vec::new();
    for row in &table.workload {
        if !row.caps.is_empty() && row.from == InitialState::Full {
            let why = "databases that others share have no cap: it wants from = \"own\" or \"empty\"";
            return Err(format!("{}: {why}", row.name).into());
        }
        let caps: Vec<Option<f64>> =
            if row.caps.is_empty() { vec![None] } else { row.caps.iter().copied().map(Some).collect() };
        for name in &row.data {
            let data = table.data.get(name).ok_or_else(|| format!("{}: no data {name:?}", row.name))?;
            for percent in if row.percent.is_empty() { &[0][..] } else { &row.percent } {
                for cap in &caps {
                    loads.push(unfold(row, name, data, *percent, *cap)?);
                }
            }
        }
    }
    Ok(loads)
}

fn unfold(
    row: &WorkloadRow,
    data_name: &str,
    data: &DataKindRow,
    percent: u64,
    cap: Option<f64>,
) -> Result<Workload> {
    let base = row.name.replace("{}", &percent.to_string());
    let mut name = base.clone();
    if data_name != row.data[0] {
        name += &format!("@{data_name}");
    }
    match cap {
        Some(cap) if cap > 1.0 => name += &format!(":{cap}"),
        Some(cap) => name += &format!(":1/{}", (1.0 / cap).round()),
        None => {}
    }
    let kind = DataKind {
        name: data_name.to_owned(),
        keys: KeyLayout { len: data.key, ordered: data.ordered },
        values: ValueSizes::parse(&data.value)?,
        share: data.share,
    };
    Ok(Workload {
        name,
        base,
        group: row.group.clone(),
        about: row.about.clone(),
        data: kind,
        start: row.from,
        mix: OperationMix::parse(&row.mix.replace("{}", &percent.to_string()))?,
        choice: row.choice,
        length: row.length.as_ref().map(|length| length.with(percent)),
        seconds: row.seconds,
        threads: row.threads.clone(),
        durable: row.durable,
        aged: row.aged,
        removed: row.removed.as_ref().map_or(0.0, |removed| removed.with(percent)),
        compacted: row.compacted,
        space_limit: row.space_limit,
        cap,
        budget: row.budget.as_ref().map_or(0.5, |budget| budget.with(percent)),
        open: row.open,
        unsynced: row.unsynced,
        timeline: row.timeline,
        quick: row.quick && (data_name == row.data[0]),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_table_unfolds_into_workloads_with_names_of_their_own() {
        let all = all().unwrap();
        let names: HashSet<&str> = all.iter().map(|load| &*load.name).collect();
        assert_eq!(names.len(), all.len());
        for name in [
            "fill-random",
            "fill-random@v64k",
            "mix-update-20",
            "capped-ycsb-f:1/16",
            "budget-insert:2",
            "budget-insert:1/2",
            "durable-small@k8-1k",
            "write-after-delete-90@v4k",
        ] {
            assert!(names.contains(name), "{name}");
        }
        assert!(all.iter().filter(|load| load.quick).count() <= 16, "quick must stay quick");
    }

    #[test]
    fn names_of_tables_and_groups_mean_all_of_theirs_and_unknown_ones_are_refused() {
        let ycsb = select(&["ycsb"]).unwrap();
        assert!(ycsb.len() >= 6 && ycsb.iter().all(|load| load.group == "ycsb"));
        assert_eq!(select(&["fill-random@v64k"]).unwrap().len(), 1);
        assert_eq!(select(&["fill-random"]).unwrap().len(), 1);
        assert_eq!(select(&["durable"]).unwrap().len(), 1, "a workload comes before a group of its name");
        assert!(select(&["fill-random*"]).unwrap().len() > 5);
        assert!(select(&["capped-ycsb-f"]).unwrap().len() > 3);
        let refusal = select(&["fill-all"]).unwrap_err().to_string();
        assert!(refusal.contains("fill-random") && refusal.contains("ycsb"), "{refusal}");
    }

    #[test]
    fn percent_reaches_mix_length_and_removals() {
        let load = |name| select(&[name]).unwrap().remove(0);
        assert_eq!(load("mix-update-0").mix, OperationMix::parse("get").unwrap());
        assert!((load("delete-30").length.unwrap() - 0.3).abs() < 1e-9);
        assert!((load("read-after-delete-70").removed - 0.7).abs() < 1e-9);
    }

    #[test]
    fn large_values_have_fewer_pairs() {
        let pairs = |name| select(&[name]).unwrap().remove(0).data.of(1_000_000).pairs;
        assert_eq!(pairs("get-zipf"), 1_000_000);
        assert!((9_000..10_000).contains(&pairs("get-uniform@v64k")));
    }

    #[test]
    fn a_malformed_table_is_refused() {
        let data = "[data.udb]\nkey = 27\nvalue = \"127\"\n";
        let row = "[[workload]]\nname='x'\ngroup='g'\nabout='a'\nchoice='zipf'\n";
        for (wrong, reason) in [
            ("mix='get'\ndata=['nowhere']", "no data"),
            ("mix='got'", "no operation"),
            ("mix='get'\ncolour='red'", "colour"),
            ("mix='get'\nlength='half'", "length"),
            ("mix='get'\ncaps=[0.5]", "cap"),
        ] {
            let error = read(&format!("{data}{row}{wrong}")).unwrap_err().to_string();
            assert!(error.contains(reason), "{wrong}: {error}");
        }
    }
}
