//! The request to stop, which all parts of a program share.
//!
//! A [`Shutdown`] is cheap to clone and can be awaited or polled. It is set once and never reset.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Reports whether the program has been asked to stop.
#[derive(Debug, Clone)]
pub struct Shutdown(CancellationToken);

/// Sets its [`Shutdown`]. Dropping the trigger sets nothing.
#[derive(Debug, Clone)]
pub struct Trigger(CancellationToken);

impl Shutdown {
    /// Set by SIGTERM or SIGINT. Must be called inside a Tokio runtime.
    pub fn on_signals() -> Self {
        let (trigger, shutdown) = Self::manual();
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(term), Ok(int)) => drop(tokio::spawn(wait_for_signal(term, int, trigger))),
            (Err(err), _) | (_, Err(err)) => {
                tracing::error!(%err, "cannot install signal handlers: this program stops only by SIGKILL");
            }
        }
        shutdown
    }

    /// Set by the trigger, for tests and programs that embed a service.
    pub fn manual() -> (Trigger, Self) {
        let token = CancellationToken::new();
        (Trigger(token.clone()), Self(token))
    }

    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    pub fn is_set(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Trigger {
    pub fn fire(&self) {
        self.0.cancel();
    }
}

async fn wait_for_signal(mut term: Signal, mut int: Signal, trigger: Trigger) {
    let name = tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "stopping");
    trigger.fire();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_sees_the_trigger() {
        let (trigger, shutdown) = Shutdown::manual();
        let clone = shutdown.clone();
        assert!(!clone.is_set());
        let waiter = tokio::spawn(async move { clone.wait().await });
        trigger.fire();
        waiter.await.unwrap();
        assert!(shutdown.is_set());
        shutdown.wait().await;
    }

    #[tokio::test]
    async fn sigterm_raises_it() {
        let shutdown = Shutdown::on_signals();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(5), shutdown.wait()).await.unwrap();
    }
}
