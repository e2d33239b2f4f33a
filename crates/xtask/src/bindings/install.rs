//! # Installation of the C library without `cargo-c`

use std::path::Path;
use std::process::Command;

use super::{Toolchain, is_runnable};
use crate::shell::{output, project_root, step};

/// Copies the libraries, the header and the pkg-config file to `prefix`.
pub(super) fn install(libraries: &Path, prefix: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(prefix).map_err(|error| failed(prefix, error))?;
    let prefix = prefix.canonicalize().map_err(|error| failed(prefix, error))?;
    let crate_folder = project_root().join("crates/ffi");
    let files = [
        (libraries.join("libsheaf.so"), "lib/libsheaf.so"),
        (libraries.join("libsheaf.a"), "lib/libsheaf.a"),
        (libraries.join("libleveldb_sheaf.so"), "lib/libleveldb_sheaf.so"),
        (crate_folder.join("include/sheaf.h"), "include/sheaf.h"),
    ];
    for folder in ["lib/pkgconfig", "include"] {
        std::fs::create_dir_all(prefix.join(folder)).map_err(|error| failed(&prefix, error))?;
    }
    for (from, to) in &files {
        std::fs::copy(from, prefix.join(to)).map_err(|error| failed(from, error))?;
    }
    let template = crate_folder.join("sheaf.pc.in");
    let text = std::fs::read_to_string(&template).map_err(|error| failed(&template, error))?;
    let text = text
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let path = prefix.join("lib/pkgconfig/sheaf.pc");
    std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    println!("\n== installed to {}", prefix.display());
    Ok(())
}

/// Installs to a scratch directory, and compiles an example with pkg-config if there is one.
pub(super) fn test(toolchain: &Toolchain) -> Result<(), String> {
    let prefix = toolchain.scratch("prefix")?;
    install(&toolchain.libraries, &prefix)?;
    if !is_runnable("pkg-config") {
        println!("\n== pkg-config is not installed: the file sheaf.pc is not tested");
        return Ok(());
    }
    let mut query = Command::new("pkg-config");
    query.args(["--cflags", "--libs", "sheaf"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let (is_found, flags) = output(query)?;
    if !is_found {
        return Err("pkg-config does not find sheaf.pc".to_owned());
    }
    let program = toolchain.output.join("installed");
    let mut command = toolchain.compile(&["-Wall", "-Wextra", "-Werror"]);
    command.arg(project_root().join("crates/ffi/examples/first_steps.c")).arg("-o").arg(&program);
    command.args(flags.split_whitespace());
    step(command)?;
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", prefix.join("lib")).arg(toolchain.scratch("installed")?);
    step(run)
}
