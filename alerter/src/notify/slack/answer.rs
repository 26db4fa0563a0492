//! Classifies Slack's answers. Nearly every refusal has HTTP status 200 and `ok: false`.

use serde_json::Value;

use crate::notify::attempt::{Failure, FailureClass};
use crate::notify::http::{Answer, Http};

/// A failed call: Slack's error name, empty if there is none, and the classification.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: String,
    pub(super) failure: Failure,
}

/// The message exists but cannot be edited.
pub(super) const EDIT_IMPOSSIBLE: &[&str] = &["cant_update_message", "edit_window_closed", "update_failed"];

/// Slack refuses the layout of the blocks, not their text.
pub(super) const LAYOUT_REFUSED: &[&str] =
    &["invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "block_mismatch"];

/// Internal errors of Slack, which may have acted before it failed.
const TRANSIENT: &[&str] = &["internal_error", "fatal_error", "request_timeout", "service_unavailable"];

const RATE_LIMITED: &[&str] = &["ratelimited", "rate_limited", "message_limit_exceeded"];

/// Instructions for errors that a person has to fix.
const HINTS: &[(&str, &str)] = &[
    ("channel_not_found", "no such channel, or it is private and the bot is not in it: /invite the bot"),
    ("not_in_channel", "the bot is not in the channel: /invite it there"),
    ("is_archived", "the channel is archived"),
    ("is_inactive", "the channel is archived: unarchive it, or name another one and reload"),
    ("invalid_auth", "the token is wrong"),
    ("not_authed", "the token is missing"),
    ("account_inactive", "the bot or its workspace was removed"),
    ("token_revoked", "the token was revoked: issue a new one and reload"),
    ("token_expired", "the token has expired: issue a new one and reload"),
    ("missing_scope", "the app lacks a permission: add the scope to it and install it again"),
    ("not_allowed_token_type", "a token of another kind"),
    ("restricted_action", "a workspace setting forbids posting there"),
];

pub(super) fn read(http: &Http, method: &str, answer: Result<Answer, Failure>) -> Result<Value, Refusal> {
    let plain = |failure| Refusal { error: String::new(), failure };
    let answer = answer.map_err(plain)?;
    if !answer.status.is_success() {
        return Err(plain(http.refused(&answer)));
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match (body["ok"].as_bool(), body["error"].as_str()) {
        (Some(true), _) => Ok(body),
        (Some(false), error) => Err(refusal(http, method, error.unwrap_or("unknown_error"), &body)),
        // A proxy or a portal answered instead of Slack.
        (None, _) => {
            let text = format!("{method}: the answer is not Slack's (no \"ok\" in it)");
            Err(plain(http.failure(FailureClass::Transient, true, &text)))
        }
    }
}

fn refusal(http: &Http, method: &str, error: &str, body: &Value) -> Refusal {
    let hint = HINTS.iter().find(|(name, _)| *name == error).map(|(_, hint)| format!(" ({hint})"));
    let detail = body["response_metadata"]["messages"][0].as_str().map(|m| format!(": {m}"));
    let scopes = body["needed"].as_str().map(|needed| {
        let provided = body["provided"].as_str().unwrap_or_default();
        format!(
            ": it needs {needed}, and the token has {}",
            if provided.is_empty() { "none" } else { provided }
        )
    });
    let parts = [hint, scopes, detail].into_iter().flatten().collect::<String>();
    let text = format!("{method}: {error}{parts}");
    let (class, ambiguous) = if RATE_LIMITED.contains(&error) {
        (FailureClass::RateLimited { retry_after: None }, false)
    } else if TRANSIENT.contains(&error) {
        (FailureClass::Transient, true)
    } else {
        (FailureClass::Permanent, false)
    };
    Refusal { error: error.to_owned(), failure: http.failure(class, ambiguous, &text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::StatusCode;
    use reqwest::header::HeaderMap;

    use super::*;

    fn judge(status: u16, body: &[u8]) -> Result<Value, Refusal> {
        let http = Http::new("slack", Vec::new()).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, headers: HeaderMap::default(), body: body.to_vec().into() };
        read(&http, "chat.postMessage", Ok(answer))
    }

    #[test]
    fn ok_false_is_a_refusal_in_spite_of_http_200() {
        let class = |body: &str| judge(200, body.as_bytes()).unwrap_err().failure;
        let gone = class(r#"{"ok":false,"error":"channel_not_found"}"#);
        assert_eq!(gone.class, FailureClass::Permanent);
        assert!(gone.error.contains("/invite"), "{}", gone.error);
        let unwell = class(r#"{"ok":false,"error":"fatal_error"}"#);
        assert_eq!((unwell.class, unwell.ambiguous), (FailureClass::Transient, true));
        let limited = class(r#"{"ok":false,"error":"ratelimited"}"#);
        assert_eq!(limited.class, FailureClass::RateLimited { retry_after: None });
        assert_eq!(class("<html>portal</html>").class, FailureClass::Transient);
        let scope = class(
            r#"{"ok":false,"error":"missing_scope","needed":"groups:read","provided":"chat:write,channels:read"}"#,
        );
        assert_eq!(scope.class, FailureClass::Permanent);
        let words = "it needs groups:read, and the token has chat:write,channels:read";
        assert!(scope.error.ends_with(words), "{}", scope.error);
        assert!(judge(200, br#"{"ok":true,"ts":"1.2"}"#).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn never_panics(status in 100u16..600, body: Vec<u8>) {
            let _ = judge(status, &body);
        }

        #[test]
        fn never_panics_on_almost_json(at in 0usize..60, byte: u8) {
            let mut body = br#"{"ok":false,"error":"x","response_metadata":{"messages":["y"]}}"#.to_vec();
            body[at] = byte;
            let _ = judge(200, &body);
        }
    }
}
