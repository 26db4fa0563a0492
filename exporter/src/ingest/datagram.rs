//! The datagram socket: one event a packet, for shells and cron jobs. The kernel identifies the
//! sender of each. The exit of a sender is not detected.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::time::Instant;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_sys::credentials::{self, Received};
use stepwatch_wire::{Event, MAX_EVENT_BYTES};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::launcher::Intake;
use crate::drops::Reason;
use crate::origin::Origin;
use crate::principal::Principal;

pub(super) async fn serve(socket: OwnedFd, intake: Intake, shutdown: Shutdown) {
    let socket = match UnixDatagram::from_std(StdDatagram::from(socket)) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, "cannot serve the datagram socket"),
    };
    if let Err(error) = credentials::ask(&socket) {
        tracing::warn!(%error, "the kernel does not give the senders of datagrams: they may not report runs of a user");
    }
    // One byte more than an event may have, to detect that a datagram is longer.
    let mut packet = vec![0; MAX_EVENT_BYTES + 1];
    loop {
        let received = tokio::select! {
            () = shutdown.wait() => return,
            received = receive(&socket, &mut packet) => received,
        };
        match received {
            Ok(received) => take(received, &packet, &intake),
            Err(error) => tracing::debug!(%error, "datagram socket"),
        }
    }
}

fn take(received: Received, packet: &[u8], intake: &Intake) {
    let (principal, now) = (Principal::of_datagram(received.uid), Instant::now());
    let rate = intake.rates.of(principal, now);
    // All senders share one queue, so a datagram cannot wait for its turn.
    if rate.is_too_early(now) {
        intake.hub.drops().refuse(Reason::Rate, principal, 1);
    } else {
        rate.measure(|| read(received, principal, packet, intake));
    }
}

fn read(received: Received, principal: Principal, packet: &[u8], intake: &Intake) {
    let drops = intake.hub.drops();
    if received.carried {
        drops.count(Reason::Descriptors);
    }
    if received.length > MAX_EVENT_BYTES {
        return drops.count(Reason::Oversize);
    }
    match Event::parse(&packet[..received.length]) {
        Ok(event) => drop(intake.publish(&Origin::Datagram(principal), event)),
        Err(error) => {
            drops.count(Reason::Malformed);
            tracing::debug!(%error, "malformed datagram");
        }
    }
}

/// Receives the next datagram.
pub(crate) async fn receive(socket: &UnixDatagram, packet: &mut [u8]) -> io::Result<Received> {
    socket.async_io(Interest::READABLE, || credentials::receive(socket, packet)).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing;

    #[test]
    fn a_datagram_of_root_may_come_from_whoever_had_it_written() {
        let hub = testing::hub();
        let intake = Intake::new(hub.clone());
        let events = testing::published(&hub).len();
        let anns = br#"{"k":"step","run":"anns","step":1}"#;
        take(Received { length: anns.len(), uid: Some(1001), carried: false }, anns, &intake);
        let bye = br#"{"k":"bye","run":"anns"}"#;
        take(Received { length: bye.len(), uid: Some(0), carried: false }, bye, &intake);
        let kinds: Vec<_> = testing::published(&hub).into_iter().skip(events).map(|e| e.kind).collect();
        assert!(!kinds.contains(&stepwatch_wire::Kind::Bye), "{kinds:?}");
    }

    #[test]
    fn datagrams_of_a_user_that_is_too_fast_are_counted_with_whose_they_were() {
        let hub = testing::hub();
        let intake = Intake::new(hub.clone());
        let send = |uid| {
            let packet = br#"{"k":"step","run":"r","step":1}"#;
            take(Received { length: packet.len(), uid: Some(uid), carried: false }, packet, &intake);
        };
        let of_ann = intake.rates.of(Principal::User(1001), Instant::now());
        of_ann.count(Instant::now(), Duration::from_hours(1));
        send(1001);
        assert_eq!((testing::published(&hub).len(), hub.drops().get(Reason::Rate)), (0, 1));
        send(1002);
        assert_eq!(hub.drops().get(Reason::Rate), 1);
        assert!(!testing::published(&hub).is_empty());
    }
}
