//! # `verify`: reads all data and reports damage by file, offset and keyspace
//!
//! Keyspaces share logs, so damage in a log has a file and an offset only. To name the affected
//! keyspaces, `verify` then reads each of them and records which reads fail. That takes a second
//! pass, and happens only if there is damage. A file of an engine or an image of an index belongs
//! to one keyspace, which its path names: damage there is named so even if every read succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::json;
use sheaf::{AttachedOwner, Database, Error, Keyspace, OpenOutcome, VerifyReport};

use crate::args::ReportArgs;
use crate::failure::{Failure, Result, combine};
use crate::output::{CAUTION, GOOD, NAME, Stopwatch, on_stdout, spinner, stdout, time};
use crate::text_format::{escape, many, size};

/// Damaged place and the keyspaces that it affects.
struct VerifyFinding {
    path: Option<PathBuf>,
    offset: Option<u64>,
    what: String,
    keyspaces: Vec<String>,
}

/// Directory of the files of engines, with a directory per keyspace, named by its number.
const ENGINE_FILES: &str = "own";
/// Directory of the images of indexes. Their names start with the number of the keyspace.
const IMAGES: &str = "images";

/// Returns the number of the keyspace that a file of the database belongs to, if it is that of one.
fn keyspace_of(database: &Path, path: &Path) -> Option<u32> {
    // The owner of a database may have opened it by another name.
    let path = path.strip_prefix(database).unwrap_or(path);
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let pairs = parts.windows(2).rev();
    let digits = pairs.filter_map(|pair| match *pair {
        [ENGINE_FILES, number] if number.len() == 8 => Some(number),
        [IMAGES, image] => image.split_once('-').map(|(number, _)| number),
        _ => None,
    });
    digits.filter_map(|digits| u32::from_str_radix(digits, 16).ok()).next()
}

impl VerifyFinding {
    fn from_error(error: Error) -> VerifyFinding {
        let what = error.text_without_place();
        let (path, offset) = match error {
            Error::Corrupt { path, offset, .. } => (Some(path), Some(offset)),
            _ => (None, None),
        };
        VerifyFinding { path, offset, what, keyspaces: Vec::new() }
    }
}

pub(crate) fn run(args: &ReportArgs) -> Result {
    let watch = Stopwatch::start();
    let bar = spinner("verify");
    let (report, findings) = match args.database_args.open_or_connect_read_only() {
        Ok(OpenOutcome::Owner(owner)) => verify_through_owner(args, owner)?,
        Ok(OpenOutcome::Database(db)) => verify_local(args, &db)?,
        // Damage that prevents the opening of the database is a finding too.
        Err(Failure::Database(error)) if error.is_corrupt() => {
            (VerifyReport::default(), vec![VerifyFinding::from_error(error)])
        }
        // The usual remedy, to create a database, is none for a check.
        Err(Failure::Database(error @ Error::DatabaseNotFound { .. })) => {
            return Err(Failure::Refused(format!("{error}; check the path")));
        }
        Err(failure) => return Err(failure),
    };
    bar.finish_and_clear();
    let verdict = match findings.len() {
        0 => Ok(()),
        damages => Err(Failure::Damage(damages as u64)),
    };
    combine(verdict, print_result(args, &report, &findings, &watch))
}

fn print_result(
    args: &ReportArgs,
    report: &VerifyReport,
    findings: &[VerifyFinding],
    watch: &Stopwatch,
) -> Result {
    let mut out = stdout();
    match args.json {
        true => print_json(&mut out, report, findings)?,
        false => print(&mut out, report, findings, watch)?,
    }
    Ok(out.flush()?)
}

fn verify_local(args: &ReportArgs, db: &Database) -> Result<(VerifyReport, Vec<VerifyFinding>)> {
    let (mut findings, mut gone) = (VerifyFindings::default(), None);
    let report = db.verify(|error| match error {
        Error::OwnerClosed { .. } => gone = Some(error), // no damage: the owner closed the database
        error => findings.add(error),
    })?;
    if let Some(gone) = gone {
        return Err(gone.into());
    }
    let hit = || Ok((damage_by_keyspace(db)?, names_of(db)));
    Ok((report, findings.with_keyspaces(&args.database_args.database, hit)?))
}

/// Verifies in the process that has the database open.
fn verify_through_owner(
    args: &ReportArgs,
    mut owner: AttachedOwner,
) -> Result<(VerifyReport, Vec<VerifyFinding>)> {
    let mut findings = VerifyFindings::default();
    let report = owner.verify(|error| findings.add(error), |_| ControlFlow::Continue(()))?;
    let hit = || {
        let known = owner.overview().map(|overview| overview.keyspaces).unwrap_or_default();
        let names = known.into_iter().map(|known| (known.info.id.0, known.info.name)).collect();
        match args.database_args.open_read_only() {
            Ok(db) => Ok((damage_by_keyspace(&db)?, names)),
            // No state of a damaged keyspace can be pinned: only paths name the affected keyspaces.
            Err(_) => Ok((BTreeMap::new(), names)),
        }
    };
    Ok((report, findings.with_keyspaces(&args.database_args.database, hit)?))
}

/// Findings without duplicates.
#[derive(Default)]
struct VerifyFindings {
    found: Vec<VerifyFinding>,
    places: BTreeSet<(Option<PathBuf>, Option<u64>)>,
}

impl VerifyFindings {
    fn add(&mut self, error: Error) {
        let finding = VerifyFinding::from_error(error);
        // The walk over files and the walk over pairs may find the same place.
        if finding.path.is_none() || self.places.insert((finding.path.clone(), finding.offset)) {
            self.found.push(finding);
        }
    }

