//! Limits the bytes of request bodies in memory, for all connections together and per client.
//!
//! The limit of one body is not enough, because there are as many bodies as connections. So every
//! byte that arrives is taken from one budget and returned when its request is answered, with the
//! bytes read ahead of a body and the overhead of each of its parts. If there is no room, the
//! oldest body that waits for more bytes is aborted with 503, which every sender of telemetry
//! retries. So a client that holds bodies back does not keep complete ones out. Bodies must also
//! arrive within a time limit, or a slow one would hold its bytes without end.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::connections::{Client, Entered};

/// The divisor of the budget that gives the most bytes of one client.
const CLIENT_PART: usize = 2;
/// The divisor of a client's bytes that gives its additional room for overhead.
const BESIDE_PART: usize = 8;
/// The overhead in bytes of each part of a body until the body is complete: its handle and the
/// allocator's. A body that arrives in single bytes has as many parts.
const PART_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    bodies: Mutex<Bodies>,
}

#[derive(Debug, Default)]
struct Bodies {
    next: u64,
    /// The bodies by age, the oldest first.
    by_id: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    client: Client,
    bytes: usize,
    /// The waker of the task that waits for more of the body.
    waiting: Option<Waker>,
    broken_off: bool,
}

/// The part of the budget that one request holds, until its last owner drops it.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    id: u64,
    refused: AtomicBool,
}

/// A body whose bytes are counted on arrival.
#[derive(Debug)]
pub(super) struct Counted<B> {
    body: B,
    share: Arc<Share>,
    entered: Arc<Entered>,
    limit: Duration,
    /// Bytes that the connection may have read ahead of the body; counted on the first poll of the
    /// body.
    ahead: usize,
    /// Runs from the first time that the body has to wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Budget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, bodies: Mutex::default() })
    }

    pub(super) fn share(self: &Arc<Self>, client: Client) -> Arc<Share> {
        let mut bodies = self.locked();
        let id = bodies.next;
        bodies.next += 1;
        bodies.by_id.insert(id, Held { client, bytes: 0, waiting: None, broken_off: false });
        Arc::new(Share { budget: Arc::clone(self), id, refused: AtomicBool::new(false) })
    }

    /// The most bytes that one client may hold; a larger body is never accepted.
    pub(super) fn limit_per_client(&self) -> usize {
        self.limit / CLIENT_PART
    }

    /// The most bytes of one client, overhead included.
    fn quota(&self) -> usize {
        self.limit_per_client() + self.limit_per_client() / BESIDE_PART
    }

    fn locked(&self) -> MutexGuard<'_, Bodies> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bodies {
    fn held_by(&self, client: Client) -> usize {
        self.by_id.values().filter(|h| h.client == client).map(|h| h.bytes).sum()
    }

    /// Aborts the oldest waiting body of `client`, or else of the client that holds most and more
    /// than `least`. Returns false if there is none.
    fn make_room(&mut self, client: Option<Client>, least: usize, except: u64) -> bool {
        let mut held = BTreeMap::<Client, usize>::new();
        for body in self.by_id.values() {
            *held.entry(body.client).or_default() += body.bytes;
        }
        let ranked = self.by_id.iter().filter(|(id, h)| {
            let theirs = client.map_or(held[&h.client] > least, |client| h.client == client);
            theirs && **id != except && h.bytes > 0 && h.waiting.is_some()
        });
        let victim = ranked.min_by_key(|(id, h)| (usize::MAX - held[&h.client], **id)).map(|(id, _)| *id);
        let Some(body) = victim.and_then(|id| self.by_id.get_mut(&id)) else { return false };
        // Its task drops the received bytes as soon as it runs.
        body.bytes = 0;
        body.broken_off = true;
        if let Some(waker) = body.waiting.take() {
            waker.wake();
        }
        true
    }
}

impl Share {
    /// Counts bytes that arrived. Returns false if there is no room for them.
    fn take(&self, bytes: usize) -> bool {
        let mut bodies = self.budget.locked();
        let Some(own) = bodies.by_id.get_mut(&self.id) else { return false };
        own.waiting = None;
        if own.broken_off {
            return false;
        }
        let client = own.client;
        loop {
            let held = bodies.held_by(client).saturating_add(bytes);
            let all: usize = bodies.by_id.values().map(|h| h.bytes).sum();
            let made = if held > self.budget.quota() {
                bodies.make_room(Some(client), 0, self.id)
            } else if all + bytes > self.budget.limit {
                bodies.make_room(None, held, self.id)
            } else {
                break;
            };
            if !made {
                return false;
            }
        }
        if let Some(own) = bodies.by_id.get_mut(&self.id) {
            own.bytes += bytes;
        }
        true
    }

    /// Marks the body as waiting. Returns false if it was aborted for others.
    fn wait(&self, waker: &Waker) -> bool {
        let mut bodies = self.budget.locked();
        let Some(own) = bodies.by_id.get_mut(&self.id) else { return false };
        own.waiting = Some(waker.clone());
        !own.broken_off
    }

    /// Whether the body was aborted for lack of room or time.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn refuse(&self, why: &'static str) -> BoxError {
        self.refused.store(true, Ordering::Relaxed);
        why.into()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.locked().by_id.remove(&self.id);
    }
}

impl<B> Counted<B> {
    pub(super) fn new(
        body: B,
        share: Arc<Share>,
        entered: Arc<Entered>,
        limit: Duration,
        ahead: usize,
    ) -> Self {
        Self { body, share, entered, limit, ahead, deadline: None }
    }
}

