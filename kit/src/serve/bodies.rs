//! How much of request bodies is held at once, by all connections together.
//!
//! A limit of one body bounds nothing by itself: as many bodies are held as there are connections.
//! So each byte that arrives is taken from one budget and given back when its request is answered;
//! a body for which there is no room is refused with 503, which every sender of telemetry repeats.
//! Bodies must also arrive within a time, or a slow one would hold its bytes for as long as it
//! likes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::connections::Entered;

/// Bodies up to this size may use the part of the budget that larger ones may not: an event or an
/// acknowledgement gets through while somebody fills the rest.
const SMALL: usize = 64 << 10;
/// One part in so many is for small bodies alone.
const RESERVED_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    held: AtomicUsize,
}

/// What one request holds of the budget, until the last of its owners drops it.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    held: AtomicUsize,
    refused: AtomicBool,
}

/// A body whose bytes are counted as they arrive.
#[derive(Debug)]
pub(super) struct Counted<B> {
    body: B,
    share: Arc<Share>,
    entered: Arc<Entered>,
    limit: Duration,
    /// From the first look at the body.
    deadline: Option<Pin<Box<Sleep>>>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Budget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: AtomicUsize::new(0) })
    }

    pub(super) fn share(self: &Arc<Self>) -> Arc<Share> {
        let (budget, held) = (Arc::clone(self), AtomicUsize::new(0));
        Arc::new(Share { budget, held, refused: AtomicBool::new(false) })
    }

    /// Whether a body of this size could be taken now.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let held = self.held.load(Ordering::Relaxed) as u64;
        held.saturating_add(bytes) <= self.limit_for(bytes as usize) as u64
    }

    fn limit_for(&self, body: usize) -> usize {
        if body <= SMALL { self.limit } else { self.limit - self.limit / RESERVED_PART }
    }
}

impl Share {
    fn take(&self, bytes: usize) -> bool {
        let limit = self.budget.limit_for(self.held.load(Ordering::Relaxed) + bytes);
        let grown = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = self.budget.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if taken {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Whether the body was broken off for want of room or time.
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
        self.budget.held.fetch_sub(*self.held.get_mut(), Ordering::Relaxed);
    }
}

impl<B> Counted<B> {
    pub(super) fn new(body: B, share: Arc<Share>, entered: Arc<Entered>, limit: Duration) -> Self {
        Self { body, share, entered, limit, deadline: None }
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
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        this.entered.waits_for_client(polled.is_pending());
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                if frame.data_ref().is_some_and(|data| !this.share.take(data.len())) {
                    return Poll::Ready(Some(Err(this.share.refuse("no room for the body"))));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => {
                let limit = this.limit;
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
                std::task::ready!(deadline.as_mut().poll(cx));
                Poll::Ready(Some(Err(this.share.refuse("the body took too long"))))
            }
            ended @ Poll::Ready(_) => ended,
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
    use super::super::connections::{Client, Connections};
    use super::*;

    /// A body that nothing comes of.
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

    #[test]
    fn a_part_is_kept_for_small_bodies_and_all_is_given_back() {
        let budget = Budget::new(1 << 20);
        let large = budget.share();
        for _ in 0..768 / 4 {
            assert!(large.take(4 << 10));
        }
        assert!(!large.take(4 << 10), "three quarters are all that large bodies get");
        assert!(!budget.has_room(SMALL as u64 + 1) && budget.has_room(SMALL as u64));
        let small = [budget.share(), budget.share(), budget.share(), budget.share()];
        assert!(small.iter().all(|s| s.take(SMALL)));
        assert!(!budget.share().take(1), "nothing is left");
        drop(large);
        drop(small);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_broken_off() {
        use http_body_util::BodyExt as _;
        let budget = Budget::new(1 << 20);
        let share = budget.share();
        let client = Client::of([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let seat = Connections::new(2, ServeMetrics::default()).admit(client);
        let entered = Arc::new(seat.enter(false).unwrap());
        let counted = Counted::new(Silent, Arc::clone(&share), entered, Duration::from_secs(10));
        assert!(counted.collect().await.is_err());
        assert!(share.was_refused());
    }
}
