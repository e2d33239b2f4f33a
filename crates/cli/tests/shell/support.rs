//! # Sandbox: the program, run in a directory of its own

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;
use tempfile::TempDir;

/// A temporary directory in which `sheaf` runs.
pub(crate) struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        Sandbox { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A sandbox with pairs in keyspace `default` of `db`.
    pub(crate) fn with(pairs: &[(&str, &str)]) -> Sandbox {
        let sandbox = Sandbox::new();
        let text: String = pairs.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
        sandbox.feed(&["load", "db", "-"], text.as_bytes()).succeeds();
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("a file in the sandbox");
    }

    /// The program, about to run here.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheaf"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> RunResult {
        RunResult(self.command(args).output().expect("the program starts"))
    }

    /// Runs it to its end with `input` on stdin.
    pub(crate) fn feed<A: AsRef<OsStr>>(&self, args: &[A], input: &[u8]) -> RunResult {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        let feeder = std::thread::Builder::new()
            .spawn(move || stdin.write_all(&input).ok()) // it may end before it has read all
            .expect("a thread");
        let output = child.wait_with_output().expect("the program ends");
        feeder.join().expect("the feeder does not panic");
        RunResult(output)
    }

    /// Returns every file below `name` with its content, which a reading verb must not change.
    pub(crate) fn image(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        collect(&self.path(name), &mut files);
        files.sort();
        files
    }
}

fn collect(path: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    if path.is_dir() {
        files.push((path.to_path_buf(), Vec::new()));
        for entry in std::fs::read_dir(path).expect("a directory") {
            collect(&entry.expect("an entry").path(), files);
        }
    } else if path.exists() {
        files.push((path.to_path_buf(), std::fs::read(path).expect("a file")));
    }
}

/// Result of a run.
pub(crate) struct RunResult(pub(crate) Output);

impl RunResult {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> RunResult {
        assert_eq!(
            self.0.status.code(),
            Some(code),
            "stdout {:?}, stderr {:?}",
            self.stdout(),
            self.stderr()
        );
        assert!(!self.stderr().contains("panicked"), "{}", self.stderr());
        self
    }

    /// Exit code 0 and nothing on stderr.
    #[track_caller]
    pub(crate) fn succeeds(self) -> RunResult {
        let ran = self.exits(0);
        assert_eq!(ran.stderr(), "");
        ran
    }

    /// On stdout is exactly this.
    #[track_caller]
    pub(crate) fn prints(self, expected: impl AsRef<[u8]>) -> RunResult {
        let expected = expected.as_ref();
        assert_eq!(self.0.stdout, expected, "{:?} != {:?}", self.stdout(), String::from_utf8_lossy(expected));
        self
    }

    /// On stderr is, among other things, this.
    #[track_caller]
    pub(crate) fn mentions(self, of: &str) -> RunResult {
        assert!(self.stderr().contains(of), "{:?} does not mention {of:?}", self.stderr());
        self
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// The lines on stdout, sorted.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.stdout().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.0.stdout).expect("JSON on stdout")
    }
}
