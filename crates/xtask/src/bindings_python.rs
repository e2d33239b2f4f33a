//! # Python bindings: build, tests and checks of types, from a clean checkout
//!
//! Everything is tested with the wheel that users install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::shell::{cargo, project_root, target};

/// Largest size of the wheel in bytes.
const MAX_WHEEL: u64 = 6 << 20;

/// Oldest supported interpreter.
const OLDEST: &str = "(3, 11)";

/// Builds the wheel, installs it in a clean virtual environment, runs its tests with pytest, and
/// checks the types with mypy and pyright. `PYTHON` names the interpreter; default: `python3`.
/// `--quick` tests a wheel of the profile `dev`, and does not check types.
///
/// # Errors
///
/// Returns a text that names the command that failed, or a wheel that is too large.
pub(crate) fn bindings_python(words: &[String]) -> Result<(), String> {
    let is_quick = match words {
        [] => false,
        [flag] if flag == "--quick" => true,
        _ => return Err("usage: cargo xtask bindings-python [--quick]".to_owned()),
    };
    let python = interpreter();
    run(&mut version_check(&python))?;
    test(&python, is_quick)
}

/// Runs the quick tests. On a machine without a suitable Python, prints that they did not run.
///
/// # Errors
///
/// Returns a text if the build or a test fails.
pub(crate) fn bindings_python_in_ci() -> Result<(), String> {
    let began = Instant::now();
    println!("\n== bindings-python --quick");
    let python = interpreter();
    let mut modules = Command::new(&python);
    modules.args(["-c", "import ensurepip, venv"]);
    for (mut command, missing) in
        [(version_check(&python), "Python 3.11 or later"), (modules, "the modules venv and ensurepip")]
    {
        if !command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            println!(
                "== NOT TESTED: {python} lacks {missing} (Debian: apt-get install python3 python3-venv); \
                 the variable PYTHON names another interpreter"
            );
            return Ok(());
        }
    }
    test(&python, true)?;
    println!("== done in {} s", began.elapsed().as_secs());
    Ok(())
}

fn interpreter() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// Returns a command that fails if the interpreter is too old.
fn version_check(python: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", &format!("import sys; sys.exit(sys.version_info < {OLDEST})")]);
    command
}

fn test(python: &str, is_quick: bool) -> Result<(), String> {
    let (home, work) = (project_root().join("bindings/python"), target("python"));
    let manifest = home.join("Cargo.toml");
    let cargo_build = target("python-build");
    // The quick tests build once: clippy would check all dependencies again.
    let checks = [&["fmt", "--check"][..], &["clippy", "--locked", "--", "-D", "warnings"]];
    for words in &checks[..if is_quick { 1 } else { 2 }] {
        let (verb, rest) = words.split_first().ok_or("no words")?;
        let mut check = cargo(&[verb, "--manifest-path"]);
        run(check.arg(&manifest).args(rest).env("CARGO_TARGET_DIR", &cargo_build))?;
    }
    let tools = environment(python, &work.join("tools"))?;
    pip(&tools, &["maturin>=1.8,<2", "pytest>=8", "hypothesis>=6"])?;
    let wheels = work.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    }
    let mut build = Command::new(tools.join("bin/maturin"));
    let profile = if is_quick { "dev" } else { "release" };
    build.args(["build", "--profile", profile, "--locked", "--interpreter"]).arg(tools.join("bin/python"));
    if is_quick {
        // Optimization and debug information take longer than the tests.
        build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    run(build.arg("--out").arg(&wheels).env("CARGO_TARGET_DIR", &cargo_build).current_dir(&home))?;
    let wheel = built_wheel(&wheels, is_quick)?;

    let clean = environment(python, &work.join("clean"))?;
    for place in [&clean, &tools] {
        let mut install = Command::new(place.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-index", "--force-reinstall"]);
        run(install.arg(&wheel))?;
    }
    run(Command::new(clean.join("bin/python")).args(["-c", "import sheaf; print(sheaf.engines())"]))?;
    run(Command::new(tools.join("bin/python")).args(["-m", "pytest", "-q", "tests"]).current_dir(&home))?;
    if is_quick {
        return Ok(());
    }
    pip(&tools, &["mypy>=1.11", "pyright>=1.1.380"])?;
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

/// Returns the only wheel in `directory`. That of a release must not be larger than [`MAX_WHEEL`].
fn built_wheel(directory: &Path, is_quick: bool) -> Result<PathBuf, String> {
    let told = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut entries = fs::read_dir(directory).map_err(told)?;
    let wheel = entries.next().ok_or_else(|| format!("no wheel in {}", directory.display()))?;
    let wheel = wheel.map_err(told)?;
    let size = wheel.metadata().map_err(told)?.len();
    println!("{}: {size} bytes", wheel.path().display());
    if size > MAX_WHEEL && !is_quick {
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
