//! The Slack endpoint: clicks on our buttons, by HTTP or by socket.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::silence::Silence;

use super::signature::{self, Forged};
use super::{Callbacks, Heard, Outcome, Wish, people};
use crate::api::auth::Caller;
use crate::notify::slack::{App, Deed, Origin, escape};
use crate::notify::{CallbackConfig, line};
use crate::runtime::IncidentAction;
use crate::signed_paths::SLACK as PATH;

const SERVICE: &str = "slack";

/// Slack shows an error if it has no answer after three seconds. An action that is not durable by
/// then continues, and its result is sent later as a separate message.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(2500);

/// The most characters of a name that is shown, and of an id.
const NAME_MAX: usize = 80;
const ID_MAX: usize = 64;
const SELECTOR_MAX: usize = 200;
/// The duration that the button shows.
const SILENCE: Span = Span::secs(3600);
/// The most clicks of a payload: a person's payload has one.
const CLICKS_MAX: usize = 5;

/// The form that Slack posts.
#[derive(Debug, utoipa::ToSchema)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct Interaction {
    /// A JSON object of the type `block_actions`.
    payload: String,
}

/// One click on one of our buttons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Click {
    deed: Deed,
    incident: String,
    /// Slack's id of the person who clicked, and the name that the person chose.
    pub(super) user: String,
    name: Option<String>,
    pub(super) origin: Origin,
    response_url: Option<String>,
    /// An id that is the same for every repetition.
    id: String,
}

/// Clicks on buttons of our messages, from Slack.
#[utoipa::path(
    post,
    path = PATH,
    operation_id = "slackInteractions",
    tag = "callbacks",
    security(("slackSignature" = [])),
    params(("X-Slack-Request-Timestamp" = i64, Header, description = "Unix seconds, of the last five minutes")),
    request_body(
        description = "A block_actions payload; in JSON, what the Events API asks when the URL is entered",
        content((Interaction = "application/x-www-form-urlencoded"), (serde_json::Value = "application/json"))
    ),
    responses(
        (status = 200, description = "Heard, also when it changed nothing", content((Value = "application/json"))),
        (status = 400, description = "Malformed", body = String, content_type = "text/plain"),
        (status = 401, description = "Not signed by Slack", body = String, content_type = "text/plain"),
        (status = 404, description = "No receiver has a signing secret", body = String, content_type = "text/plain"),
        (status = 413, description = "The body is too large", body = String, content_type = "text/plain"),
    )
)]
pub(super) async fn interactions(
    State(callbacks): State<Callbacks>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let callbacks = callbacks.entered_by(caller);
    let apps = apps(&callbacks);
    let signing: Vec<_> = apps.iter().filter(|app| app.signing_secret().is_some()).collect();
    if signing.is_empty() {
        return (StatusCode::NOT_FOUND, "no receiver has a signing_secret_file\n").into_response();
    }
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let (timestamp, given) = (text("x-slack-request-timestamp"), text("x-slack-signature"));
    let now = (callbacks.inner.clock)().0.div_euclid(1000);
    let mut forged = Forged::NoMatch;
    let signed = signing.into_iter().filter(|app| {
        let Some(secret) = app.signing_secret() else { return false };
        signature::slack(secret, timestamp, given, &body, now).map_err(|why| forged = why).is_ok()
    });
    let signed: Vec<Arc<App>> = signed.cloned().collect();
    if signed.is_empty() {
        callbacks.inner.metrics.count(SERVICE, "refused");
        if let Some(count) = callbacks.inner.forged_slack.count(1) {
            tracing::warn!(count, why = ?forged, "a request to {PATH} is not from Slack: refused");
        }
        let status =
            if forged == Forged::Malformed { StatusCode::BAD_REQUEST } else { StatusCode::UNAUTHORIZED };
        return (status, "not signed by Slack\n").into_response();
    }
    let json_body = text(header::CONTENT_TYPE.as_str()).is_some_and(|t| t.starts_with("application/json"));
    match read(&body, json_body) {
        Read::Payload(payload) => {
            if act_within(&callbacks, &signed, &payload).await {
                StatusCode::OK.into_response()
            } else {
                // Slack shows the error to the person who clicked.
                (StatusCode::SERVICE_UNAVAILABLE, "too much at once: click again\n").into_response()
            }
        }
        Read::Challenge(text) => Json(json!({ "challenge": text })).into_response(),
        Read::Ping => StatusCode::OK.into_response(),
        Read::Nothing => {
            callbacks.inner.metrics.count(SERVICE, "malformed");
            (StatusCode::BAD_REQUEST, "no payload\n").into_response()
        }
    }
}

pub(super) fn apps(callbacks: &Callbacks) -> Vec<Arc<App>> {
    let slack = |(_, callback_config)| match callback_config {
        CallbackConfig::Slack(app) => Some(app),
        CallbackConfig::PagerDuty(_) => None,
    };
    callbacks.callback_configs().into_iter().filter_map(slack).collect()
}

