//! # `compact`: the records of a keyspace in the order of its keys

use std::io::Write;

use serde_json::json;

use crate::args::Compact;
use crate::failure::Result;
use crate::notation::{many, size};
use crate::output::{Watch, spinner, stdout, time};

pub(crate) fn run(args: &Compact) -> Result {
    let watch = Watch::start();
    let (db, keyspace) = args.target.write()?;
    let bar = spinner("compact");
    let done = keyspace.compact();
    bar.finish_and_clear();
    let done = done?;
    drop(keyspace);
    db.close()?;
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", json!({ "moved": done.moved, "bytes": done.bytes, "left": done.left }))?;
    } else {
        let (moved, left) = (many(done.moved, "pair"), many(done.left, "pair"));
        writeln!(out, "{moved} moved ({}), {left} left in {}", size(done.bytes), time(watch.elapsed()))?;
    }
    Ok(out.flush()?)
}
