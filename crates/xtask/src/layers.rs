//! # Layers gate: folders of the store that import only folders below them
//!
//! Between crates the compiler enforces the layers of ARCHITECTURE.md. Within the store this gate
//! counts the imports that point upwards, and compares their number with a fixed limit.
//!
//! ## Invariants
//!
//! 1. [`STORE_LAYERS`] has every module of the store, from the lowest to the highest one.
//! 2. At most [`UPWARD_IMPORTS`] lines import a module from a higher layer.
//!
//! ## Blind spots
//!
//! Paths in code that no `use` names, and imports from `lib.rs`, which re-exports types of all
//! layers.

use crate::prose;
use crate::source;

/// Modules of the store, from the lowest to the highest one.
const STORE_LAYERS: [&str; 15] = [
    "directory",
    "expiry",
    "commit",
    "backup",
    "keyspace",
    "pass",
    "space",
    "changes",
    "checkpoint",
    "health",
    "maintenance",
    "recovery",
    "repair",
    "snapshot",
    "stats",
];
/// Maximum number of imports that point upwards.
const UPWARD_IMPORTS: usize = 8;
/// Sources of the store.
const STORE: &str = "crates/store/src/";

/// Checks the imports of the store. `--list` prints those that point upwards.
///
/// # Errors
///
/// Returns a module without a layer, the imports above the limit, or an unknown argument.
pub(crate) fn layers(words: &[String]) -> Result<(), String> {
    let is_list = match words {
        [] => false,
        [word] if word == "--list" => true,
        _ => return Err("usage: cargo xtask layers [--list]".to_owned()),
    };
    let mut upward = Vec::new();
    for (path, text) in prose::rust_files(|path| path.starts_with(STORE))? {
        upward.extend(upward_imports(&path[STORE.len()..], &text)?);
    }
    if is_list {
        upward.iter().for_each(|import| println!("{import}"));
    }
    if upward.len() <= UPWARD_IMPORTS {
        return Ok(());
    }
    let found = upward.len();
    Err(format!("{}\n{found} imports point upwards, at most {UPWARD_IMPORTS}", upward.join("\n")))
}

/// Returns the layer of a module.
fn layer(module: &str) -> Option<usize> {
    STORE_LAYERS.iter().position(|name| *name == module)
}

/// Returns the imports of a file from higher layers, in the form `path:line module`.
///
/// # Errors
///
/// Returns the path if its module has no layer.
fn upward_imports(path: &str, text: &str) -> Result<Vec<String>, String> {
    let module = path.split(['/', '.']).next().unwrap_or(path);
    if module == "lib" {
        return Ok(Vec::new());
    }
    let Some(own) = layer(module) else {
        return Err(format!("{STORE}{path}: the module has no layer in crates/xtask/src/layers.rs"));
    };
    let code = source::read(text).code;
    let imported = code.iter().enumerate().filter_map(|(index, line)| {
        let path = line.trim_start().strip_prefix("pub(crate) ").unwrap_or(line.trim_start());
        let rest = path.strip_prefix("use crate::")?;
        Some((
            index + 1,
            &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())],
        ))
    });
    let is_above = |(_, name): &(usize, &str)| layer(name).is_some_and(|other| other > own);
    Ok(imported.filter(is_above).map(|(line, name)| format!("{STORE}{path}:{line} {name}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_from_higher_layers_are_found() {
        let text = "use crate::directory::A;\nuse crate::recovery::close::B;\n// use crate::stats::C;\n\
                    pub(crate) use crate::repair::D;\nuse crate::Store;\n";
        let found = upward_imports("commit/mod.rs", text);
        let upward = ["crates/store/src/commit/mod.rs:2 recovery", "crates/store/src/commit/mod.rs:4 repair"];
        assert_eq!(found, Ok(upward.map(str::to_owned).to_vec()));
        assert_eq!(upward_imports("stats/mod.rs", text), Ok(Vec::new()));
        assert_eq!(upward_imports("lib.rs", text), Ok(Vec::new()));
    }

    #[test]
    fn a_module_without_a_layer_is_a_problem() {
        assert!(upward_imports("new/mod.rs", "").is_err_and(|error| error.contains("no layer")));
    }
}
