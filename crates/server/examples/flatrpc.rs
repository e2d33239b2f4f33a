//! # FlatRPC benchmark: cost of serving, on this machine
//!
//! ```sh
//! cargo run --release -p sheaf-server --example flatrpc            # all, about three minutes
//! cargo run --release -p sheaf-server --example flatrpc -- --quick # required values, 20 s
//! ```
//!
//! Puts of 8 + 100 bytes, uniform over a million keys, into `flat`. Clients are separate processes.
//! First the required values (`must`), with the server's default number of workers and rounds in
//! turn. Then the table: agent against all-to-all with two workers, since with one they are the
//! same. The *bare ring* is two threads that pass messages of the same size through the same rings
//! without any work on them: the upper bound.

#![allow(clippy::disallowed_methods, reason = "measuring needs clocks, threads and processes")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheaf::{Database, KeyspaceOptions};
use sheaf_client::{Client, ClientOptions, ReplyMode, ServerAddress};
use sheaf_flatrpc::link::{PeerLink, SharedLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::{InboxLayout, RingReader, RingWriter};
use sheaf_server::{Server, ServerBuilder, ServerLimits};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const KEYS: u64 = 1_000_000;
const VALUE: [u8; 100] = [7; 100];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", address, mode, flight, seed] => client(address, mode, flight.parse()?, seed.parse()?),
        [] => {
            check_guarantees(5)?;
            table()
        }
        ["--quick"] => check_guarantees(3),
        ["--table"] => table(),
        _ => Err("flatrpc [--quick | --table]".into()),
    }
}

/// Mixes bits, so that keys have no order.
fn key(number: u64) -> [u8; 8] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) % KEYS).to_be_bytes()
}

/// Result of one or several clients.
struct Figure {
    per_second: f64,
    p99_us: f64,
}

/// Client process: connects, waits for a number of milliseconds on stdin, and works for that time.
fn client(address: &str, mode: &str, flight: usize, seed: u64) -> Result<()> {
    let mode = if mode == "agent" { ReplyMode::Agent } else { ReplyMode::AllToAll };
    let mut client =
        Client::connect(&address.parse::<ServerAddress>()?, &ClientOptions::default().mode(mode))?;
    let keyspace = client.keyspace("bench")?;
    println!("ready");
    let mut word = String::new();
    std::io::stdin().read_line(&mut word)?;
    let time = Duration::from_millis(word.trim().parse()?);
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut began = std::collections::VecDeque::with_capacity(flight);
    let mut number = seed << 40;
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        while began.len() < flight {
            number += 1;
            let ticket = client.submit(&keyspace.insert(&key(number), &VALUE))?;
            began.push_back((ticket, Instant::now()));
        }
        let (ticket, reply) = client.next_reply()?.ok_or("nothing is in flight")?;
        reply?;
        now = Instant::now();
        let at = began.iter().position(|(t, _)| *t == ticket).ok_or("a reply without a request")?;
        let (_, since) = began.remove(at).ok_or("found above")?;
        latencies.record(u64::try_from((now - since).as_nanos())?)?;
    }
    let took = start.elapsed();
    let mut line = format!("{} {}", latencies.len(), took.as_nanos());
    for value in latencies.iter_recorded() {
        line += &format!(" {}:{}", value.value_iterated_to(), value.count_at_value());
    }
    println!("{line}");
    while client.next_reply()?.is_some() {}
    Ok(())
}

/// Starts clients, lets them run at the same time, and adds up their results.
fn run(address: &ServerAddress, mode: &str, clients: usize, flight: usize, time: Duration) -> Result<Figure> {
    let spawn = |index: usize| -> Result<(Child, BufReader<std::process::ChildStdout>)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["client", &address.to_string(), mode, &flight.to_string(), &(index + 1).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or("piped")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        if line.trim() == "ready" { Ok((child, out)) } else { Err(format!("a client says {line:?}").into()) }
    };
    let mut all = (0..clients).map(spawn).collect::<Result<Vec<_>>>()?;
    for (child, _) in &mut all {
        writeln!(child.stdin.as_mut().ok_or("piped")?, "{}", time.as_millis())?;
    }
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut per_second = 0.0;
    for (mut child, mut out) in all {
        let mut line = String::new();
        out.read_line(&mut line)?;
        child.wait()?;
        let mut words = line.split_whitespace();
        let mut number = || -> Result<f64> { Ok(words.next().ok_or("a client that died")?.parse()?) };
        let (count, nanoseconds) = (number()?, number()?);
        per_second += count / nanoseconds * 1e9;
        for pair in words {
            let (value, count) = pair.split_once(':').ok_or("value:count")?;
            latencies.record_n(value.parse()?, count.parse()?)?;
        }
    }
    Ok(Figure { per_second, p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3 })
}