impl<B> Body for Counted<B>
where
    B: Body<Data = Bytes, Error = BoxError> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if !this.share.take(std::mem::take(&mut this.ahead)) {
            return Poll::Ready(Some(Err(this.share.refuse("no room for the body"))));
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        this.entered.waits_for_client(polled.is_pending());
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                if !this.share.take(frame.data_ref().map_or(0, |data| data.len() + PART_BYTES)) {
                    return Poll::Ready(Some(Err(this.share.refuse("no room for the body"))));
                }
                // A part is a slice of the connection's read buffer, and would keep the whole
                // buffer, which may be thousands of times as large.
                Poll::Ready(Some(Ok(frame.map_data(|data| Bytes::copy_from_slice(&data)))))
            }
            Poll::Pending => {
                if !this.share.wait(cx.waker()) {
                    return Poll::Ready(Some(Err(this.share.refuse("no room for the body"))));
                }
                let limit = this.limit;
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
                std::task::ready!(deadline.as_mut().poll(cx));
                Poll::Ready(Some(Err(this.share.refuse("the body took too long"))))
            }
            ended @ Poll::Ready(_) => {
                // The body was aborted just before its last part arrived.
                if !this.share.take(0) {
                    return Poll::Ready(Some(Err(this.share.refuse("no room for the body"))));
                }
                ended
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ServeMetrics;
    use super::super::connections::Connections;
    use super::*;

    /// A body that never yields a part.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Pending
        }
    }

    fn nth(n: u8) -> Client {
        Client::from_addresses([10, 0, 0, n].into(), [192, 0, 2, 1].into())
    }

    fn waiting(budget: &Arc<Budget>, n: u8, bytes: usize) -> Arc<Share> {
        let share = budget.share(nth(n));
        assert!(share.take(bytes) && share.wait(Waker::noop()));
        share
    }

    #[test]
    fn a_client_gets_half_and_all_is_given_back() {
        let budget = Budget::new(1 << 20);
        // Half of the budget in bytes, and an eighth of that as overhead.
        let small: Vec<_> = (0..9).map(|_| budget.share(nth(1))).collect();
        assert!(small.iter().all(|s| s.take(64 << 10)));
        assert!(!budget.share(nth(1)).take(1), "what does not wait is not broken off");
        let other = budget.share(nth(2));
        assert!(other.take(448 << 10) && !other.take(1));
        drop((small, other));
        assert!(budget.share(nth(1)).take(512 << 10));
        assert!(budget.locked().by_id.is_empty());
    }

    #[test]
    fn bodies_that_wait_make_room_for_their_clients_next_and_the_oldest_first() {
        let budget = Budget::new(16 << 20);
        let held: Vec<_> = (0..300).map(|_| waiting(&budget, 1, (64 << 10) - 1)).collect();
        assert!(budget.locked().held_by(nth(1)) <= 9 << 20);
        let genuine = budget.share(nth(1));
        assert!(genuine.take(64 << 10));
        let kept = held.iter().filter(|s| s.wait(Waker::noop())).count();
        assert_eq!(kept, 143);
        assert!(held[299].wait(Waker::noop()) && !held[0].wait(Waker::noop()));
        assert!(!held[0].take(1), "what was broken off stays so");
    }

    #[test]
    fn where_many_clients_hold_all_whoever_holds_most_makes_room_for_one_with_less() {
        let budget = Budget::new(16 << 20);
        let held: Vec<_> = (0..4).map(|n| waiting(&budget, n, 4 << 20)).collect();
        assert!(!budget.share(nth(5)).take(4 << 20), "nobody holds more than that");
        assert!(budget.share(nth(5)).take(64 << 10));
        assert!(!held[0].wait(Waker::noop()) && held[1].wait(Waker::noop()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_broken_off() {
        use http_body_util::BodyExt as _;
        let budget = Budget::new(1 << 20);
        let share = budget.share(nth(1));
        let seat = Connections::new(2, 1 << 20, ServeMetrics::default()).admit(nth(1));
        let entered = Arc::new(seat.enter(false).unwrap());
        let counted = Counted::new(Silent, Arc::clone(&share), entered, Duration::from_secs(10), 16 << 10);
        assert!(counted.collect().await.is_err());
        assert!(share.was_refused());
    }

    /// Parts of one byte, each a slice of a buffer, as a connection reads them.
    struct Cut;

    impl Body for Cut {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; 8 << 10]).slice(..1)))))
        }
    }

    #[tokio::test]
    async fn a_body_counts_with_all_that_it_holds() {
        use http_body_util::BodyExt as _;
        let budget = Budget::new(1 << 20);
        let share = budget.share(nth(1));
        let seat = Connections::new(2, 1 << 20, ServeMetrics::default()).admit(nth(1));
        let entered = Arc::new(seat.enter(false).unwrap());
        let mut counted = Counted::new(Cut, Arc::clone(&share), entered, Duration::from_secs(10), 16 << 10);
        for part in 1..=100 {
            let data = counted.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(budget.locked().held_by(nth(1)), (16 << 10) + part * (1 + PART_BYTES));
            // The part holds no other bytes: only the sole owner of a buffer may write to it.
            assert!(data.try_into_mut().is_ok_and(|own| own.capacity() < 64));
        }
    }
}
