//! # Demo: a tour that checks its own claims
//!
//! Meant as the first command of a new user. It loads texts, queries them, commits a batch over two
//! keyspaces during a snapshot, kills a writer, reopens the database, checks every guarantee that
//! it shows, and prints times. A broken guarantee is printed, and the exit code is 4.
//!
//! ```text
//!   files   path        -> number of lines
//!   lines   path:line   -> text                  a file's lines and its entry are one commit
//!   words   word        -> places, one a line
//!   left, right                                  rows of the killed writer (writer.rs)
//! ```

mod crash;
mod library;
mod page;
mod texts;
pub(crate) mod writer;

use std::path::{Path, PathBuf};

use clap::Args;
use library::Library;
use page::DemoPage;
use tempfile::TempDir;
use texts::Text;

use crate::failure::{Failure, Result};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Text file to load instead of the sources
    pub(crate) file: Option<PathBuf>,
    /// Directory to work in, new or empty; the databases stay there
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Demo) -> Result {
    let (source, texts) = texts::collect_texts(args.file.as_deref())?;
    let demo_dir = DemoDir::new(args.dir.as_deref())?;
    let mut page = DemoPage::new();
    page.title(&demo_dir.database, &source)?;
    tour(&mut page, &demo_dir.database, &texts)?;
    crash::show(&mut page, &demo_dir.database)?;
    page.end(args.dir.as_deref())
}

/// Runs the steps that need one process only.
fn tour(page: &mut DemoPage, database: &Path, texts: &[Text]) -> Result {
    let library = Library::load(page, database, texts)?;
    library.query(page, texts)?;
    library.batch_during_snapshot(page, texts)?;
    library.close()
}

/// Directory of the demo. A temporary directory is removed on drop.
struct DemoDir {
    database: PathBuf,
    _temporary: Option<TempDir>,
}

impl DemoDir {
    fn new(dir: Option<&Path>) -> Result<DemoDir> {
        if let Some(dir) = dir {
            if !is_new_or_empty(dir) {
                return Err(Failure::Refused(format!("{} is not empty", dir.display())));
            }
            return Ok(DemoDir { database: dir.to_path_buf(), _temporary: None });
        }
        let temporary = tempfile::Builder::new()
            .prefix("sheaf-demo-")
            .tempdir()
            .map_err(Failure::stream("create a directory in", std::env::temp_dir()))?;
        Ok(DemoDir { database: temporary.path().join("db"), _temporary: Some(temporary) })
    }
}

#[expect(clippy::disallowed_methods, reason = "a check before there is a database")]
fn is_new_or_empty(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
