// Starts a server for the examples of the documentation, which include this file.

/// Keeps the server and its directory until the end of the example.
pub struct Served {
    pub address: sheaf_client::ServerAddress,
    pub server: sheaf_server::Server,
    pub dir: tempfile::TempDir,
}

/// Serves an empty database in a temporary directory and connects a client.
///
/// # Errors
///
/// Returns any error of the directory, the database, the server or the connection.
pub fn start() -> Result<(Served, sheaf_client::Client), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let db = sheaf::Database::open(dir.path().join("db"))?;
    let address = sheaf_client::ServerAddress::SharedMemory(dir.path().join("sock"));
    let server = sheaf_server::ServerBuilder::default().listen(address.clone()).start(&db)?;
    let client = sheaf_client::Client::connect(&address, &sheaf_client::ClientOptions::default())?;
    Ok((Served { address, server, dir }, client))
}
