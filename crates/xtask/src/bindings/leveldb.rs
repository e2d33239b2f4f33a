//! # LevelDB's own test of its C interface, on `libleveldb_sheaf`
//!
//! The test is part of LevelDB's source, which Debian's archive has. It is fetched on the first run
//! and not copied into the project. The variable `SHEAF_LEVELDB_SOURCE` names an unpacked copy. If
//! Go is installed, the tests of its package levigo run, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Toolchain, read};
use crate::shell::{linked_program, output, step};

const ARCHIVE: &str = "http://deb.debian.org/debian/pool/main/l/leveldb/leveldb_1.23.orig.tar.gz";

const SHA256: &str = "9a37f8a6174f09bd622bc723b55881dc541cd50747cbd08831c2a82d620f6d76";

/// The only line that is taken out: Sheaf refuses custom comparators at the opening. The test of
/// this project, `comparator.c`, checks the refusal.
const COMPARATOR: &str = "  leveldb_options_set_comparator(options, cmp);\n";

/// Returns the directory of LevelDB's source.
fn source(toolchain: &Toolchain) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("SHEAF_LEVELDB_SOURCE") {
        return Ok(PathBuf::from(given));
    }
    let directory = toolchain.output.join("leveldb-1.23");
    if directory.join("db/c_test.c").exists() {
        return Ok(directory);
    }
    let archive = toolchain.output.join("leveldb_1.23.orig.tar.gz");
    let mut fetch = Command::new("curl");
    fetch.args(["-sSfL", "--max-time", "120", "-o"]).arg(&archive).arg(ARCHIVE);
    step(fetch).map_err(|error| format!("{error}; or set SHEAF_LEVELDB_SOURCE, or use --skip-leveldb"))?;
    let mut sum = Command::new("sha256sum");
    sum.arg(&archive);
    if !output(sum)?.1.starts_with(SHA256) {
        return Err(format!("{} has a wrong checksum", archive.display()));
    }
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).arg("-C").arg(&toolchain.output);
    step(unpack)?;
    Ok(directory)
}

/// Compiles and runs LevelDB's test without its comparator, and the test of the refusal.
pub(super) fn test(toolchain: &Toolchain) -> Result<(), String> {
    let source = source(toolchain)?;
    let include = source.join("include");
    let original = read(&source.join("db/c_test.c"))?;
    if original.matches(COMPARATOR).count() != 1 {
        return Err("c_test.c is not the expected version: it must set the comparator once".to_owned());
    }
    write_and_run(toolchain, &include, "c_test", &original.replace(COMPARATOR, ""), &[])?;
    let header = read(&include.join("leveldb/c.h"))?;
    let names = functions(&header);
    println!("\n== {} functions of leveldb/c.h", names.len());
    let table = names.iter().map(|name| format!("(void *)(size_t)&{name}")).collect::<Vec<_>>().join(",\n");
    let program = format!(
        "#include <leveldb/c.h>\nvoid *table[] = {{\n{table}\n}};\n\
         int main(void) {{ return table[0] == NULL; }}\n"
    );
    write_and_run(toolchain, &include, "all_functions", &program, &["-Wall", "-Werror"])?;
    let own = crate::shell::project_root().join("crates/ffi-leveldb/tests/comparator.c");
    write_and_run(toolchain, &include, "comparator", &read(&own)?, &["-Wall", "-Wextra", "-Werror"])?;
    test_levigo(toolchain, &include)
}

/// Module file and checksums for the tests of levigo, in their own module.
const GO_FILES: [(&str, &str); 2] = [
    ("go.mod", "module bindings\n\ngo 1.20\n\nrequire github.com/jmhodges/levigo v1.0.0\n"),
    (
        "go.sum",
        "github.com/jmhodges/levigo v1.0.0 h1:q5EC36kV79HWeTBWsod3mG11EgStG3qArTKcvlksN1U=\n\
         github.com/jmhodges/levigo v1.0.0/go.mod h1:Q6Qx+uH3RAqyK4rFQroq9RL7mdkABMcfhEI+nNuzMJQ=\n",
    ),
];

/// Runs the tests of levigo, linked with the library under the name of LevelDB's.
fn test_levigo(toolchain: &Toolchain, include: &Path) -> Result<(), String> {
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        println!("\n== Go is not installed: the tests of levigo are skipped");
        return Ok(());
    }
    let module = toolchain.scratch("levigo")?;
    let failed = |error: std::io::Error| format!("{}: {error}", module.display());
    for (name, text) in GO_FILES {
        std::fs::write(module.join(name), text).map_err(failed)?;
    }
    let library = toolchain.libraries.join("libleveldb_sheaf.so");
    std::os::unix::fs::symlink(library, module.join("libleveldb.so")).map_err(failed)?;
    let mut command = linked_program("go");
    command.args(["test", "-count=1", "github.com/jmhodges/levigo"]).current_dir(&module);
    command.env("CGO_ENABLED", "1").env("CGO_CFLAGS", format!("-I{}", include.display()));
    let (links, libraries) = (module.display(), toolchain.libraries.display());
    command.env("CGO_LDFLAGS", format!("-L{links} -Wl,-rpath,{libraries}"));
    step(command)
}

/// Returns the functions that a header declares.
fn functions(header: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    header
        .match_indices('(')
        .filter_map(|(end, _)| {
            let start = header[..end].rfind(|c| !is_name(c))? + 1;
            Some(&header[start..end])
        })
        .filter(|name| name.starts_with("leveldb_"))
        .collect()
}

/// Compiles a program, and runs it plain and with the address sanitizer.
fn write_and_run(
    toolchain: &Toolchain,
    include: &Path,
    name: &str,
    text: &str,
    flags: &[&str],
) -> Result<(), String> {
    let file = toolchain.output.join(format!("{name}.c"));
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    for (suffix, sanitizers) in [("", &[][..]), ("-sanitized", &["-fsanitize=address,undefined"][..])] {
        let program = toolchain.output.join(format!("{name}{suffix}"));
        let mut command = toolchain.compile(flags);
        command.args(sanitizers).arg("-I").arg(include).arg(&file).arg("-o").arg(&program);
        toolchain.link(&mut command, "leveldb_sheaf");
        step(command)?;
        let mut run = linked_program(&program);
        run.env("TEST_TMPDIR", toolchain.scratch("leveldb")?);
        step(run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::functions;

    #[test]
    fn functions_of_a_header_are_found_once() {
        let header = "EXPORT char* leveldb_get(leveldb_t* db,\n int n);\n\
                      /* leveldb_get() */ void f(void (*put)(int));";
        assert_eq!(functions(header).into_iter().collect::<Vec<_>>(), ["leveldb_get"]);
    }
}
