//! # C programs: examples and tests, plain, with sanitizers, and under valgrind

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Toolchain, is_runnable, read};
use crate::shell::{linked_program, project_root, step};

/// Flags of all own programs.
const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];

/// System libraries that a program needs with the static library.
const STATIC_LIBRARIES: [&str; 4] = ["-lpthread", "-lm", "-ldl", "-lgcc_s"];

/// Returns the C files in a folder of the crate, sorted.
fn sources(folder: &str) -> Result<Vec<PathBuf>, String> {
    let folder = project_root().join("crates/ffi").join(folder);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|e| e == "c")).collect();
    paths.sort();
    Ok(paths)
}

/// Compiles and runs all programs.
pub(super) fn test(toolchain: &Toolchain) -> Result<(), String> {
    let has_valgrind = is_runnable("valgrind");
    if !has_valgrind {
        println!("\n== valgrind is not installed: its runs are skipped (Debian: apt-get install valgrind)");
    }
    for source in [sources("examples")?, sources("tests/c")?].concat() {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == "gets" {
            continue; // a measurement
        }
        let plain = compile(toolchain, &source, &name, &["-O2"], false)?;
        run(toolchain, linked_program(&plain), &name)?;
        let linked = compile(toolchain, &source, &format!("{name}-static"), &["-O2"], true)?;
        run(toolchain, linked_program(&linked), &name)?;
        let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let sanitized = compile(toolchain, &source, &format!("{name}-sanitized"), &sanitizers, false)?;
        run(toolchain, linked_program(&sanitized), &name)?;
        if has_valgrind {
            let mut command = linked_program("valgrind");
            command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite"]);
            // Optimized code may test a value before the flag that makes the value valid.
            command.args(["--errors-for-leak-kinds=definite", "--fair-sched=yes", "--undef-value-errors=no"]);
            command.arg(&plain);
            run(toolchain, command, &name)?;
        }
    }
    Ok(())
}

/// Compiles a program against the shared or the static library, and returns its path.
pub(super) fn compile(
    toolchain: &Toolchain,
    source: &Path,
    name: &str,
    flags: &[&str],
    is_static: bool,
) -> Result<PathBuf, String> {
    let program = toolchain.output.join(name);
    let mut command = toolchain.compile(&WARNINGS);
    command.args(flags).arg("-I").arg(project_root().join("crates/ffi/include"));
    command.arg(source).arg("-o").arg(&program);
    if is_static {
        command.arg(toolchain.libraries.join("libsheaf.a")).args(STATIC_LIBRARIES);
    } else {
        toolchain.link(&mut command, "sheaf");
    }
    step(command)?;
    Ok(program)
}

/// Runs a program with an empty directory as its argument.
fn run(toolchain: &Toolchain, mut command: Command, name: &str) -> Result<(), String> {
    command.arg(toolchain.scratch(name)?);
    step(command)
}

/// Checks that each C block of the guide is a part of an example, so that a compiler has seen it.
pub(super) fn check_guide(root: &Path) -> Result<(), String> {
    let guide = read(&root.join("docs/guide/c.md"))?;
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let mut examples = Vec::new();
    for source in sources("examples")? {
        examples.push(lines(&read(&source)?));
    }
    for block in guide.split("```c\n").skip(1) {
        let block = lines(block.split("```").next().unwrap_or_default());
        let is_part = |example: &Vec<String>| example.windows(block.len()).any(|part| part == block);
        if !examples.iter().any(is_part) {
            return Err(format!(
                "docs/guide/c.md: this block is not part of an example:\n{}",
                block.join("\n")
            ));
        }
    }
    Ok(())
}
