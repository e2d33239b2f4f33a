//! # Field suite: builds the command and the suite, and runs the suite

use std::process::Command;

use crate::shell::{cargo, project_root, step, target};

/// Builds with the release profile; `words` are arguments of `sheaf-field`.
///
/// # Errors
///
/// Returns a text if a build fails or a figure misses its required value.
pub(crate) fn field(words: &[String]) -> Result<(), String> {
    step(cargo(&["build", "--locked", "--release", "-p", "sheaf-cli", "-p", "sheaf-field"]))?;
    step(suite("release", words))
}

/// Returns the command that runs the suite, which must be built already. The programs are in the
/// folder `profile` of the target directory.
pub(crate) fn suite(profile: &str, words: &[String]) -> Command {
    let mut command = Command::new(target(profile).join("sheaf-field"));
    command.arg("--sheaf").arg(target(profile).join("sheaf"));
    command.arg("--dir").arg(target("field")).args(words).current_dir(project_root());
    command
}
