//! Datagrams that each carry four descriptors.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};

use crate::attack::{Attack, Target};

pub(crate) const ATTACK: Attack = Attack::new("sent-descriptors", act);

fn act(target: &Target) -> anyhow::Result<()> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(target.ingest.with_file_name("ingest.dgram"))?)?;
    let file = File::open("/dev/null")?;
    let descriptors = [file.as_fd(); 4];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        if sendmsg(&socket, &[IoSlice::new(b"{}")], &mut control, SendFlags::NOSIGNAL).is_err() {
            // Newer kernels refuse them.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
