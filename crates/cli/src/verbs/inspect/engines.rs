//! # `engines`: lists engines and their options

use std::io::Write;

use crate::failure::Result;
use crate::output::{NAME, on_stdout, stdout};

pub(crate) fn run() -> Result {
    let mut out = stdout();
    let name = on_stdout(NAME);
    for engine in sheaf::engines() {
        let usual = if engine == sheaf::DEFAULT_ENGINE { " (the default)" } else { "" };
        writeln!(out, "{name}{engine}{name:#}{usual}")?;
        for option in sheaf::engine_options(engine) {
            writeln!(out, "  {option}\n      {}", option.help)?;
        }
    }
    writeln!(out, "{name}every engine{name:#}")?;
    for option in sheaf::keyspace_options() {
        writeln!(out, "  {option}\n      {}", option.help)?;
    }
    writeln!(out, "  ttl: a duration such as 250ms, 10m or 7d\n      sets expiry=on and ttl-ms")?;
    let operators = sheaf::merge_operators().join(", ");
    writeln!(
        out,
        "  merge: {operators}; default none\n      operator that `sheaf merge` applies; a program may register others"
    )?;
    Ok(out.flush()?)
}
