//! Datagrams that each carry four descriptors.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::attack::{Attack, Packets, Target};

pub(crate) const ATTACK: Attack = Attack::new("sent-descriptors", act);

fn act(target: &Target) -> anyhow::Result<()> {
    let Packets(socket) = target.datagrams()?;
    let file = File::open("/dev/null")?;
    let descriptors = [file.as_fd(); 4];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        if sendmsg(&socket, &[IoSlice::new(b"{}")], &mut control, SendFlags::NOSIGNAL).is_err() {
            // Newer kernels refuse these datagrams.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
