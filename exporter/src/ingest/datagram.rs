//! The datagram socket: one event a packet, for shells and cron jobs. The kernel gives the sender;
//! the end of a sender is not detected.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::Arc;
use std::time::Instant;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_sys::credentials::{self, Received};
use stepwatch_wire::{Event, MAX_EVENT_BYTES};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::launcher::Intake;
use super::packet_rate::PacketRate;
use crate::drops::Reason;
use crate::origin::Origin;
use crate::principal::Principal;

pub(super) async fn serve(socket: OwnedFd, intake: Intake, rate: Arc<PacketRate>, shutdown: Shutdown) {
    let socket = match UnixDatagram::from_std(StdDatagram::from(socket)) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, "cannot serve the datagram socket"),
    };
    if let Err(error) = credentials::ask(&socket) {
        tracing::warn!(%error, "the kernel does not give the senders of datagrams: they may not report runs of a user");
    }
    // One byte more than an event may have shows that there was more.
    let mut packet = vec![0; MAX_EVENT_BYTES + 1];
    loop {
        let received = tokio::select! {
            () = shutdown.wait() => return,
            received = receive(&socket, &mut packet) => received,
        };
        match received {
            Ok(received) if is_too_fast(&received, &rate) => {
                intake.hub.drops().refuse(Reason::Rate, Principal::from_uid(received.uid), 1);
            }
            Ok(received) => take(received, &packet, &intake),
            Err(error) => tracing::debug!(%error, "datagram socket"),
        }
    }
}

/// All senders share one queue, so a datagram that came too fast cannot wait: it is dropped.
fn is_too_fast(received: &Received, rate: &PacketRate) -> bool {
    // Senders without a user share one rate.
    !rate.admit(received.uid.unwrap_or(u32::MAX), Instant::now())
}

fn take(received: Received, packet: &[u8], intake: &Intake) {
    let drops = intake.hub.drops();
    if received.carried {
        drops.count(Reason::Descriptors);
    }
    if received.length > MAX_EVENT_BYTES {
        return drops.count(Reason::Oversize);
    }
    match Event::parse(&packet[..received.length]) {
        Ok(event) => drop(intake.publish(&Origin::Datagram(Principal::from_uid(received.uid)), event)),
        Err(error) => {
            drops.count(Reason::Malformed);
            tracing::debug!(%error, "malformed datagram");
        }
    }
}

/// The next datagram.
pub(crate) async fn receive(socket: &UnixDatagram, packet: &mut [u8]) -> io::Result<Received> {
    socket.async_io(Interest::READABLE, || credentials::receive(socket, packet)).await
}
