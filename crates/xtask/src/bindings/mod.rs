//! # Bindings: builds libraries for other languages, and tests them from outside
//!
//! `c`: the library `libsheaf`, its header, its examples and tests. `leveldb`: the library
//! `libleveldb_sheaf` and LevelDB's own test. Compiled programs are in `target/bindings`.

mod c;
mod gets;
mod install;
mod leveldb;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{cargo, project_root, step, target};

/// Words of the command line.
struct Words {
    profile: String,
    update: bool,
    skip_leveldb: bool,
    skip_header: bool,
    gets: bool,
    install: Option<PathBuf>,
}

impl Words {
    fn parse(words: &[String]) -> Result<Words, String> {
        let mut parsed = Words {
            profile: "release".to_owned(),
            update: false,
            skip_leveldb: false,
            skip_header: false,
            gets: false,
            install: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--profile" => parsed.profile.clone_from(value()?),
                "--install" => parsed.install = Some(PathBuf::from(value()?)),
                "--update" => parsed.update = true,
                "--skip-leveldb" => parsed.skip_leveldb = true,
                "--skip-header" => parsed.skip_header = true,
                "--gets" => parsed.gets = true,
                other => return Err(format!("unknown argument {other}; see `cargo xtask --help`")),
            }
        }
        Ok(parsed)
    }

    /// Returns the directory of the libraries.
    fn libraries(&self) -> PathBuf {
        target(if matches!(self.profile.as_str(), "dev" | "test") { "debug" } else { &self.profile })
    }
}

/// C compiler and the libraries that programs link.
struct Toolchain {
    compiler: String,
    libraries: PathBuf,
    output: PathBuf,
}

impl Toolchain {
    /// Returns the toolchain; the compiler is that of the variable `CC`, or `cc`.
    fn find(libraries: PathBuf) -> Result<Toolchain, String> {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        if !is_runnable(&compiler) {
            return Err(format!(
                "there is no C compiler `{compiler}`: install one (Debian: apt-get install gcc libc6-dev), \
                 or set the variable CC"
            ));
        }
        let output = target("bindings");
        std::fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        Ok(Toolchain { compiler, libraries, output })
    }

    /// Returns the start of a call of the compiler, with `flags`.
    fn compile(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(["-std=c11", "-g", "-O1"]).args(flags);
        command
    }

    /// Adds a shared library of the build.
    fn link(&self, command: &mut Command, library: &str) {
        command.arg("-L").arg(&self.libraries).arg(format!("-l{library}")).arg("-pthread");
        command.arg(format!("-Wl,-rpath,{}", self.libraries.display()));
    }

    /// Returns an empty directory for the files of a program.
    fn scratch(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.output.join("data").join(name);
        let _ = std::fs::remove_dir_all(&path); // of an earlier run
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}

fn is_runnable(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Builds the bindings and runs their tests.
///
/// # Errors
///
/// Returns a text if a tool is missing, or if a build or a test fails.
pub(crate) fn bindings(words: &[String]) -> Result<(), String> {
    let words = Words::parse(words)?;
    let toolchain = Toolchain::find(words.libraries())?;
    let mut header = cargo(&["test", "--locked", "-p", "sheaf-ffi", "--test", "header"]);
    if words.update {
        header.env("SHEAF_UPDATE_HEADER", "1");
        return step(header);
    }
    let mut build = cargo(&["build", "--locked", "--profile", &words.profile]);
    build.args(["-p", "sheaf-ffi", "-p", "sheaf-ffi-leveldb"]);
    if words.profile == "test" {
        // With these packages cargo chooses the features of the tests, and builds no crate again.
        build.args(["-p", "sheaf-testkit", "-p", "sheaf-cli"]);
    }
    step(build)?;
    if let Some(prefix) = &words.install {
        return install::install(&toolchain.libraries, prefix);
    }
    if words.gets {
        return gets::compare(&toolchain, &words.profile);
    }
    if !words.skip_header {
        step(header)?;
    }
    c::check_guide(&project_root())?;
    c::test(&toolchain)?;
    install::test(&toolchain)?;
    if words.skip_leveldb {
        return Ok(());
    }
    leveldb::test(&toolchain)
}