/// Applies every click. Returns when all are durable or Slack has waited long enough; false if one
/// was refused for lack of room. `apps` are the receivers that share the endpoint.
pub(super) async fn act_within(callbacks: &Callbacks, apps: &[Arc<App>], payload: &Value) -> bool {
    let (mut acting, mut room) = (Vec::new(), true);
    for click in clicks(payload) {
        let Ok(slot) = Arc::clone(&callbacks.inner.slots).try_acquire_owned() else {
            callbacks.inner.metrics.count(SERVICE, "busy");
            tracing::warn!(incident = click.incident, "too many callbacks at once: a click is refused");
            room = false;
            continue;
        };
        let (callbacks, apps) = (callbacks.clone(), apps.to_vec());
        acting.push(tokio::spawn(async move {
            act(&callbacks, &apps, click).await;
            drop(slot);
        }));
    }
    let all = async {
        for task in acting {
            let _ = task.await;
        }
    };
    let _ = tokio::time::timeout(ANSWER_WITHIN, all).await;
    room
}

async fn act(callbacks: &Callbacks, apps: &[Arc<App>], click: Click) {
    let wish = match click.deed {
        Deed::Ack => Wish::Act(IncidentAction::Ack),
        Deed::Resolve => Wish::Act(IncidentAction::Resolve),
        Deed::Escalate => Wish::Act(IncidentAction::Escalate),
        Deed::Silence => Wish::Silence(SILENCE),
    };
    let by = actor(&click, callbacks.user_of_slack(&click.user));
    let acted = async {
        if let Some(why) = people::refusal(callbacks, apps, &click).await {
            callbacks.refuse(&by, &wish, &click.incident, &why).await;
            return (Outcome::Stranger(why), true);
        }
        let outcome = callbacks.act(&click.incident, &by, wish).await;
        let done = !matches!(outcome, Outcome::Failed(_));
        (outcome, done)
    };
    let heard = callbacks.once(SERVICE, &click.id, acted).await;
    let (result, whisper) = match heard {
        Heard::Now(Outcome::Done) => ("acted", None),
        Heard::Now(Outcome::Silenced(silence)) => ("acted", Some(silenced(&silence))),
        Heard::Now(outcome) => {
            let result = match outcome {
                Outcome::Failed(_) => "failed",
                Outcome::Stranger(_) => "stranger",
                _ => "nothing",
            };
            (result, Some(excuse(&outcome)))
        }
        Heard::Before => ("repeated", None),
        Heard::Unclear(why) => ("failed", Some(format!("Not done: {why}. Please try again."))),
    };
    callbacks.inner.metrics.count(SERVICE, result);
    let (Some(text), Some(url), Some(app)) = (whisper, click.response_url, apps.first()) else { return };
    // If another replica has taken over, the person clicks again.
    if let Ok(Err(error)) = callbacks.inner.store.while_may_send(app.whisper(&url, &text)).await {
        tracing::warn!(error, "cannot answer a click in Slack");
    }
}

/// The reply to the person who created a silence, because the message does not show the silence.
fn silenced(silence: &Silence) -> String {
    let (what, id) = (escape(&silence.selector(), SELECTOR_MAX), &silence.id);
    format!(
        "Nobody is notified of `{what}` until {}. `stepwatch-alerter silences expire {id}` ends that.",
        date(silence.ends_at)
    )
}

fn date(at: Ts) -> String {
    format!("<!date^{}^{{date_short_pretty}} {{time_secs}}|{at}>", at.0.div_euclid(1000))
}

/// The reason why nothing was done.
fn excuse(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done | Outcome::Silenced(_) => String::new(),
        Outcome::Already(record) => {
            let by = escape(record.acked_by.as_deref().unwrap_or("somebody"), NAME_MAX);
            format!("{by} has it already: nothing was done.")
        }
        Outcome::Over(record) => match record.resolved_at {
            Some(at) => format!("This incident was resolved on {}: nothing was done.", date(at)),
            None => "This incident was resolved just now: nothing was done.".to_owned(),
        },
        Outcome::Unknown => {
            "The alerter does not know this incident (any more): nothing was done.".to_owned()
        }
        Outcome::Refused(why) => format!("Not done: {why}."),
        Outcome::Stranger(why) => format!("Not done: {why}."),
        Outcome::Failed(why) => format!("Not done: {}. Please try again.", escape(why, NAME_MAX)),
    }
}

enum Read {
    Payload(Value),
    /// Slack checks whether the endpoint exists.
    Challenge(String),
    Ping,
    Nothing,
}

fn read(body: &[u8], is_json: bool) -> Read {
    if is_json {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        return match (value["type"].as_str(), value["challenge"].as_str()) {
            (Some("url_verification"), Some(challenge)) => Read::Challenge(line(challenge, ID_MAX * 8)),
            _ => Read::Nothing,
        };
    }
    let mut form = url::form_urlencoded::parse(body);
    let found = form.find_map(|(key, value)| match &*key {
        "payload" => serde_json::from_str(&value).ok().map(Read::Payload),
        "ssl_check" => Some(Read::Ping),
        _ => None,
    });
    found.unwrap_or(Read::Nothing)
}