    /// Returns the findings with the keyspaces that they affect.
    fn with_keyspaces(
        mut self,
        database: &Path,
        hit: impl FnOnce() -> Result<(ReadDamages, Names)>,
    ) -> Result<Vec<VerifyFinding>> {
        if self.found.is_empty() {
            return Ok(self.found);
        }
        let (mut hit, names) = hit()?;
        for finding in &mut self.found {
            if let (Some(path), Some(offset)) = (&finding.path, finding.offset) {
                finding.keyspaces = hit.remove(&(path.clone(), offset)).unwrap_or_default().keyspaces;
            }
        }
        self.found.extend(hit.into_iter().map(|((path, offset), hit)| hit.into_finding(path, offset)));
        for finding in &mut self.found {
            let Some(path) = finding.path.as_ref().filter(|_| finding.keyspaces.is_empty()) else { continue };
            let name = keyspace_of(database, path).and_then(|number| names.get(&number));
            finding.keyspaces.extend(name.cloned());
        }
        Ok(self.found)
    }
}

/// Damaged places that readers found, by file and offset.
type ReadDamages = BTreeMap<(PathBuf, u64), ReadDamage>;

/// Names of keyspaces, by number.
type Names = BTreeMap<u32, String>;

fn names_of(db: &Database) -> Names {
    db.keyspaces().into_iter().map(|info| (info.id.0, info.name)).collect()
}

/// Damaged place that a reader found.
#[derive(Default)]
struct ReadDamage {
    what: String,
    keyspaces: Vec<String>,
}

impl ReadDamage {
    /// Returns a finding that the verification did not report: it leaves a keyspace at its first
    /// damaged pair.
    fn into_finding(self, path: PathBuf, offset: u64) -> VerifyFinding {
        VerifyFinding { path: Some(path), offset: Some(offset), what: self.what, keyspaces: self.keyspaces }
    }
}

/// Returns the damaged places that reads of each keyspace find.
fn damage_by_keyspace(db: &Database) -> Result<ReadDamages> {
    let mut hit = ReadDamages::new();
    for info in db.keyspaces() {
        let mut note = |error: Error| match error {
            Error::Corrupt { ref path, offset, .. } => {
                let hit = hit.entry((path.clone(), offset)).or_default();
                hit.what = error.text_without_place();
                if !hit.keyspaces.contains(&info.name) {
                    hit.keyspaces.push(info.name.clone());
                }
                Ok(())
            }
            other => Err(other),
        };
        match db.open_keyspace(&info.name) {
            Ok(Some(keyspace)) => read_all(&keyspace, &mut note)?,
            Ok(None) => {}
            Err(error) => note(error)?,
        }
    }
    Ok(hit)
}

/// Reads each pair. An error ends the iterator of the keys.
fn read_all(keyspace: &Keyspace, note: &mut impl FnMut(Error) -> sheaf::Result<()>) -> sheaf::Result<()> {
    let keys = match keyspace.keys() {
        Ok(keys) => keys,
        Err(error) => return note(error),
    };
    for key in keys {
        if let Err(error) = key.and_then(|key| keyspace.get_with(&key, |_| ())) {
            note(error)?;
        }
    }
    Ok(())
}

fn print(
    out: &mut impl Write,
    report: &VerifyReport,
    findings: &[VerifyFinding],
    watch: &Stopwatch,
) -> Result {
    let (good, caution, name) = (on_stdout(GOOD), on_stdout(CAUTION), on_stdout(NAME));
    for finding in findings {
        write!(out, "{caution}damage{caution:#}")?;
        if let (Some(path), Some(offset)) = (&finding.path, finding.offset) {
            write!(out, "\t{}\toffset {offset}", path.display())?;
        }
        let mut shown = String::new();
        escape(finding.keyspaces.join(", ").as_bytes(), &mut shown);
        let shown = if shown.is_empty() { "-" } else { &shown };
        writeln!(out, "\tkeyspace {name}{shown}{name:#}\t{}", finding.what)?;
    }
    if findings.is_empty() {
        write!(out, "{good}sound{good:#}: ")?;
    }
    writeln!(
        out,
        "{}, {}, {} in {} read in {}",
        many(report.pairs, "pair"),
        many(report.frames, "frame"),
        size(report.bytes),
        many(report.files.len() as u64, "file"),
        time(watch.elapsed())
    )?;
    Ok(())
}

fn print_json(out: &mut impl Write, report: &VerifyReport, findings: &[VerifyFinding]) -> Result {
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| {
            let file = finding.path.as_ref().map(|path| path.to_string_lossy());
            let (offset, what, keyspaces) = (finding.offset, &finding.what, &finding.keyspaces);
            json!({ "file": file, "offset": offset, "keyspaces": keyspaces, "what": what })
        })
        .collect();
    let files: Vec<_> = report.files.iter().map(|path| path.to_string_lossy()).collect();
    let report = json!({
        "sound": findings.is_empty(),
        "pairs": report.pairs,
        "frames": report.frames,
        "bytes": report.bytes,
        "files": files,
        "findings": findings,
    });
    Ok(writeln!(out, "{report}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_engine_file_gives_its_keyspace() {
        let of = |path: &str| keyspace_of(Path::new("own/00000009/db"), Path::new(path));
        assert_eq!(of("own/00000009/db/own/0000000a/HEAD.0"), Some(10));
        assert_eq!(of("own/00000009/db/own/00000002/data/00000000.area"), Some(2));
        assert_eq!(of("own/00000009/db/images/00000003-0000000000000007.img"), Some(3));
        assert_eq!(of("/elsewhere/db/own/00000004/trie"), Some(4));
        for path in ["ROOT.0", "journal/0000000000000001.seg", "own/other/file", "images/none"] {
            assert_eq!(of(&format!("own/00000009/db/{path}")), None, "{path}");
        }
    }
}
