//! # The verb `demo`

use crate::support::Sandbox;

#[test]
fn the_demo_holds_every_guarantee_and_leaves_no_file() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["demo"]).env("TMPDIR", sandbox.path(".")).output().expect("it starts");
    let text = crate::support::RunResult(output).succeeds().stdout();
    assert!(
        text.contains("All guarantees held") && text.contains("kill -9") && !text.contains('✗'),
        "{text}"
    );
    assert!(text.contains("source files of this program"), "{text}");
    assert_eq!(sandbox.image(".").len(), 1, "something was left behind");
}

#[test]
fn the_demo_loads_a_file_and_leaves_a_sound_database_in_its_directory() {
    let sandbox = Sandbox::new();
    sandbox.write("poem", b"so much\ndepends \xff\nupon\n");
    sandbox.run(&["demo", "poem", "--dir", "here"]).succeeds();
    sandbox.run(&["get", "here", "-k", "lines", "poem:3"]).succeeds().prints("upon");
    sandbox.run(&["get", "here", "-k", "lines", "poem:4"]).succeeds().prints("one more line");
    sandbox.run(&["verify", "here"]).succeeds();
    sandbox.run(&["demo", "--dir", "here"]).exits(4).mentions("not empty");
}

#[test]
fn the_demo_accepts_an_empty_file_and_refuses_a_missing_one() {
    let sandbox = Sandbox::new();
    sandbox.write("empty", b"");
    sandbox.run(&["demo", "empty"]).succeeds();
    sandbox.run(&["demo", "nowhere"]).exits(4).mentions("cannot read nowhere");
}
