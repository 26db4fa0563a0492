//! A start that the store prevents: every receiver that wakes is notified, and then the process
//! ends.
//!
//! Nothing can be stored, and the supervisor restarts the alerter repeatedly. So each of these
//! starts creates the same message under the same key. The incident's id depends on the last known
//! identity of the database, so that it changes once the alerter has run again. A file next to the
//! database lists the notified receivers, which are not notified again within an hour, because not
//! every receiver recognises a repeated message.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::iter;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sha2::{Digest as _, Sha256};
use stepwatch_engine::{Engine, EngineConfig};
use stepwatch_model::time::Ts;
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, Input, Notification};
use tokio::time::Instant;

use super::deliver::attempt;
use super::destination::Receivers;
use crate::errors::chain;
use crate::notify::{FailureClass, Notifier};
use crate::store::{Claim, StoreError, hidden_beside};
use crate::templates::Templates;

/// The longest time that a receiver may delay the end of the start.
const NOTIFY_MAX: Duration = Duration::from_secs(10);
/// The wait between two attempts at a receiver.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The time after which receivers are notified again, if the fault persists.
const NOTIFY_AGAIN: Duration = Duration::from_hours(1);

/// The data that is needed to notify people of a store that does not open.
#[derive(Debug)]
pub(crate) struct Unopened {
    pub(crate) database: PathBuf,
    pub(crate) engine: EngineConfig,
    pub(crate) receivers: Receivers,
    pub(crate) templates: Arc<Templates>,
}

impl Unopened {
    /// Notifies every receiver that wakes, within a short time limit.
    pub(crate) async fn notify(self, err: &StoreError, now: Ts) {
        // Another alerter has the database and is at work.
        if matches!(err, StoreError::InUse { .. }) {
            return;
        }
        let incident = self.incident();
        let file = hidden_beside(&self.database, "reported");
        let mut notified = notified_of(&file, &incident);
        let notices = self.notices(&incident, &format!("the alerter does not start: {}", chain(err)), now);
        let deadline = Instant::now() + NOTIFY_MAX;
        let sent = notices.into_iter().filter(|n| !notified.contains(&n.receiver)).filter_map(|n| {
            let notifier = Arc::clone(self.receivers.get(&n.receiver)?);
            Some(async move { send(&*notifier, n, deadline, now).await })
        });
        let before = notified.len();
        notified.extend(join_all(sent).await.into_iter().flatten());
        if notified.len() > before
            && let Err(err) = note(&file, &incident, &notified)
        {
            let path = file.display();
            tracing::warn!(%err, %path, "cannot record who was notified: the next start notifies them again");
        }
    }

    fn incident(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.database.as_os_str().as_encoded_bytes());
        hash.update(fs::read(hidden_beside(&self.database, "identity")).unwrap_or_default());
        format!("start-{}", hex::encode(&hash.finalize()[..8]))
    }

    /// The engine's messages about a store that refuses writes.
    fn notices(&self, incident: &str, fault: &str, now: Ts) -> Vec<Notification> {
        let EngineConfig { detectors, responder } = self.engine.clone();
        // This incident has no page to link to.
        let responder = ResponderConfig { external_url: None, ..responder };
        let mut effects = Vec::new();
        let own = Input::Store { fault: Some(fault), recorded: None };
        Engine::new(EngineConfig { detectors, responder }).handle(now, own, &mut effects);
        let mut notices = Vec::new();
        for effect in effects {
            let Effect::Notify(mut n) = effect else { continue };
            incident.clone_into(&mut n.incident);
            incident.clone_into(&mut n.message.incident);
            n.idem_key = format!("{incident}/{}/{}", n.receiver, n.seq);
            // If a template fails, the built-in text remains.
            drop(self.templates.dress(&mut n));
            notices.push(*n);
        }
        notices
    }
}

/// Tries to send a message until the deadline; returns the receiver if it accepted.
async fn send(notifier: &dyn Notifier, n: Notification, deadline: Instant, now: Ts) -> Option<String> {
    let claim = Claim {
        notification: n,
        // An earlier start may have sent it.
        ambiguous: true,
        attempts: 0,
        created_at: now,
        memory: None,
        neighbour: None,
        ring: None,
        unsure: Vec::new(),
        report: None,
    };
    let receiver = claim.notification.receiver.as_str();
    let tries = async {
        loop {
            let Err(failure) = attempt(notifier, &claim, None, now).await else {
                tracing::info!(receiver, "notified that the alerter does not start");
                return Some(receiver.to_owned());
            };
            let error = failure.error;
            tracing::error!(receiver, error, "not notified that the alerter does not start");
            if failure.class == FailureClass::Permanent {
                return None;
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    };
    tokio::time::timeout_at(deadline, tries).await.unwrap_or_else(|_| {
        tracing::error!(receiver, "not notified in time that the alerter does not start");
        None
    })
}

/// The receivers that were notified of this incident within the last hour.
fn notified_of(path: &Path, incident: &str) -> BTreeSet<String> {
    let age = fs::metadata(path).and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
    if age.is_none_or(|age| age >= NOTIFY_AGAIN) {
        return BTreeSet::new();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() == Some(incident) { lines.map(str::to_owned).collect() } else { BTreeSet::new() }
}

fn note(path: &Path, incident: &str, notified: &BTreeSet<String>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let lines: Vec<&str> = iter::once(incident).chain(notified.iter().map(String::as_str)).collect();
    file.write_all(lines.join("\n").as_bytes())
}
