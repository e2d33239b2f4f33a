//! # Waiter: thread that waits for the device
//!
//! One thread waits for durable commits, `persist` and the creation of keyspaces, so that no worker
//! has to. It takes all queued jobs and waits for the highest commit among them; the others are
//! then durable too. The next jobs collect during the wait, so one sync serves them all.
//!
//! Commits of one client arrive in order through its agent and are answered in that order.

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

/// Waits for the highest commit, and so for all. Each commit reports an error again for itself.
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
