//! The datagram socket: one event a packet, for shells and cron jobs. It knows nothing of who sends, and a sender that goes
//! away is not missed.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::{Event, MAX_EVENT_BYTES};
use tokio::net::UnixDatagram;

use crate::drops::Reason;
use crate::hub::{Hub, Origin};

pub(super) async fn serve(socket: OwnedFd, hub: Hub, shutdown: Shutdown) {
    let socket = match UnixDatagram::from_std(StdDatagram::from(socket)) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, "cannot serve the datagram socket"),
    };
    // One byte more than an event may have shows that there was more.
    let mut packet = vec![0; MAX_EVENT_BYTES + 1];
    loop {
        let received = tokio::select! {
            () = shutdown.wait() => return,
            received = socket.recv(&mut packet) => received,
        };
        match received {
            Ok(n) if n > MAX_EVENT_BYTES => hub.drops().count(Reason::Oversize),
            Ok(n) => match Event::parse(&packet[..n]) {
                Ok(event) => drop(hub.publish(Origin::Datagram, event)),
                Err(error) => {
                    hub.drops().count(Reason::Malformed);
                    tracing::debug!(%error, "malformed datagram");
                }
            },
            Err(error) => tracing::debug!(%error, "datagram socket"),
        }
    }
}
