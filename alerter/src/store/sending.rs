//! Sends only while no other replica can have taken over.

use std::pin::pin;
use std::task::Poll;

use super::handle::Store;
use crate::notify::Failure;

/// Something was not sent, or not to its end, because another replica may have taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MayNotSend {
    /// Whether it had begun, so that it may have arrived.
    pub began: bool,
}

impl From<MayNotSend> for Failure {
    fn from(stopped: MayNotSend) -> Self {
        Self::transient("the lease has expired, so that another replica may send this", stopped.began)
    }
}

impl Store {
    /// Whether this process may send messages: no other replica can have taken over.
    pub(crate) fn may_send(&self) -> bool {
        self.inner.lease.as_ref().is_none_or(|lease| lease.holds())
    }

    /// Sends as long as this process may. A process that is stopped while it sends, and continues
    /// after another one has taken over, drops the rest: a request may have several steps.
    pub(crate) async fn while_may_send<T>(&self, sending: impl Future<Output = T>) -> Result<T, MayNotSend> {
        only_while(|| self.may_send(), sending).await
    }
}

async fn only_while<T>(may: impl Fn() -> bool, sending: impl Future<Output = T>) -> Result<T, MayNotSend> {
    let mut sending = pin!(sending);
    let mut began = false;
    std::future::poll_fn(|cx| {
        if !may() {
            return Poll::Ready(Err(MayNotSend { began }));
        }
        began = true;
        sending.as_mut().poll(cx).map(Ok)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A message of two steps; the process is stopped after `steps` of them.
    async fn sent(steps: usize) -> (Result<(), MayNotSend>, usize) {
        let (done, lease) = (RefCell::new(0), Cell::new(steps > 0));
        let sending = async {
            for _ in 0..2 {
                *done.borrow_mut() += 1;
                lease.set(*done.borrow() < steps);
                tokio::task::yield_now().await;
            }
        };
        let result = only_while(|| lease.get(), sending).await;
        let done = *done.borrow();
        (result, done)
    }

    #[tokio::test]
    async fn a_replaced_process_does_not_continue_a_message() {
        assert_eq!(sent(0).await, (Err(MayNotSend { began: false }), 0));
        assert_eq!(sent(1).await, (Err(MayNotSend { began: true }), 1));
        assert_eq!(sent(3).await, (Ok(()), 2));
    }
}
