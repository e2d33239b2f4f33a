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
use sheaf_flatrpc::message::ReplyEncoder;

use crate::commands::{EncodedReply, PendingReply, WaiterJob, WorkerCommand};
use crate::keyspaces::OpenedKeyspace;
use crate::server_state::{ServerState, StopOnPanic};

pub(crate) fn run(shared: &ServerState, jobs: &Receiver<WaiterJob>) {
    let _alarm = StopOnPanic(shared);
    let mut line = Vec::new();
    while let Ok(first) = jobs.recv() {
        line.push(first);
        line.extend(jobs.try_iter());
        wait_for_commits(&line);
        for job in line.drain(..) {
            if matches!(job, WaiterJob::End) {
                return;
            }
            run_job(shared, job);
        }
    }
}

/// Waits for the highest commit, and so for all. Each commit reports an error again for itself.
fn wait_for_commits(line: &[WaiterJob]) {
    let commits = line.iter().filter_map(|job| match job {
        WaiterJob::Durable { commit, .. } => Some(commit),
        _ => None,
    });
    if let Some(last) = commits.max_by_key(|commit| commit.seq()) {
        let _ = last.wait_durable();
    }
}

fn run_job(shared: &ServerState, job: WaiterJob) {
    let mut bytes = Vec::new();
    let to = match job {
        WaiterJob::Durable { to, id, commit } => {
            encode_done(id, &mut bytes, commit.wait_durable().map(|()| commit.seq()));
            to
        }
        WaiterJob::Persist { to, id } => {
            encode_done(id, &mut bytes, shared.db.persist().map(|()| 0));
            to
        }
        WaiterJob::Keyspace { to, id, name, engine, create } => {
            let answer = ReplyEncoder::new(id, &mut bytes);
            match shared.keyspaces.open(&shared.db, &name, &engine, create) {
                Ok(OpenedKeyspace::Number { number, ordered }) => answer.keyspace(number, ordered),
                Ok(OpenedKeyspace::Busy) => answer.busy(),
                Err(error) => answer.failed(&error),
            }
            to
        }
        WaiterJob::End => return,
    };
    send_reply(shared, &to, &bytes);
}

fn encode_done(id: u64, bytes: &mut Vec<u8>, result: Result<u64, Error>) {
    match result {
        Ok(seq) => ReplyEncoder::new(id, bytes).done(seq),
        Err(error) => ReplyEncoder::new(id, bytes).failed(&error),
    }
}

fn send_reply(shared: &ServerState, to: &PendingReply, bytes: &[u8]) {
    to.session.unsent_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
    let desk = &shared.worker_handles[to.owner];
    desk.send(WorkerCommand::Reply { recipient: to.session.recipient, payload: EncodedReply::new(bytes) });
    desk.wake.wake();
}
