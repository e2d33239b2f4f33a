//! # `keyspaces`: lists keyspaces

use std::io::Write;

use serde_json::{Value as Json, json};
use sheaf::{Database, KeyspaceInfo, KeyspaceOverview};

use crate::args::ReportArgs;
use crate::failure::Result;
use crate::output::{CAUTION, NAME, on_stdout, stdout};
use crate::text_format::escape;
use crate::workload;

pub(crate) fn run(args: &ReportArgs) -> Result {
    let db = args.database_args.open_read_only()?;
    let mut out = stdout();
    if args.json {
        let all = db.overview().keyspaces.iter().map(describe).collect();
        writeln!(out, "{}", Json::Array(all))?;
        return Ok(out.flush()?);
    }
    let (name, caution) = (on_stdout(NAME), on_stdout(CAUTION));
    for info in db.keyspaces() {
        let mut shown = String::new();
        escape(info.name.as_bytes(), &mut shown);
        write!(out, "{name}{shown}{name:#}\t{}\t", info.engine)?;
        match keys(&db, &info)? {
            Some(keys) => write!(out, "{keys}")?,
            None => write!(out, "{caution}damaged{caution:#}")?,
        }
        match info.options.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, "\t{}", info.options)?,
        }
    }
    Ok(out.flush()?)
}

/// Returns the number of keys; `None` if the keyspace is damaged.
fn keys(db: &Database, info: &KeyspaceInfo) -> Result<Option<u64>> {
    if info.damage.is_some() {
        return Ok(None);
    }
    Ok(db.open_keyspace(&info.name)?.map(|keyspace| keyspace.len()).transpose()?)
}

/// Returns one keyspace as JSON.
pub(crate) fn describe(keyspace: &KeyspaceOverview) -> Json {
    let KeyspaceOverview { info, ordered, stats, counters, workload: load, .. } = keyspace;
    let mut object =
        json!({ "name": info.name, "id": info.id.0, "engine": info.engine, "damage": info.damage });
    object["options"] = info
        .options
        .iter()
        .map(|(name, value)| match name.strip_prefix("merge:") {
            Some(operator) => ("merge".to_owned(), json!(operator)),
            None => (name.to_owned(), json!(value)),
        })
        .collect();
    if info.damage.is_none() {
        object["ordered"] = json!(ordered);
        object["keys"] = json!(stats.keys);
        object["index_bytes"] = json!(stats.index_bytes);
        object["pinned_versions"] = json!(stats.pinned_versions);
        object["encoded_raw_bytes"] = json!(stats.encoded_raw_bytes);
        object["encoded_bytes"] = json!(stats.encoded_bytes);
        object["counters"] =
            counters.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        object["load"] = workload::as_json(load);
    }
    object
}
