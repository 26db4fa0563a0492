//! People in Slack: their clicks on buttons, and the messages that only they see.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::Slack;
use crate::server::{Received, Reply};

/// The most answers to one click.
const MAX_RESPONSES: u32 = 5;

/// A message that only the person who clicked sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whisper {
    pub to: String,
    pub text: String,
}

/// An address for answers to a click.
#[derive(Debug, Clone)]
pub(super) struct ResponseUrl {
    pub(super) user: String,
    pub(super) used: u32,
}

impl Slack {
    /// The payload that Slack sends to the app when `user` clicks the button `action_id` of the
    /// message `ts`; an error if that is impossible. `base` is the address of this fake.
    pub fn click(
        &mut self,
        base: &str,
        ts: &str,
        action_id: &str,
        user: (&str, &str),
    ) -> Result<Value, String> {
        let post = self.posts.iter().find(|p| p.ts == ts).ok_or("there is no such message")?;
        let button = post
            .blocks
            .iter()
            .filter(|b| b["type"] == "actions")
            .flat_map(|b| b["elements"].as_array().into_iter().flatten())
            .find(|e| e["action_id"] == action_id)
            .ok_or_else(|| format!("the message has no button {action_id}"))?;
        let (id, name) = user;
        // The team of a click is where the app is installed; the user's own team may differ. In an
        // organisation, users belong to the organisation.
        let home = self.enterprise.as_deref().unwrap_or(Self::TEAM);
        let own = self.guests.get(id).map_or(home, String::as_str);
        let organisation = |name: &str| self.enterprise.as_ref().map(|id| json!({"id": id, "name": name}));
        self.clicks += 1;
        let path = format!("/response/T0FAKE/{}", self.clicks);
        self.responses.insert(path.clone(), ResponseUrl { user: id.into(), used: 0 });
        let action_ts = format!("1700000000.{:06}", self.clicks);
        Ok(json!({
            "type": "block_actions",
            "team": {"id": Self::TEAM, "domain": "fake"}, "enterprise": organisation("Fake Ltd"), "is_enterprise_install": false,
            "user": {"id": id, "username": name, "name": name, "team_id": own},
            "api_app_id": "A0FAKE", "trigger_id": "1.2.3",
            "container": {"type": "message", "message_ts": ts, "channel_id": post.channel, "is_ephemeral": false},
            "channel": {"id": post.channel},
            "message": {"type": "message", "ts": ts, "text": post.text, "blocks": post.blocks},
            "response_url": format!("{base}{path}"),
            "actions": [{"type": "button", "action_id": action_id, "block_id": "b", "value": button["value"],
                "text": button["text"], "action_ts": action_ts}],
        }))
    }

    pub(super) fn respond(&mut self, req: &Received) -> Reply {
        let Some(url) = self.responses.get_mut(&req.path) else { return Reply::text(404, "expired_url") };
        url.used += 1;
        if url.used > MAX_RESPONSES {
            return Reply::text(404, "used_url");
        }
        let body = req.json();
        match body["text"].as_str() {
            Some(text) if !text.is_empty() && body["response_type"] == "ephemeral" => {
                self.whispers.push(Whisper { to: url.user.clone(), text: text.into() });
                Reply::text(200, "ok")
            }
            _ => Reply::text(400, "no_text"),
        }
    }
}

/// The request body of a payload.
pub fn interaction_body(payload: &Value) -> String {
    url::form_urlencoded::Serializer::new(String::new()).append_pair("payload", &payload.to_string()).finish()
}

/// The value of `X-Slack-Signature` for a body sent at `timestamp` (Unix seconds).
pub fn slack_signature(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("v0:{timestamp}:").as_bytes());
    mac.update(body);
    format!("v0={}", hex::encode(mac.finalize().into_bytes()))
}
