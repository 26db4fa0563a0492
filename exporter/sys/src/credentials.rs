//! The sender of a datagram of a local socket, as the kernel reports it. Descriptors sent with it
//! are not kept.
//!
//! Senders in another process namespace have pid 0, which the type of `rustix` cannot hold.
//!
//! Any sender can attach descriptors to a datagram. The kernel writes the credentials first, then
//! as many descriptors as the control area has room for, and installs those in this process. So the
//! area has room for the credentials only, and any descriptor that is installed nevertheless is
//! closed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

const HEAD: usize = size_of::<libc::cmsghdr>();
const CREDENTIALS: usize = size_of::<libc::ucred>();
/// Room for exactly the one requested message, as the kernel aligns it (`CMSG_SPACE`). The kernel
/// would fill more room with descriptors.
const SPACE: usize = aligned(HEAD) + aligned(CREDENTIALS);
/// The socket option that accepts descriptors, since Linux 6.16. `libc` lacks it.
const SO_PASSRIGHTS: libc::c_int = 83;

#[repr(C, align(8))]
struct Control<const ROOM: usize>([u8; ROOM]);

/// One datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub length: usize,
    /// The user that sent the datagram, if the kernel added it.
    pub uid: Option<u32>,
    /// Whether the datagram carried descriptors, or other control messages. None of them is kept.
    pub carried: bool,
}

/// Makes the kernel add the sender to each datagram, and refuse descriptors. Datagrams sent before
/// this call have no sender.
pub fn ask(socket: impl AsFd) -> io::Result<()> {
    refuse_descriptors(&socket)?;
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Makes the kernel refuse a message with descriptors at its sender (since Linux 6.16; without
/// effect before). Otherwise the receiver has to close them, which can take as long as the sender
/// likes. Accepted connections inherit this from the listening socket.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    let no: libc::c_int = 0;
    #[expect(unsafe_code, reason = "no safe wrapper has this option")]
    // SAFETY: the value is an integer that outlives the call, with its size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match (set, io::Error::last_os_error()) {
        (0, _) => Ok(()),
        (_, error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        (_, error) => Err(error),
    }
}

/// Receives one datagram, without waiting; `WouldBlock` if there is none.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with::<SPACE>(socket, buffer)
}

fn receive_with<const ROOM: usize>(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; ROOM]);
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
    message.msg_controllen = ROOM;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    #[expect(unsafe_code, reason = "no safe wrapper takes a pid of 0")]
    // SAFETY: the message points to a buffer and a control area that outlive the call, each with
    // its length.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let filled = message.msg_controllen.min(ROOM);
    let (uid, installed) = read(&control.0[..filled]);
    let carried = !installed.is_empty() || message.msg_flags & libc::MSG_CTRUNC != 0;
    for descriptor in installed {
        #[expect(unsafe_code, reason = "a number that the kernel wrote becomes a descriptor")]
        // SAFETY: the kernel installed this descriptor in this process for this call, so it is open
        // and has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    Ok(Received { length, uid, carried })
}

/// Parses control messages: returns the uid and the descriptors. Each message is a length, a level,
/// a type and its data: pid, uid and gid, or descriptors.
fn read(mut control: &[u8]) -> (Option<u32>, Vec<i32>) {
    let int = |bytes: &[u8], at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (mut uid, mut descriptors) = (None, Vec::new());
    while let Some(length) = control.first_chunk().map(|bytes| usize::from_ne_bytes(*bytes)) {
        let Some(message) = control.get(..length).filter(|_| length >= HEAD) else { break };
        let kind = int(message, size_of::<usize>()).zip(int(message, size_of::<usize>() + 4));
        match kind {
            Some((libc::SOL_SOCKET, libc::SCM_CREDENTIALS)) => {
                uid = uid.or(int(message, HEAD + 4).map(i32::cast_unsigned));
            }
            Some((libc::SOL_SOCKET, libc::SCM_RIGHTS)) => {
                let numbers = message.get(HEAD..).unwrap_or_default().chunks_exact(4);
                descriptors.extend(numbers.filter_map(|number| int(number, 0)));
            }
            _ => {}
        }
        control = control.get(aligned(length)..).unwrap_or_default();
    }
    (uid, descriptors)
}

/// The length padded to the kernel's alignment.
const fn aligned(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read as _};
    use std::os::unix::net::UnixDatagram;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Sends a datagram with four descriptors and closes them here. The read end of the pipe
    /// returns the end of the file once no process holds them any more.
    fn send_descriptors(to: &UnixDatagram) -> (io::Result<usize>, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let four = [writer.as_fd(); 4];
        assert!(control.push(SendAncillaryMessage::ScmRights(&four)));
        let sent = sendmsg(to, &[IoSlice::new(b"{}")], &mut control, SendFlags::empty());
        (sent.map_err(Into::into), reader)
    }

    fn is_held(mut pipe: &io::PipeReader) -> bool {
        rustix::io::ioctl_fionbio(pipe, true).unwrap();
        pipe.read(&mut [0]).is_err()
    }

    fn own() -> Option<u32> {
        Some(rustix::process::getuid().as_raw())
    }

    #[test]
    fn the_kernel_says_who_sent_it() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ask(&ours).unwrap();
        theirs.send(b"hello").unwrap();
        let mut buffer = [0; 16];
        let received = receive(&ours, &mut buffer).unwrap();
        assert_eq!(received, Received { length: 5, uid: own(), carried: false });
        assert_eq!(&buffer[..5], b"hello");
        assert_eq!(receive(&ours, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn descriptors_are_not_installed() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
        let (sent, pipe) = send_descriptors(&theirs);
        assert_eq!(sent.unwrap(), 2);
        assert!(is_held(&pipe), "by the message");
        let received = receive(&ours, &mut [0; 16]).unwrap();
        assert_eq!(received, Received { length: 2, uid: own(), carried: true });
        assert!(!is_held(&pipe));
    }

    #[test]
    fn what_is_installed_all_the_same_is_closed() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        // Without credentials, descriptors could take their room.
        let (sent, pipe) = send_descriptors(&theirs);
        assert_eq!(sent.unwrap(), 2);
        let received = receive(&ours, &mut [0; 16]).unwrap();
        assert_eq!(received, Received { length: 2, uid: None, carried: true });
        assert!(!is_held(&pipe));
        // With credentials and more room, descriptors could take the rest.
        rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
        let (_, pipe) = send_descriptors(&theirs);
        let received = receive_with::<128>(&ours, &mut [0; 16]).unwrap();
        assert_eq!(received, Received { length: 2, uid: own(), carried: true });
        assert!(!is_held(&pipe));
    }

    /// Kernels before 6.16 cannot refuse descriptors.
    #[test]
    fn descriptors_are_refused_at_their_sender() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ask(&ours).unwrap();
        let (sent, pipe) = send_descriptors(&theirs);
        match sent {
            Ok(_) => assert!(receive(&ours, &mut [0; 16]).unwrap().carried),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert!(!is_held(&pipe));
    }

    #[test]
    fn what_is_no_such_message_says_nothing() {
        for control in [&[][..], &[0; 8], &[0; 32], &[0xff; 32], &[16, 0, 0, 0, 0, 0, 0, 0], &[1; 64]] {
            assert_eq!(read(control), (None, Vec::new()));
        }
    }
}
