//! Tests of command lines: which ones are accepted, and the options they result in.

use super::*;

fn line(text: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(std::iter::once("sheaf-bench").chain(text.split_whitespace())).map(|cli| cli.command)
}

#[test]
fn the_commands_are_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn the_recorded_command_line_has_no_paths() {
    let without = |text: &str| without_paths(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    for line in [
        "figures --dir /tmp/a --rounds 2 --out report --json",
        "figures --dir=/tmp/a --rounds 2 --out=report --json",
        "figures --rounds 2 --json --dir /tmp/a",
        "figures --rounds 2 --save docs/data --json",
    ] {
        assert_eq!(without(line), "figures --rounds 2 --json", "{line}");
    }
    assert_eq!(without("figures --direct x"), "figures --direct x");
}

#[test]
fn figures_take_their_options() {
    let Ok(Command::Figures(options)) =
        line("figures --pairs 200k --peers none --rounds 2 --only tail,cpu --sync-ms 0 --json")
    else {
        panic!("not figures")
    };
    assert_eq!(
        (options.pairs, options.rounds, options.peers().len(), options.only().len()),
        (200_000, 2, 0, 2)
    );
    assert!(options.json && options.sync_every.is_none());
}

#[test]
fn scale_runs_each_workload_with_every_number_of_threads() {
    let Ok(Command::Scale(options)) = line("scale --pairs 100k --rounds 1") else { panic!("not a scaling") };
    let scaled = options.comparison(12).unwrap();
    assert_eq!((scaled.pairs, scaled.options.rounds), (vec![100_000], 1));
    let threads = |name: &str| {
        let load = scaled.workloads.iter().find(|load| load.name == name);
        load.map(|load| load.threads.clone()).unwrap_or_default()
    };
    assert_eq!(threads("fill-random"), [1, 2, 4, 8, 12]);
    assert_eq!(threads("durable"), [1, 2, 4, 8, 12, 24, 96]);
    assert_eq!(scaled.workloads.len(), SCALE_WORKLOADS.len());
    let Ok(Command::Scale(options)) = line("scale --only scan-50 --threads 1,16 --quick") else {
        panic!("not a scaling")
    };
    let scaled = options.comparison(2).unwrap();
    assert_eq!((scaled.pairs, &scaled.workloads[0].threads), (vec![200_000], &vec![1, 16]));
}

#[test]
fn wrong_lines_are_refused_with_a_reason() {
    for (text, reason) in [
        ("figure", "unrecognized subcommand"),
        ("figures --pairs many", "not a number"),
        ("figures --pairs 10", "at least 1000"),
        ("figures --peers oracle", "unknown store"),
        ("figures --peers flat", "not a peer"),
        ("figures --only everything", "unknown group"),
        ("figures --seconds 0", "not a time"),
        ("figures --rounds", "value is required"),
        ("figures --engine kreon", "has no figures"),
        ("run get-all", "unknown workload"),
        ("compare --stores flat,oracle", "unknown store"),
        ("compare --pairs 1k,many", "not a number"),
        ("compare --pairs 5000m", "at most 2^32"),
        ("compare --speed 3", "unexpected argument"),
        ("scale --threads 0", "at least 1"),
        ("paper flatstore --scale -1", "unexpected argument"),
        ("paper flatstore --scale=-1", "not a positive number"),
        ("stream --megabytes 5000", "less than 4 GiB"),
        ("backup --subject null", "not an engine of Sheaf"),
        ("paper flatstore --page --only fig-7", "cannot be used with"),
        ("figures --only headline-bigtable", "unknown group"),
        ("compare --stores delsm:file-bytes=1", "from 256"),
        ("backup --subject delsm:file-bytes=256", "not an engine of Sheaf"),
        ("report", "required arguments were not provided"),
    ] {
        let error = line(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let Ok(Command::Compare(compare)) = line("compare --only get-all") else { panic!("not a comparison") };
    assert!(compare.comparison().unwrap_err().to_string().contains("unknown workload"));
    let Ok(Command::Paper(paper)) = line("paper bigtable") else { panic!("not a paper") };
    assert!(paper.paper().unwrap_err().to_string().contains("unknown paper"));
}

#[test]
fn headlines_run_only_when_they_are_named() {
    let groups = |text: &str| match line(text) {
        Ok(Command::Figures(options)) => options.only(),
        _ => panic!("not figures: {text}"),
    };
    assert!(groups("figures").iter().all(|group| group.headline().is_none()));
    let papers: Vec<_> =
        groups("figures --only headline").iter().filter_map(|group| group.headline()).collect();
    assert_eq!(papers, ["flexdb", "delsm", "cedrusdb", "kreon", "flatstore"]);
    assert_eq!(groups("figures --only headline-kreon,cpu").len(), 2);
}

#[test]
fn a_run_of_a_paper_can_be_split_and_its_figures_saved() {
    let paper = |text: &str| match line(text) {
        Ok(Command::Paper(paper)) => paper.paper(),
        _ => panic!("not a paper: {text}"),
    };
    let run = paper("paper flatstore --only fig-7,fig-7-durable --save data --quick").unwrap();
    assert_eq!((run.papers[0].name.as_str(), run.quick, run.page), ("flatstore", true, false));
    assert_eq!(run.save, Some(PathBuf::from("data")));
    let run = paper("paper all --from a.jsonl,b.tsv --save data").unwrap();
    assert_eq!((run.from.len(), run.papers.len()), (2, 5));
    assert!(paper("paper flatstore --only fig-99").unwrap_err().to_string().contains("fig-7-durable"));
}

#[test]
fn a_quick_comparison_is_small_and_can_still_be_changed() {
    let Ok(Command::Compare(compare)) =
        line("compare --quick --out /o --rounds 5 --stores flat,null --threads 1,2 --dir /d")
    else {
        panic!("not a comparison")
    };
    let compare = compare.comparison().unwrap();
    assert_eq!((compare.options.rounds, compare.pairs, compare.threads), (5, vec![200_000], vec![1, 2]));
    assert_eq!(compare.options.subjects, [BenchSubject::FLAT, BenchSubject::NULL]);
    assert!(compare.workloads.iter().all(|load| load.quick) && compare.workloads.len() > 8);
}

#[test]
fn a_report_does_not_say_where_files_went() {
    let line = "compare --quick --out /o --rounds 5 --stores flat,null --dir /d --threads 1,2";
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(without_paths(&words), "compare --quick --rounds 5 --stores flat,null --threads 1,2");
}
