//! A start that its store does not let happen: whoever can be woken is told, and then it ends.
//!
//! Nothing can be recorded, and whoever supervises the alerter starts it again and again. So each
//! of these starts makes the same message, under the same key, of an incident whose id is made of
//! what the database was last known to be: once the alerter has run again, another one is made.
//! Whoever was told is noted beside the database, and not told again within the hour: not every
//! receiver knows what it was told before.

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
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, Input, Notification};
use stepwatch_respond::route::STORE;
use tokio::time::Instant;

use super::Receivers;
use super::deliver::attempt;
use crate::errors::chain;
use crate::notify::{FailureClass, Notifier};
use crate::store::{Claim, StoreError, hidden_beside};
use crate::templates::Templates;

/// No receiver holds up the end of the start for longer.
const TELL_MAX: Duration = Duration::from_secs(10);
/// Between two attempts to tell a receiver.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// What was told is told again when it is so old and still true.
const TELL_AGAIN: Duration = Duration::from_hours(1);

/// All that is needed to tell that the store does not open.
#[derive(Debug)]
pub(crate) struct Unopened {
    pub(crate) database: PathBuf,
    pub(crate) engine: EngineConfig,
    pub(crate) receivers: Receivers,
    pub(crate) templates: Arc<Templates>,
}

impl Unopened {
    /// Tells every receiver that wakes, within a short time.
    pub(crate) async fn tell(self, err: &StoreError, now: Ts) {
        // Another alerter has it and does its work.
        if matches!(err, StoreError::InUse { .. }) {
            return;
        }
        let incident = self.incident();
        let file = hidden_beside(&self.database, "told");
        let mut told = told_of(&file, &incident);
        let notices = self.notices(&incident, &format!("the alerter does not start: {}", chain(err)), now);
        let deadline = Instant::now() + TELL_MAX;
        let sent = notices.into_iter().filter(|n| !told.contains(&n.receiver)).filter_map(|n| {
            let notifier = Arc::clone(self.receivers.get(&n.receiver)?);
            Some(async move { send(&*notifier, n, deadline, now).await })
        });
        let before = told.len();
        told.extend(join_all(sent).await.into_iter().flatten());
        if told.len() > before
            && let Err(err) = note(&file, &incident, &told)
        {
            let path = file.display();
            tracing::warn!(%err, %path, "cannot note who was told: the next start tells them again");
        }
    }

    fn incident(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.database.as_os_str().as_encoded_bytes());
        hash.update(fs::read(hidden_beside(&self.database, "identity")).unwrap_or_default());
        format!("start-{}", hex::encode(&hash.finalize()[..8]))
    }

    /// What the engine says of a store that takes nothing, to whom it says it.
    fn notices(&self, incident: &str, fault: &str, now: Ts) -> Vec<Notification> {
        let EngineConfig { detectors, responder } = self.engine.clone();
        // This incident is nowhere to be looked up.
        let responder = ResponderConfig { external_url: None, ..responder };
        let mut effects = Vec::new();
        let own = Input::Own { check: STORE, severity: Severity::Page, fault: Some(fault) };
        Engine::new(EngineConfig { detectors, responder }).handle(now, own, &mut effects);
        let mut notices = Vec::new();
        for effect in effects {
            let Effect::Notify(mut n) = effect else { continue };
            incident.clone_into(&mut n.incident);
            incident.clone_into(&mut n.message.incident);
            n.idem_key = format!("{incident}/{}/{}", n.receiver, n.seq);
            // Words that do not come out are the built-in ones.
            drop(self.templates.dress(&mut n));
            notices.push(*n);
        }
        notices
    }
}

/// Tries to send it until then; the receiver, if that took it.
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
    };
    let receiver = claim.notification.receiver.as_str();
    let tries = async {
        loop {
            let Err(failure) = attempt(notifier, &claim, now).await else {
                tracing::info!(receiver, "told that the alerter does not start");
                return Some(receiver.to_owned());
            };
            let error = failure.error;
            tracing::error!(receiver, error, "not told that the alerter does not start");
            if failure.class == FailureClass::Permanent {
                return None;
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    };
    tokio::time::timeout_at(deadline, tries).await.unwrap_or_else(|_| {
        tracing::error!(receiver, "not told in time that the alerter does not start");
        None
    })
}

/// Who was told of this incident not long ago.
fn told_of(path: &Path, incident: &str) -> BTreeSet<String> {
    let age = fs::metadata(path).and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
    if age.is_none_or(|age| age >= TELL_AGAIN) {
        return BTreeSet::new();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() == Some(incident) { lines.map(str::to_owned).collect() } else { BTreeSet::new() }
}

fn note(path: &Path, incident: &str, told: &BTreeSet<String>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let lines: Vec<&str> = iter::once(incident).chain(told.iter().map(String::as_str)).collect();
    file.write_all(lines.join("\n").as_bytes())
}
