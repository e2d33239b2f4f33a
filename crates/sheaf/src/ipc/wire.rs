//! # Wire: hello, and messages after their length

use std::io::{self, Read};

#[cfg(unix)]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(unix)]
use rustix::io::Errno;

use super::stream::Stream;

const MAGIC: &[u8; 8] = b"SHEAFDOR";
/// Version of the protocol.
pub(super) const VERSION: u32 = 8;
/// Most bytes of a message.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Bytes of a hello: magic, version, status.
const HELLO_BYTES: usize = 16;

/// Status in the owner's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloStatus {
    Accepted = 0,
    /// The owner serves as many connections as it accepts.
    #[cfg_attr(not(unix), expect(dead_code, reason = "no owner sends it"))]
    Busy = 1,
}

/// Sends a hello.
pub(super) fn send_hello(stream: &Stream, status: HelloStatus) -> io::Result<()> {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[12..].copy_from_slice(&(status as u32).to_le_bytes());
    send_all(stream, &hello)
}

/// Returns the version and status of the peer. Fails with `InvalidData` if the peer speaks another
/// protocol.
pub(super) fn receive_hello(mut stream: &Stream) -> io::Result<(u32, u32)> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello)?;
    let number = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
    match hello.starts_with(MAGIC) {
        true => Ok((number(8), number(12))),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends a message.
pub(super) fn send(stream: &Stream, body: &[u8]) -> io::Result<()> {
    let len = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_MESSAGE_BYTES);
    let len = len.ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    send_all(stream, &bytes)
}

/// Returns the next message; `None` at the end of the connection.
pub(super) fn receive(mut stream: &Stream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(io::Error::other)?;
    if len > MAX_MESSAGE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(Some(body))
}

/// Sends all bytes. A closed connection is an error, not a signal.
#[cfg(unix)]
fn send_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match sheaf_platform::unix_socket::send(stream, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn send_all(stream: &Stream, _: &[u8]) -> io::Result<()> {
    match *stream {}
}

/// Returns true if a short message can be sent without blocking.
#[cfg(unix)]
pub(super) fn can_send(stream: &Stream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::OUT)];
    matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
}

/// Returns true if the peer has closed its side. Does not block.
#[cfg(unix)]
pub(super) fn is_peer_closed(stream: &Stream) -> bool {
    use rustix::net::RecvFlags;
    loop {
        match rustix::net::recv(stream, &mut [0u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            Ok((_, count)) => return count == 0,
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn can_send_is_true_until_a_message_would_block() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap(); // to wait is an error
        let mut sent = 0;
        while can_send(&ours) {
            send(&ours, &[7; 200]).unwrap();
            sent += 1;
            assert!(sent < 100_000, "there is room for ever");
        }
        for _ in 0..sent {
            assert_eq!(receive(&theirs).unwrap(), Some(vec![7; 200]));
        }
        assert!(sent > 10 && can_send(&ours));
    }
}