/// Puts by one thread of this process, without a server.
fn in_process(db: &Database, time: Duration) -> Result<f64> {
    let keyspace = db.keyspace("bench", KeyspaceOptions::default().engine("flat"))?;
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        for _ in 0..256 {
            count += 1;
            keyspace.insert(key(count), VALUE)?;
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Two threads, two rings, messages of a put's size one way and of its reply's the other.
fn bare_ring(flight: usize, time: Duration) -> Result<f64> {
    let layout = InboxLayout::new(1, 1, 8192).ok_or("a layout")?;
    let inboxes =
        [Arc::new(SharedMemory::heap(layout.words())), Arc::new(SharedMemory::heap(layout.words()))];
    let stop = Arc::new(AtomicBool::new(false));
    let side = |ours: usize| {
        let link = SharedLink::<OwnedFd>::new(Arc::clone(&inboxes[1 - ours]), Vec::new());
        (Arc::clone(&inboxes[ours]), link, RingWriter::new(layout, 0), RingReader::new(layout, 0))
    };
    let (inbox, mut link, mut out, mut incoming) = side(1);
    let stopped = Arc::clone(&stop);
    let echo = std::thread::Builder::new().spawn(move || -> std::io::Result<()> {
        let mut credit = incoming.credit();
        let mut message = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            message.clear();
            if incoming.read_record(&inbox, &mut message)?.is_none() {
                std::hint::spin_loop();
                continue;
            }
            credit.send_if_due(&mut link, incoming.head())?;
            while out.write_message(&inbox, &mut link, &[1; 17], 0)?.is_none()
                && !stopped.load(Ordering::Relaxed)
            {}
        }
        Ok(())
    })?;
    let (inbox, mut link, mut out, mut incoming) = side(0);
    let mut credit = incoming.credit();
    let (start, mut count, mut open) = (Instant::now(), 0u64, 0);
    let mut message = Vec::new();
    while start.elapsed() < time {
        for _ in 0..256 {
            while open < flight && out.write_message(&inbox, &mut link, &[2; 130], 0)?.is_some() {
                open += 1;
            }
            message.clear();
            if incoming.read_record(&inbox, &mut message)?.is_some() {
                credit.send_if_due(&mut link as &mut dyn PeerLink, incoming.head())?;
                open -= 1;
                count += 1;
            }
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    echo.join().map_err(|_| "the echo panicked")??;
    Ok(rate)
}

fn open(dir: &Path, limits: ServerLimits) -> Result<(Database, Server)> {
    let db = Database::open(dir.join("db"))?;
    let keyspace = db.keyspace("bench", KeyspaceOptions::default().engine("flat"))?;
    for number in 0..KEYS {
        keyspace.insert(number.to_be_bytes(), VALUE)?;
    }
    let shared = ServerAddress::SharedMemory(dir.join("sock"));
    let tcp = "tcp:127.0.0.1:0".parse()?;
    let server =
        ServerBuilder::default().insecure(true).limits(limits).listen(shared).listen(tcp).start(&db)?;
    Ok((db, server))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures the required values, in turn, so that variations of the machine affect all of them.
fn check_guarantees(rounds: usize) -> Result<()> {
    let time = Duration::from_millis(700);
    let dir = tempfile::tempdir()?;
    let (db, server) = open(dir.path(), ServerLimits::default())?;
    let [shared, tcp] = server.addresses() else { return Err("two addresses".into()) };
    let mut all: [Vec<f64>; 8] = Default::default();
    for _ in 0..rounds {
        all[0].push(in_process(&db, time)?);
        for (at, flight) in [(1, 1), (2, 8)] {
            all[at].push(run(shared, "agent", 1, flight, time)?.per_second);
            all[at + 2].push(run(tcp, "agent", 1, flight, time)?.per_second);
            all[at + 4].push(bare_ring(flight, time / 2)?);
        }
    }
    server.close()?;
    db.close()?;
    let [local, shared_1, shared_8, tcp_1, tcp_8, ring_1, ring_8, _] =
        all.map(|figures| if figures.is_empty() { 0.0 } else { median(figures) });
    println!(
        "| thousand a second, 1 client, {} worker(s) | 1 in flight | 8 in flight |",
        ServerLimits::default().workers
    );
    println!("|---|---|---|");
    println!("| puts over shared memory | {:.0} | {:.0} |", shared_1 / 1e3, shared_8 / 1e3);
    println!("| puts over TCP loopback | {:.1} | {:.1} |", tcp_1 / 1e3, tcp_8 / 1e3);
    println!("| bare ring | {:.0} | {:.0} |", ring_1 / 1e3, ring_8 / 1e3);
    println!("| puts in process, 1 thread | {:.0} | |", local / 1e3);
    println!("| shared memory over TCP (must: 5) | {:.1} | {:.1} |", shared_1 / tcp_1, shared_8 / tcp_8);
    println!(
        "| shared memory over in process (must: 0.60 with 8) | {:.2} | {:.2} |\n",
        shared_1 / local,
        shared_8 / local
    );
    Ok(())
}

/// Compares agent and all-to-all.
fn table() -> Result<()> {
    let time = Duration::from_millis(1000);
    let dir = tempfile::tempdir()?;
    let (db, server) = open(dir.path(), ServerLimits { workers: 2, ..ServerLimits::default() })?;
    println!("2 workers, thousand puts a second / p99 in µs\n");
    println!("| transport | replies | in flight | 1 client | 2 | 4 | 8 | 12 |");
    println!("|---|---|---|---|---|---|---|---|");
    for (address, name) in server.addresses().iter().zip(["shared memory", "TCP"]) {
        for flight in [1, 8] {
            for mode in ["agent", "all-to-all"] {
                print!("| {name} | {mode} | {flight} |");
                for clients in [1, 2, 4, 8, 12] {
                    let figure = run(address, mode, clients, flight, time)?;
                    print!(" {:.1} / {:.0} |", figure.per_second / 1e3, figure.p99_us);
                    std::io::stdout().flush()?;
                }
                println!();
            }
        }
    }
    server.close()?;
    db.close()?;
    Ok(())
}
