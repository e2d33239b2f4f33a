//! # Unix sockets: calls that differ between Linux, macOS and FreeBSD
//!
//! A socket is closed on exec, and a send to a closed peer is an error, never SIGPIPE.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// An open directory with sockets.
#[derive(Debug)]
pub struct SocketDir {
    fd: OwnedFd,
    #[cfg_attr(
        target_os = "linux",
        expect(dead_code, reason = "Linux finds the directory by its descriptor")
    )]
    path: PathBuf,
}

impl SocketDir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    pub fn open(dir: &Path) -> rustix::io::Result<SocketDir> {
        #[cfg(not(target_vendor = "apple"))]
        const ACCESS: OFlags = OFlags::PATH;
        #[cfg(target_vendor = "apple")]
        const ACCESS: OFlags = OFlags::RDONLY;
        let fd = rustix::fs::open(dir, ACCESS | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(SocketDir { fd, path: dir.to_path_buf() })
    }

    /// Returns the address of the socket `name` in the directory. On Linux the path of the
    /// directory may have any length.
    ///
    /// # Errors
    ///
    /// Returns ENAMETOOLONG if the path does not fit into an address (104 bytes, except on Linux).
    pub fn address(&self, name: &str) -> rustix::io::Result<SocketAddrUnix> {
        #[cfg(target_os = "linux")]
        let dir = {
            use std::os::fd::AsRawFd;
            Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string())
        };
        #[cfg(not(target_os = "linux"))]
        let dir = &self.path;
        SocketAddrUnix::new(dir.join(name))
    }
}

impl AsFd for SocketDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Creates a stream socket.
///
/// # Errors
///
/// Returns the error of the system call.
pub fn stream_socket(is_nonblocking: bool) -> rustix::io::Result<OwnedFd> {
    #[cfg(not(target_vendor = "apple"))]
    {
        let more = if is_nonblocking { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | more, None)
    }
    #[cfg(target_vendor = "apple")]
    {
        let none = SocketFlags::empty();
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, none, None)?;
        prepare(&socket, is_nonblocking)?;
        Ok(socket)
    }
}

/// Accepts a connection of a listener. The new socket blocks.
///
/// # Errors
///
/// Returns the error of the system call.
pub fn accept(listener: impl AsFd) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    return rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    {
        let socket = rustix::net::accept(listener)?;
        prepare(&socket, false)?; // the socket has the flags of the listener
        Ok(socket)
    }
}

/// Sets the flags of a new socket.
#[cfg(not(target_os = "linux"))]
fn prepare(socket: &OwnedFd, is_nonblocking: bool) -> rustix::io::Result<()> {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(socket, is_nonblocking)?;
    rustix::net::sockopt::set_socket_nosigpipe(socket, true)
}

/// Sends bytes and returns their number.
///
/// # Errors
///
/// Returns the error of the system call; EPIPE if the peer has closed the connection.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    #[cfg(not(target_vendor = "apple"))]
    return rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
    #[cfg(target_vendor = "apple")]
    return rustix::net::send(socket, bytes, SendFlags::empty());
}

/// The process at the other end of a socket, as identified by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Process id. `None` if the system does not tell: it does on Linux.
    pub pid: Option<i32>,
}

impl Peer {
    /// Returns the peer of a connected socket.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    #[cfg(target_os = "linux")]
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        Ok(Peer { uid: peer.uid.as_raw(), pid: Some(peer.pid.as_raw_nonzero().get()) })
    }

    /// Returns the peer of a connected socket.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    #[cfg(not(target_os = "linux"))]
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        use std::os::fd::AsRawFd;
        let (mut uid, mut gid) = (0, 0);
        // SAFETY:
        // * The descriptor is borrowed, and both places are valid for the answer.
        let answer = unsafe { libc::getpeereid(socket.as_fd().as_raw_fd(), &raw mut uid, &raw mut gid) };
        if answer == 0 { Ok(Peer { uid, pid: None }) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns true if the peer has the user of this process, or is root.
    #[must_use]
    pub fn is_our_user_or_root(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Wakes a thread that polls a descriptor. A notification persists until it is cleared.
#[derive(Debug)]
pub struct Notifier {
    polled: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    written: OwnedFd,
}

impl Notifier {
    /// Creates a notifier without a notification: an eventfd on Linux, a pair of sockets elsewhere.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    pub fn new() -> io::Result<Notifier> {
        #[cfg(target_os = "linux")]
        {
            use rustix::event::{EventfdFlags, eventfd};
            Ok(Notifier { polled: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let (polled, written) = std::os::unix::net::UnixStream::pair()?;
            polled.set_nonblocking(true)?;
            written.set_nonblocking(true)?;
            Ok(Notifier { polled: polled.into(), written: written.into() })
        }
    }

    /// Notifies the poller. A failure means that earlier notifications wait.
    pub fn notify(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::io::write(&self.polled, &1u64.to_ne_bytes());
        #[cfg(not(target_os = "linux"))]
        let _ = rustix::io::write(&self.written, &[1]);
    }

    /// Removes notifications. Some may stay if there are many.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.polled, &mut [0u8; 64]);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.polled.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn notifications_persist_until_they_are_cleared() {
        let notifier = Notifier::new().unwrap();
        let is_notified = || {
            let mut polled = [PollFd::new(&notifier, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(!is_notified());
        notifier.notify();
        notifier.notify();
        assert!(is_notified() && is_notified());
        notifier.clear();
        assert!(!is_notified());
    }

    #[test]
    fn the_kernel_names_the_peer_and_a_closed_one_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert!(peer.is_our_user_or_root() && peer.uid == rustix::process::geteuid().as_raw());
        assert_eq!(send(&ours, b"ab").unwrap(), 2);
        drop(theirs);
        assert_eq!(send(&ours, b"c"), Err(rustix::io::Errno::PIPE));
    }

    #[test]
    fn a_listener_is_reached_by_its_name_in_a_directory() {
        let scratch = crate::disk::scratch::ScratchDir::new();
        let dir = SocketDir::open(&scratch.0).unwrap();
        let (listener, client) = (stream_socket(true).unwrap(), stream_socket(false).unwrap());
        rustix::net::bind(&listener, &dir.address("door").unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        assert_eq!(accept(&listener).unwrap_err(), rustix::io::Errno::AGAIN);
        rustix::net::connect(&client, &dir.address("door").unwrap()).unwrap();
        let accepted = accept(&listener).unwrap();
        assert_eq!(send(&client, b"x").unwrap(), 1);
        assert_eq!(rustix::io::read(&accepted, &mut [0u8; 8]).unwrap(), 1);
    }
}
