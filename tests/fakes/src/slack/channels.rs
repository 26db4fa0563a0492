//! Channels: their members, and the scopes that reading them requires.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::args::{cursor, flag, limit, next_cursor};
use super::{No, Slack};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    pub id: String,
    pub name: String,
    pub private: bool,
    pub archived: bool,
    /// Whether the bot is a member.
    pub member: bool,
}

/// The types of conversation that can be listed, and the scope of each.
const LISTED: [(&str, &str); 4] = [
    ("public_channel", "channels:read"),
    ("private_channel", "groups:read"),
    ("mpim", "mpim:read"),
    ("im", "im:read"),
];
/// The scopes of which the methods that read messages require any; each type of conversation
/// requires its own.
const HISTORY: [&str; 4] = ["channels:history", "groups:history", "mpim:history", "im:history"];

/// The default channels.
pub(super) fn all() -> Vec<Channel> {
    let channel = |id: &str, name: &str| Channel {
        id: id.into(),
        name: name.into(),
        private: false,
        archived: false,
        member: true,
    };
    vec![
        channel("C0TRAINING", "training"),
        channel("C0ONCALL00", "oncall"),
        Channel { archived: true, ..channel("C0ARCHIVED", "archived") },
        Channel { member: false, ..channel("C0LOBBY000", "lobby") },
        Channel { private: true, ..channel("C0WARROOM0", "war-room") },
        Channel { private: true, member: false, ..channel("C0SECRET00", "secret") },
    ]
}

impl Channel {
    /// Whether the channel exists for the bot: a private channel is invisible to others than its
    /// members.
    fn exists(&self) -> bool {
        self.member || !self.private
    }

    fn is_kind(&self, kind: &str) -> bool {
        kind == if self.private { "private_channel" } else { "public_channel" }
    }
}

impl Slack {
    fn has(&self, scope: &str) -> bool {
        self.scopes.contains(scope)
    }

    fn missing(scopes: &[&str]) -> No {
        No { needed: Some(scopes.join(",")), ..No::from("missing_scope") }
    }

    pub(super) fn need(&self, scope: &str) -> Result<(), No> {
        if self.has(scope) { Ok(()) } else { Err(Self::missing(&[scope])) }
    }

    /// A channel by its id, or by its name if the method accepts one.
    pub(super) fn known(&self, wanted: &str, by_name: bool) -> Result<&Channel, No> {
        let name = wanted.strip_prefix('#').unwrap_or(wanted);
        let found = self.channels.iter().find(|c| c.id == wanted || (by_name && c.name == name));
        found.filter(|c| c.exists()).ok_or(No::from("channel_not_found"))
    }

    /// The id of a channel to which the bot may post.
    pub(super) fn writable(&self, wanted: &str) -> Result<String, No> {
        let channel = self.known(wanted, true)?;
        if !channel.member && !self.has("chat:write.public") {
            return Err("not_in_channel".into());
        }
        self.at_work(&channel.id)
    }

    /// The id of a webhook's channel, regardless of its members.
    pub(super) fn at_work(&self, id: &str) -> Result<String, No> {
        match self.channels.iter().find(|c| c.id == id) {
            None => Err("channel_not_found".into()),
            Some(c) if c.archived => Err("is_archived".into()),
            Some(c) => Ok(c.id.clone()),
        }
    }

    /// The id of a channel in which the bot may edit its messages.
    pub(super) fn editable(&self, id: &str) -> Result<String, No> {
        let channel = self.known(id, false)?;
        if channel.archived { Err("is_inactive".into()) } else { Ok(channel.id.clone()) }
    }

    /// The id of a channel that the bot may read, archived or not.
    pub(super) fn readable(&self, id: &str) -> Result<String, No> {
        if !HISTORY.iter().any(|scope| self.has(scope)) {
            return Err(Self::missing(&HISTORY));
        }
        let channel = self.known(id, false)?;
        self.need(if channel.private { "groups:history" } else { "channels:history" })?;
        if channel.member { Ok(channel.id.clone()) } else { Err("not_in_channel".into()) }
    }

    pub(super) fn list(&self, args: &BTreeMap<String, String>) -> Result<Value, No> {
        let kinds: Vec<&str> = args.get("types").map_or("public_channel", |s| s).split(',').collect();
        for kind in &kinds {
            let scope = LISTED.iter().find(|(name, _)| name == kind).ok_or(No::from("invalid_types"))?.1;
            self.need(scope)?;
        }
        let (limit, skip) = (limit(args)?, cursor(args));
        let asked = |c: &&Channel| c.exists() && kinds.iter().any(|kind| c.is_kind(kind));
        let current = |c: &&Channel| !(c.archived && flag(args, "exclude_archived"));
        let all: Vec<_> = self.channels.iter().filter(asked).filter(current).collect();
        let shown = |c: &&Channel| {
            json!({"id": c.id, "name": c.name, "is_private": c.private, "is_archived": c.archived,
                "is_member": c.member})
        };
        let channels: Vec<_> = all.iter().skip(skip).take(limit).map(shown).collect();
        let next = next_cursor(all.len(), skip + limit);
        Ok(json!({"channels": channels, "response_metadata": {"next_cursor": next}}))
    }

    pub(super) fn refusal(&self, no: &No) -> Value {
        let mut body = json!({"ok": false, "error": no.error});
        if !no.messages.is_empty() {
            let messages: Vec<_> = no.messages.iter().map(|m| format!("[ERROR] {m}")).collect();
            body["errors"] = no.messages.as_slice().into();
            body["response_metadata"] = json!({"messages": messages});
        }
        if let Some(needed) = &no.needed {
            let provided = self.scopes.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            body["needed"] = needed.as_str().into();
            body["provided"] = provided.into();
        }
        body
    }
}
