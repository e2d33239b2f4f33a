//! # Release: everything that a release does, except the upload
//!
//! `docs/release.md` has the checklist. The packages and their order come from the workspace.

use std::fs;
use std::process::Command;

use crate::shell::{cargo, output, project_root, step, target};

/// Directory of the golden databases that a release renames to its version.
const UNRELEASED: &str = "crates/testkit/tests/golden/unreleased";

/// Makes and verifies all packages. `--no-verify` skips the build of each package by itself.
///
/// # Errors
///
/// Returns a text without `--dry-run`, if the working tree has changes, or if a step fails.
pub(crate) fn release(words: &[String]) -> Result<(), String> {
    let has = |flag: &str| words.iter().any(|word| word == flag);
    if !has("--dry-run") || words.iter().any(|word| word != "--dry-run" && word != "--no-verify") {
        return Err("release takes --dry-run [--no-verify]; docs/release.md has the upload".to_owned());
    }
    check_clean()?;
    check_links("README.md", &read("README.md")?)?;
    let version = workspace_version(&read("Cargo.toml")?)?;
    let packages = publishable()?;
    packages.iter().try_for_each(|(name, folder)| check_files(name, folder))?;
    let packages: Vec<String> = packages.into_iter().map(|(name, _)| name).collect();
    println!("release {version} of {} packages: {}", packages.len(), packages.join(" "));
    for open in open_points(&version)? {
        println!("before the release: {open}");
    }
    let mut words = vec!["package", "--locked"];
    packages.iter().for_each(|package| words.extend(["-p", package]));
    if has("--no-verify") {
        words.push("--no-verify");
    }
    let mut package = cargo(&words);
    // Debug information and optimization change nothing that a build could find.
    package.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", target("release-check"));
    step(package)?;
    println!("the packages are in {}", target("release-check").join("package").display());
    Ok(())
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(project_root().join(path)).map_err(|error| format!("{path}: {error}"))
}

fn check_clean() -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["status", "--porcelain"]).current_dir(project_root());
    match output(git)? {
        (true, changes) if changes.is_empty() => Ok(()),
        (true, changes) => Err(format!("the working tree has changes:\n{changes}")),
        (false, _) => Err("git status failed".to_owned()),
    }
}

/// Returns the version of the workspace.
fn workspace_version(manifest: &str) -> Result<String, String> {
    let section = manifest.split("[workspace.package]").nth(1).unwrap_or_default();
    let line = section.lines().find_map(|line| line.strip_prefix("version = \""));
    line.map(|rest| rest.trim_end_matches('"').to_owned()).ok_or_else(|| "no version".to_owned())
}

/// Checks that the package has the texts of both licences, which each copy must contain.
fn check_files(name: &str, folder: &str) -> Result<(), String> {
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if read(&format!("{folder}/{licence}"))? != read(licence)? {
            return Err(format!("{name}: {folder}/{licence} must be a link to {licence}"));
        }
    }
    Ok(())
}

/// Checks that the files exist to which a page of the root links. Cargo's registry shows the page,
/// with links into the repository.
fn check_links(page: &str, text: &str) -> Result<(), String> {
    for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        let is_local = !link.is_empty() && !link.contains("://");
        if is_local && !project_root().join(link).exists() {
            return Err(format!("{page} links to {link}, which does not exist"));
        }
    }
    Ok(())
}

/// Returns the names of the packages that are published, each with its folder.
fn publishable() -> Result<Vec<(String, String)>, String> {
    let manifest = read("Cargo.toml")?;
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let mut names = Vec::new();
    for member in list.unwrap_or_default().split(',') {
        let folder = member.trim().trim_matches('"');
        let manifest = read(&format!("{folder}/Cargo.toml"))?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""));
        if let Some(name) = name.filter(|_| !manifest.contains("\npublish = false")) {
            names.push((name.trim_end_matches('"').to_owned(), folder.to_owned()));
        }
    }
    Ok(names)
}

/// Returns the points of the checklist that are not done.
fn open_points(version: &str) -> Result<Vec<String>, String> {
    let mut open = Vec::new();
    if !read("CHANGELOG.md")?
        .lines()
        .any(|line| line.starts_with("## ") && line.contains(version) && !line.contains("Unreleased"))
    {
        open.push(format!("CHANGELOG.md needs a section for {version}"));
    }
    if project_root().join(UNRELEASED).exists() {
        open.push(format!("rename {UNRELEASED} to {version}"));
    }
    if !read("Cargo.toml")?.contains("\nrepository = ") {
        open.push("Cargo.toml needs the address of the repository".to_owned());
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_packages_are_those_without_publish_false() {
        let packages = publishable().unwrap();
        let has = |name: &&str| packages.iter().any(|package| package.0 == **name);
        assert!(["sheaf-db", "sheaf-cli", "sheaf-platform"].iter().all(has));
        assert!(!["xtask", "sheaf-testkit"].iter().any(has));
        packages.iter().for_each(|(name, folder)| check_files(name, folder).unwrap());
        check_files("xtask", "crates/xtask").unwrap_err();
        assert!(!workspace_version(&read("Cargo.toml").unwrap()).unwrap().is_empty());
    }

    #[test]
    fn links_of_a_page_refer_to_files() {
        check_links("README.md", &read("README.md").unwrap()).unwrap();
        check_links("page", "[a](docs/release.md#versions) [b](https://docs.rs/x) [c](#here)").unwrap();
        let refused = check_links("page", "[a](docs/none.md)").unwrap_err();
        assert!(refused.contains("docs/none.md"), "{refused}");
    }
}
