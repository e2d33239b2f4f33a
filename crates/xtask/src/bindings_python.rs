//! # Python bindings: build, tests and checks of types, from a clean checkout
//!
//! Everything is tested with the wheel that users install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{cargo, project_root, target};

/// Largest size of the wheel in bytes.
const MAX_WHEEL: u64 = 6 << 20;

/// Oldest supported interpreter.
const OLDEST: &str = "(3, 11)";

/// Builds the wheel, installs it in a clean virtual environment, runs its tests with pytest, and
/// checks the types with mypy and pyright. `PYTHON` names the interpreter; default: `python3`.
///
/// # Errors
///
/// Returns a text that names the command that failed, or a wheel that is too large.
pub(crate) fn bindings_python(words: &[String]) -> Result<(), String> {
    if !words.is_empty() {
        return Err("usage: cargo xtask bindings-python".to_owned());
    }
    let (home, work) = (project_root().join("bindings/python"), target("python"));
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let version = format!("import sys; sys.exit(sys.version_info < {OLDEST})");
    run(Command::new(&python).args(["-c", &version]))?;

    let manifest = home.join("Cargo.toml");
    let cargo_build = target("python-build");
    for words in [&["fmt", "--check"][..], &["clippy", "--locked", "--", "-D", "warnings"]] {
        let (verb, rest) = words.split_first().ok_or("no words")?;
        let mut check = cargo(&[verb, "--manifest-path"]);
        run(check.arg(&manifest).args(rest).env("CARGO_TARGET_DIR", &cargo_build))?;
    }
    let tools = environment(&python, &work.join("tools"))?;
    pip(&tools, &["maturin>=1.8,<2", "pytest>=8", "hypothesis>=6", "mypy>=1.11", "pyright>=1.1.380"])?;
    let wheels = work.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    }
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--locked", "--interpreter"]).arg(tools.join("bin/python"));
    run(build.arg("--out").arg(&wheels).env("CARGO_TARGET_DIR", &cargo_build).current_dir(&home))?;
    let wheel = built_wheel(&wheels)?;

    let clean = environment(&python, &work.join("clean"))?;
    for place in [&clean, &tools] {
        let mut install = Command::new(place.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-index", "--force-reinstall"]);
        run(install.arg(&wheel))?;
    }
    run(Command::new(clean.join("bin/python")).args(["-c", "import sheaf; print(sheaf.engines())"]))?;
    run(Command::new(tools.join("bin/python")).args(["-m", "pytest", "-q", "tests"]).current_dir(&home))?;
    run(Command::new(tools.join("bin/mypy")).args(["python/sheaf", "tests", "benches"]).current_dir(&home))?;
    let mut pyright = Command::new(tools.join("bin/pyright"));
    pyright.arg("--pythonpath").arg(tools.join("bin/python"));
    run(pyright.args(["python/sheaf", "tests"]).current_dir(&home))
}

/// Returns a virtual environment, which is created if it is missing.
fn environment(python: &str, path: &Path) -> Result<PathBuf, String> {
    if !path.join("bin/python").exists() {
        run(Command::new(python).args(["-m", "venv"]).arg(path))?;
    }
    Ok(path.to_path_buf())
}

fn pip(environment: &Path, packages: &[&str]) -> Result<(), String> {
    let mut install = Command::new(environment.join("bin/python"));
    run(install.args(["-m", "pip", "install", "--quiet"]).args(packages))
}

/// Returns the only wheel in `directory`, which must not be larger than [`MAX_WHEEL`].
fn built_wheel(directory: &Path) -> Result<PathBuf, String> {
    let told = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut entries = fs::read_dir(directory).map_err(told)?;
    let wheel = entries.next().ok_or_else(|| format!("no wheel in {}", directory.display()))?;
    let wheel = wheel.map_err(told)?;
    let size = wheel.metadata().map_err(told)?.len();
    println!("{}: {size} bytes", wheel.path().display());
    if size > MAX_WHEEL {
        return Err(format!("the wheel has {size} bytes: at most {MAX_WHEEL}"));
    }
    Ok(wheel.path())
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = format!("{command:?}");
    eprintln!("{program}");
    let status = command.status().map_err(|e| format!("{program}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}
