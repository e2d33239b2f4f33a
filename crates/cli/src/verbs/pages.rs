//! # `completions` and `manuals`: files for an installation, from the definition of the verbs
//!
//! Hidden verbs, for packagers (docs/guide/command-line.md).

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Failure, Result};
use crate::output::stdout;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sheaf", &mut script);
    let mut out = stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// Writes `sheaf.1`, and one page for each visible verb.
pub(crate) fn manuals(dir: &Path) -> Result {
    clap_mangen::generate_to(Cli::command(), dir).map_err(Failure::stream("write manuals to", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_verb_has_a_manual_and_completions_of_every_shell() {
        let dir = tempfile::tempdir().unwrap();
        manuals(dir.path()).unwrap();
        let mut bash = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "sheaf", &mut bash);
        let bash = String::from_utf8(bash).unwrap();
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = verb.get_name();
            assert!(dir.path().join(format!("sheaf-{name}.1")).is_file(), "{name}");
            assert!(bash.contains(name), "{name}");
        }
        assert!(dir.path().join("sheaf.1").is_file());
    }
}
