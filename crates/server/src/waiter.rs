//! # Waiter: what waits for the device
//!
//! Durable commits, `persist`, keyspaces that are created: one thread waits for all of them, so that no worker
//! does. It takes what is there and waits for the highest commit among it; the others are durable then, too.
//! While it waits the next ones collect: one sync serves them all.
//!
//! Commits of one client come in order through its agent, and are answered in the order they came.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use sheaf::Error;
use sheaf_flatrpc::message::Answer;

use crate::commands::{Command, Job, Payload, Reader};
use crate::keyspaces::Opened;
use crate::shared::{Alarm, Shared};

pub(crate) fn run(shared: &Shared, jobs: &Receiver<Job>) {
    let _alarm = Alarm(shared);
    let mut line = Vec::new();
    while let Ok(first) = jobs.recv() {
        line.push(first);
        line.extend(jobs.try_iter());
        wait(&line);
        for job in line.drain(..) {
            if matches!(job, Job::End) {
                return;
            }
            answer(shared, job);
        }
    }
}

/// Waits for the highest commit, and so for all. An error is found again by each that it concerns.
fn wait(line: &[Job]) {
    let commits = line.iter().filter_map(|job| match job {
        Job::Durable { commit, .. } => Some(commit),
        _ => None,
    });
    if let Some(last) = commits.max_by_key(|commit| commit.seq()) {
        let _ = last.wait_durable();
    }
}

fn answer(shared: &Shared, job: Job) {
    let mut bytes = Vec::new();
    let to = match job {
        Job::Durable { to, id, commit } => {
            done(id, &mut bytes, commit.wait_durable().map(|()| commit.seq()));
            to
        }
        Job::Persist { to, id } => {
            done(id, &mut bytes, shared.db.persist().map(|()| 0));
            to
        }
        Job::Keyspace { to, id, name, engine, create } => {
            let answer = Answer::to(id, &mut bytes);
            match shared.keyspaces.open(&shared.db, &name, &engine, create) {
                Ok(Opened::Number { number, ordered }) => answer.keyspace(number, ordered),
                Ok(Opened::Busy) => answer.busy(),
                Err(error) => answer.failed(&error),
            }
            to
        }
        Job::End => return,
    };
    send(shared, &to, &bytes);
}

fn done(id: u64, bytes: &mut Vec<u8>, result: Result<u64, Error>) {
    match result {
        Ok(seq) => Answer::to(id, bytes).done(seq),
        Err(error) => Answer::to(id, bytes).failed(&error),
    }
}

fn send(shared: &Shared, to: &Reader, bytes: &[u8]) {
    to.session.owed.fetch_add(bytes.len(), Ordering::SeqCst);
    let desk = &shared.desks[to.owner];
    desk.send(Command::Reply { whom: to.session.whom, payload: Payload::new(bytes) });
    desk.wake.ring();
}
