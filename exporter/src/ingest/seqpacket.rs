//! The packet socket: one connection a process, one event a packet. The kernel identifies the
//! sender and reports when it exits.
//!
//! A connection that closes without a `bye` shows that its rank was killed, within microseconds and
//! without the rank's help. The hub is notified when the last peer closes, but not when the
//! exporter closes the connection on shutdown or over a limit.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::{Event, Kind, MAX_EVENT_BYTES};
use tokio::net::{UnixListener, UnixStream};

use super::connection_limit::{Counts, Holder, Seat};
use super::event_rate::{EventRate, timed};
use super::launcher::Intake;
use crate::drops::Reason;
use crate::origin::{Origin, Peer};
use crate::principal::Principal;
use crate::processes::stat::read_stat;
use crate::roots::Roots;
use crate::training::ProcessFate;

/// The most runs and ranks that one connection may report: one, or a launcher's few.
const MAX_IDENTITIES: usize = 64;
/// The time that the packets of one connection may take before other tasks run.
const IN_A_ROW: Duration = Duration::from_millis(1);
/// The most packets read from a connection that was closed for another; the kernel holds fewer.
const MAX_DRAINED: u32 = 1_000;
/// The time between two log lines about connections that were closed for others.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// The pause after an accept failed, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn serve(
    socket: OwnedFd,
    intake: Intake,
    counts: Arc<Counts>,
    max: usize,
    shutdown: Shutdown,
) {
    // A listening packet socket is used like a stream socket, and so are its connections. Only a
    // read differs: it returns one packet.
    let listener = match UnixListener::from_std(StdListener::from(socket)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve the ingest socket"),
    };
    let mut logged: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            () = shutdown.wait() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Connection::new(stream, &intake);
                let Some(seat) = Seat::take(&counts, &connection.peer, max) else {
                    intake.hub.refuse_connection(connection.peer, Reason::Connections);
                    continue;
                };
                if let Some(Holder { uid, pid }) = seat.evicted {
                    intake.hub.drops().refuse(Reason::Share, Principal::from_uid(Some(uid)), 1);
                    if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                        logged = Some(Instant::now());
                        let Peer { uid: by_uid, pid: by_pid, .. } = connection.peer;
                        tracing::warn!(
                            uid,
                            pid,
                            by_uid,
                            by_pid,
                            "ingest.max_connections is reached: the user with the most loses one to another"
                        );
                    }
                }
                tokio::spawn(connection.run(seat, shutdown.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections of the ingest socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Connection {
    stream: UnixStream,
    intake: Intake,
    rate: Arc<EventRate>,
    peer: Peer,
    /// Run, rank and world of the last `hello`, for packets that do not repeat them.
    said: Event,
    identities: BTreeSet<(String, u32)>,
    /// A parsed event that is not published yet: the connection may be closed for another
    /// meanwhile.
    parsed: Option<Event>,
}

/// Which side closed a connection.
#[derive(Debug, PartialEq, Eq)]
enum Closed {
    ByPeer,
    ByUs,
}

impl Connection {
    fn new(stream: UnixStream, intake: &Intake) -> Self {
        let credentials = stream.peer_cred().ok();
        let pid = credentials.and_then(|c| c.pid()).and_then(|p| u32::try_from(p).ok()).filter(|p| *p > 0);
        let uid = credentials.map_or(u32::MAX, |c| c.uid());
        let peer = Peer { connection: intake.hub.connection(), pid, uid };
        Self {
            stream,
            intake: intake.clone(),
            rate: intake.rates.of(Principal::from_uid(Some(uid)), Instant::now()),
            peer,
            said: Event::new(Kind::Hello),
            identities: BTreeSet::new(),
            parsed: None,
        }
    }

    async fn run(mut self, seat: Seat, shutdown: Shutdown) {
        let closed = tokio::select! {
            () = shutdown.wait() => Closed::ByUs,
            () = seat.cut.cancelled() => Closed::ByUs,
            closed = self.read(&seat) => closed,
        };
        if seat.cut.is_cancelled() {
            self.drain();
        }
        self.rate.measure(|| {
            if seat.cut.is_cancelled() {
                self.intake.hub.left(self.peer);
            }
            if closed == Closed::ByPeer && !shutdown.is_set() {
                self.intake.hub.closed(self.peer, fate(self.peer.pid));
            }
        });
    }

    async fn read(&mut self, seat: &Seat) -> Closed {
        let rate = Arc::clone(&self.rate);
        let mut packet = vec![0; MAX_EVENT_BYTES + 1];
        let mut in_a_row = Duration::ZERO;
        loop {
            if self.stream.readable().await.is_err() {
                return Closed::ByPeer;
            }
            // The wait is before the read, so that a sender that reconnects has to wait too.
            let turn = rate.turn().await;
            match self.stream.try_read(&mut packet) {
                Ok(0) if self.is_over(&mut packet) => return Closed::ByPeer,
                Ok(n) => {
                    seat.spoke();
                    let (event, spent) = timed(|| self.parse(&packet[..n]));
                    let is_hello = event.as_ref().is_some_and(|event| event.kind == Kind::Hello);
                    // A hello may take long, and other events of the user do not wait for it.
                    self.parsed = event;
                    in_a_row += if is_hello {
                        drop(turn);
                        let _turn = rate.hello().await;
                        self.take_in(spent)
                    } else {
                        let _turn = turn;
                        self.take_in(spent)
                    };
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return Closed::ByPeer,
            }
            if in_a_row >= IN_A_ROW {
                in_a_row = Duration::ZERO;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Reads the packets that arrived before the connection was closed for another. The peer cannot
    /// send any more, so no packet that was sent is lost, unless its user sends too fast.
    fn drain(&mut self) {
        self.take_late(Duration::ZERO);
        // The connection may be gone already.
        let _ = rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Read);
        let mut packet = vec![0; MAX_EVENT_BYTES + 1];
        for _ in 0..MAX_DRAINED {
            let received = rustix::net::recv(self.stream.as_fd(), packet.as_mut_slice(), RecvFlags::DONTWAIT);
            let Ok((n @ 1.., _)) = received else { return };
            if self.rate.is_too_early(Instant::now()) {
                let whose = Principal::from_uid(Some(self.peer.uid));
                self.intake.hub.drops().refuse(Reason::Rate, whose, 1);
            } else {
                self.packet(&packet[..n]);
            }
        }
    }

    /// Whether a read of zero bytes is the end. An empty packet reads the same; it is the end if
    /// the peer has hung up and there is nothing after it.
    fn is_over(&mut self, packet: &mut [u8]) -> bool {
        let fd = self.stream.as_fd();
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)];
        let asked = poll(&mut polled, Some(&Timespec::default()));
        let gone = polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR);
        if asked.is_err() || !gone {
            return asked.is_err();
        }
        match self.stream.try_read(packet) {
            Ok(0) => true,
            Ok(n) => {
                // The caller counts the empty packet.
                let rest = packet[..n].to_vec();
                self.packet(&rest);
                false
            }
            Err(_) => true,
        }
    }

    fn packet(&mut self, packet: &[u8]) {
        let (event, spent) = timed(|| self.parse(packet));
        self.parsed = event;
        self.take_late(spent);
    }

    fn parse(&self, packet: &[u8]) -> Option<Event> {
        if packet.len() > MAX_EVENT_BYTES {
            self.intake.hub.drops().count(Reason::Oversize);
            return None;
        }
        let event = Event::parse(packet);
        event
            .inspect_err(|error| {
                self.intake.hub.drops().count(Reason::Malformed);
                tracing::debug!(pid = self.peer.pid, %error, "malformed packet");
            })
            .ok()
    }

    /// As [`Self::take_in`], for an event that cannot wait for its turn. A `hello` may block, so it
    /// is refused while others are read.
    fn take_late(&mut self, spent: Duration) {
        let rate = Arc::clone(&self.rate);
        let is_hello = self.parsed.as_ref().is_some_and(|event| event.kind == Kind::Hello);
        let turn = if is_hello { rate.hello_now() } else { None };
        if is_hello && turn.is_none() {
            self.parsed = None;
            let whose = Principal::from_uid(Some(self.peer.uid));
            self.intake.hub.drops().refuse(Reason::Rate, whose, 1);
        }
        self.take_in(spent);
    }

    /// Publishes the parsed event and counts it. Returns the processor time, with that of the
    /// parsing.
    fn take_in(&mut self, spent: Duration) -> Duration {
        let ((), took) = timed(|| {
            if let Some(event) = self.parsed.take() {
                self.event(event);
            }
        });
        self.rate.count(Instant::now(), spent + took);
        spent + took
    }

    fn event(&mut self, mut event: Event) {
        if event.kind == Kind::Hello {
            self.said = Event {
                run: event.run.clone(),
                rank: event.rank,
                world: event.world,
                ..Event::new(Kind::Hello)
            };
        }
        if event.run.is_none() || event.run == self.said.run {
            event.run = event.run.or_else(|| self.said.run.clone());
            event.rank = event.rank.or(self.said.rank);
            event.world = event.world.or(self.said.world);
        }
        if let Some(run) = &event.run {
            let identity = (run.clone(), event.rank.unwrap_or(0));
            if !self.identities.contains(&identity) {
                if self.identities.len() >= MAX_IDENTITIES {
                    return self.intake.hub.refuse_connection(self.peer, Reason::Identities);
                }
                self.identities.insert(identity);
            }
        }
        self.intake.publish(&Origin::Peer(self.peer), event);
    }
}

/// The fate of the process whose connection closed. Its files are closed before it leaves the
/// process table, so a process that has begun to exit counts as gone.
fn fate(pid: Option<u32>) -> ProcessFate {
    let Some(pid) = pid else { return ProcessFate::Unknown };
    match read_stat(&Roots::default(), pid) {
        Some(stat) if !stat.is_over() => ProcessFate::Running,
        _ => ProcessFate::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Hub;
    use crate::testing;

    /// A connection whose peer has sent three steps and exited.
    fn connection(hub: &Hub) -> Connection {
        use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        for step in 1..=3 {
            let event = format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"loss":2.5}}}}"#);
            rustix::net::send(&theirs, event.as_bytes(), SendFlags::empty()).unwrap();
        }
        Connection::new(UnixStream::from_std(ours.into()).unwrap(), &Intake::new(hub.clone()))
    }

    fn steps(hub: &Hub) -> Vec<i64> {
        let published = testing::published(hub);
        published.iter().filter(|event| event.kind == Kind::Step).filter_map(|event| event.step).collect()
    }

    #[tokio::test]
    async fn what_came_before_a_connection_was_closed_for_another_is_read() {
        let hub = testing::hub();
        let connection = connection(&hub);
        let seat = Seat::take(&Arc::default(), &connection.peer, 1).unwrap();
        seat.cut.cancel();
        connection.run(seat, Shutdown::manual().1).await;
        assert_eq!(steps(&hub), [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_for_another_does_not_wait_with_its_hello() {
        let hub = testing::hub();
        let mut connection = connection(&hub);
        connection.parsed = Event::parse(br#"{"k":"hello","run":"late","rank":0}"#).ok();
        let seat = Seat::take(&Arc::default(), &connection.peer, 1).unwrap();
        seat.cut.cancel();
        let rate = Arc::clone(&connection.rate);
        let first = rate.hello().await;
        connection.run(seat, Shutdown::manual().1).await;
        drop(first);
        assert_eq!((steps(&hub), hub.drops().get(Reason::Rate)), (vec![1, 2, 3], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_of_a_user_that_was_too_fast_waits() {
        let hub = testing::hub();
        let connection = connection(&hub);
        let throttled = connection.intake.rates.throttled();
        connection.rate.count(Instant::now(), Duration::from_hours(1));
        let seat = Seat::take(&Arc::default(), &connection.peer, 1).unwrap();
        // The rate uses the real clock, which hardly advances here: after each wait on the test's
        // clock, one more packet is read.
        connection.run(seat, Shutdown::manual().1).await;
        assert!(throttled.load(std::sync::atomic::Ordering::Relaxed) >= 3, "before each packet");
        assert_eq!(steps(&hub), [1, 2, 3], "and nothing is lost");
    }

    #[tokio::test]
    async fn what_a_user_sent_too_fast_is_counted_when_its_connection_is_closed_for_another() {
        let hub = testing::hub();
        let connection = connection(&hub);
        connection.rate.count(Instant::now(), Duration::from_hours(1));
        let seat = Seat::take(&Arc::default(), &connection.peer, 1).unwrap();
        seat.cut.cancel();
        connection.run(seat, Shutdown::manual().1).await;
        assert_eq!(steps(&hub), [0_i64; 0]);
        assert_eq!(hub.drops().get(Reason::Rate), 3);
    }
}
