//! # An HTTP key-value service: `cargo run -p sheaf-example-axum -- DIRECTORY [ADDRESS]`
//!
//! | request | meaning | status |
//! |---|---|---|
//! | `GET /keys/KEY` | returns the value | 200, 404 |
//! | `PUT /keys/KEY` | sets the value to the body, durably | 204 |
//! | `PUT /keys/KEY`, `If-None-Match: *` | only if the key does not exist | 204, 412 |
//! | `DELETE /keys/KEY` | removes the key, durably | 204 |
//! | `GET /keys?prefix=P&limit=N` | lists keys, one per line | 200 |
//! | `POST /batch` | lines `put KEY VALUE` and `del KEY`, as one commit | 204, 400 |
//!
//! ```sh
//! curl -X PUT --data lovelace localhost:8080/keys/ada && curl localhost:8080/keys/ada
//! ```
//!
//! The service has no login: let it listen on the loopback address only.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sheaf::asynchronous::{AsyncDatabase, AsyncKeyspace};
use sheaf::{Database, Durability, KeyspaceOptions};
use tokio::net::TcpListener;

#[cfg(test)]
mod tests;

/// Threads of the blocking pool. More requests than that wait for a thread only if they commit or
/// read from the disk; requests that wait for a sync need none.
const POOL_THREADS: usize = 16;
/// Most keys that one request lists.
const MAX_LISTED: usize = 1000;

/// State that the handlers share.
#[derive(Clone)]
struct Service {
    db: AsyncDatabase,
    pairs: AsyncKeyspace,
}

/// An error of the database as a response.
struct Failure(sheaf::Error);

impl From<sheaf::Error> for Failure {
    fn from(error: sheaf::Error) -> Failure {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            sheaf::Error::NoSpace { .. } => StatusCode::INSUFFICIENT_STORAGE,
            sheaf::Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            sheaf::Error::Closed | sheaf::Error::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{}\n", self.0)).into_response()
    }
}

async fn read(State(service): State<Service>, Path(key): Path<String>) -> Result<Response, Failure> {
    Ok(match service.pairs.get(&key).await? {
        Some(value) => Vec::from(value).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

async fn write(
    State(service): State<Service>,
    Path(key): Path<String>,
    headers: HeaderMap,
    value: Bytes,
) -> Result<StatusCode, Failure> {
    let only_if_absent = headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag == "*");
    if only_if_absent && service.pairs.insert_if_absent(&key, &value).await?.is_some() {
        return Ok(StatusCode::PRECONDITION_FAILED);
    }
    if !only_if_absent {
        service.pairs.insert(&key, &value).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(State(service): State<Service>, Path(key): Path<String>) -> Result<StatusCode, Failure> {
    service.pairs.remove(&key).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(
    State(service): State<Service>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Vec<u8>, Failure> {
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(MAX_LISTED);
    let mut pairs = service.pairs.prefix(query.get("prefix").map_or("", String::as_str)).await?;
    let mut lines = Vec::new();
    for _ in 0..limit.min(MAX_LISTED) {
        let Some(pair) = pairs.next().await else { break };
        lines.extend_from_slice(&pair?.0);
        lines.push(b'\n');
    }
    Ok(lines)
}

async fn commit(State(service): State<Service>, lines: String) -> Result<StatusCode, Failure> {
    let (mut batch, pairs) = (service.db.batch(), service.pairs.blocking());
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("put"), Some(key), Some(value)) => batch.insert(pairs, key, value),
            (Some("del"), Some(key), None) => batch.remove(pairs, key),
            _ => return Ok(StatusCode::BAD_REQUEST),
        };
    }
    service.db.commit(batch).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Serves the database in `dir` until `stop` is ready, and closes it.
async fn serve(
    dir: &str,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn Error>> {
    let builder = Database::builder().durability(Durability::Sync);
    let db = AsyncDatabase::open_with(builder, dir).await?;
    let pairs = db.keyspace("pairs", KeyspaceOptions::default()).await?;
    let routes = Router::new()
        .route("/keys", get(list))
        .route("/keys/{key}", get(read).put(write).delete(remove))
        .route("/batch", post(commit))
        .with_state(Service { db: db.clone(), pairs });
    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;
    db.close().await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: sheaf-example-axum DIRECTORY [ADDRESS]")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.max_blocking_threads(POOL_THREADS).enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("http://{}", listener.local_addr()?);
        serve(&dir, listener, async { drop(tokio::signal::ctrl_c().await) }).await
    })
}