/// Parses a request, or a socket message with the same payload.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(body: &[u8], is_json: bool) {
    if let Read::Payload(payload) = read(body, is_json) {
        clicks(&payload).iter().for_each(|click| assert!(actor(click, None).len() < 1024));
    }
    if is_json {
        clicks(&serde_json::from_slice(body).unwrap_or_default());
    }
}

/// The clicks on our buttons in a payload; clicks on links and other buttons are ignored.
pub(super) fn clicks(payload: &Value) -> Vec<Click> {
    if payload["type"] != "block_actions" {
        return Vec::new();
    }
    let user = &payload["user"];
    let Some(user_id) = user["id"].as_str().filter(|id| plain_id(id)) else { return Vec::new() };
    let name = ["username", "name"].iter().find_map(|key| user[*key].as_str());
    let name = name.map(|name| line(name, NAME_MAX)).filter(|name| !name.is_empty());
    let response_url = payload["response_url"].as_str().map(str::to_owned);
    let origin = Origin::from_payload(payload);
    let actions = payload["actions"].as_array().map(Vec::as_slice).unwrap_or_default();
    actions
        .iter()
        .take(CLICKS_MAX)
        .filter_map(|action| {
            let deed = Deed::of_id(action["action_id"].as_str()?)?;
            let incident = action["value"].as_str().filter(|id| plain_id(id))?;
            let at = action["action_ts"].as_str().filter(|ts| ts.len() <= ID_MAX)?;
            let id = format!("{at} {user_id} {} {incident}", deed.id());
            let (response_url, origin) = (response_url.clone(), origin.clone());
            let (user, name) = (user_id.to_owned(), name.clone());
            Some(Click { deed, incident: incident.to_owned(), user, name, origin, response_url, id })
        })
        .collect()
}

/// `slack:U0ANN (ann)`, with the configured name of that id, or else with the user's own name.
fn actor(click: &Click, known: Option<String>) -> String {
    let id = &click.user;
    match known.as_ref().or(click.name.as_ref()) {
        Some(name) => format!("slack:{id} ({name})"),
        None => format!("slack:{id}"),
    }
}

fn plain_id(id: &str) -> bool {
    (1..=ID_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn payload(action_id: &str) -> Value {
        json!({
            "type": "block_actions", "user": {"id": "U0ANN", "username": "ann", "team_id": "T0"},
            "container": {"type": "message", "message_ts": "1.2", "channel_id": "C0"},
            "response_url": "https://hooks.slack.com/actions/T0/1/x",
            "actions": [{"type": "button", "action_id": action_id, "block_id": "b", "value": "01J9ZC", "action_ts": "1700000000.1"}],
        })
    }

    #[test]
    fn a_click_names_who_what_and_which() {
        let all = clicks(&payload("stepwatch_ack"));
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].deed, all[0].incident.as_str()), (Deed::Ack, "01J9ZC"));
        assert_eq!(actor(&all[0], None), "slack:U0ANN (ann)");
        assert_eq!(
            actor(&all[0], Some("annette".into())),
            "slack:U0ANN (annette)",
            "by our own name for her"
        );
        assert_ne!(all[0].id, clicks(&payload("stepwatch_resolve"))[0].id);
        assert!(clicks(&payload("stepwatch_link_0")).is_empty(), "a link that was followed");
        let mut other = payload("stepwatch_ack");
        other["type"] = "view_submission".into();
        assert!(clicks(&other).is_empty());
        let mut hostile = payload("stepwatch_ack");
        hostile["user"]["username"] = "a\u{202e}nn\n<!channel>".into();
        assert_eq!(
            actor(&clicks(&hostile)[0], None),
            "slack:U0ANN (ann <!channel>)",
            "the notifiers escape it"
        );
        hostile["actions"][0]["value"] = "' OR 1=1 --".into();
        assert!(clicks(&hostile).is_empty());
    }

    #[test]
    fn bodies_are_forms_and_a_question() {
        assert!(matches!(read(b"payload=%7B%22type%22%3A%22x%22%7D", false), Read::Payload(_)));
        assert!(matches!(read(b"ssl_check=1&token=x", false), Read::Ping));
        let challenge = br#"{"type":"url_verification","challenge":"abc"}"#;
        assert!(matches!(read(challenge, true), Read::Challenge(c) if c == "abc"));
        assert!(matches!(read(b"payload=nonsense", false), Read::Nothing));
    }

    proptest! {
        #[test]
        fn never_panics(body: Vec<u8>, json: bool) {
            if let Read::Payload(payload) = read(&body, json) {
                clicks(&payload);
            }
        }

        #[test]
        fn never_panics_on_almost_a_click(at in 0usize..300, byte: u8) {
            let mut text = payload("stepwatch_ack").to_string().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            if let Ok(payload) = serde_json::from_slice(&text) {
                clicks(&payload);
            }
        }
    }
}
