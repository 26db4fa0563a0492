//! Who sent a datagram of a local socket, as the kernel says.
//!
//! Sends from another process namespace have pid 0, which the type that `rustix` has for this
//! cannot hold.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _};

/// Room for the one message that is asked for, as the kernel aligns it.
const SPACE: usize = 64;

#[repr(C, align(8))]
struct Control([u8; SPACE]);

/// Asks the kernel to say of each datagram whose it is. What was sent before says nothing.
pub fn ask(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Receives one datagram, without waiting: its length, and the user that sent it.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    let mut control = Control([0; SPACE]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    #[expect(
        unsafe_code,
        reason = "a structure of plain numbers and pointers, whose all-zero value is an empty message"
    )]
    // SAFETY: `msghdr` consists of integers, pointers and padding, for which all bits zero is a
    // value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = SPACE;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    #[expect(unsafe_code, reason = "no safe wrapper takes a pid of 0")]
    // SAFETY: the message points to a buffer and a control area that outlive the call, each with
    // its length.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let filled = message.msg_controllen.min(SPACE);
    Ok((length, user(&control.0[..filled])))
}

/// The uid in a control message, which is a length, a level, a type, and then pid, uid and gid.
fn user(control: &[u8]) -> Option<u32> {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    let int = |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let level = size_of::<usize>();
    let is_ours = int(level)? == libc::SOL_SOCKET && int(level + 4)? == libc::SCM_CREDENTIALS;
    is_ours.then(|| int(HEAD + 4)).flatten().map(i32::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn the_kernel_says_who_sent_it() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ask(&ours).unwrap();
        theirs.send(b"hello").unwrap();
        let mut buffer = [0; 16];
        let (length, uid) = receive(&ours, &mut buffer).unwrap();
        assert_eq!((&buffer[..length], uid), (&b"hello"[..], Some(rustix::process::getuid().as_raw())));
        assert_eq!(receive(&ours, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_no_such_message_says_nothing() {
        for control in [&[][..], &[0; 8], &[0; 40], &[0xff; 40]] {
            assert_eq!(user(control), None);
        }
    }
}
