//! Channels: who is in them, and which scope reading them requires.

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
    /// Whether the bot was invited.
    pub member: bool,
}

/// The kinds of conversation that may be listed, each with the scope that it takes.
const LISTED: [(&str, &str); 4] = [
    ("public_channel", "channels:read"),
    ("private_channel", "groups:read"),
    ("mpim", "mpim:read"),
    ("im", "im:read"),
];
/// Any of these opens the methods that read messages; which messages is another matter.
const HISTORY: [&str; 4] = ["channels:history", "groups:history", "mpim:history", "im:history"];

/// The channels that there are by default.
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
    /// A private channel does not exist for who is not in it.
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

    /// A channel by its id, or by its name where the method takes one.
    pub(super) fn known(&self, wanted: &str, by_name: bool) -> Result<&Channel, No> {
        let name = wanted.strip_prefix('#').unwrap_or(wanted);
        let found = self.channels.iter().find(|c| c.id == wanted || (by_name && c.name == name));
        found.filter(|c| c.exists()).ok_or(No::from("channel_not_found"))
    }

    /// Where something may be posted.
    pub(super) fn writable(&self, wanted: &str) -> Result<String, No> {
        let channel = self.known(wanted, true)?;
        if !channel.member && !self.has("chat:write.public") {
            return Err("not_in_channel".into());
        }
        self.at_work(&channel.id)
    }

    /// The channel of a webhook, whatever its members.
    pub(super) fn at_work(&self, id: &str) -> Result<String, No> {
        match self.channels.iter().find(|c| c.id == id) {
            None => Err("channel_not_found".into()),
            Some(c) if c.archived => Err("is_archived".into()),
            Some(c) => Ok(c.id.clone()),
        }
    }

    /// Where a message of ours may be changed.
    pub(super) fn editable(&self, id: &str) -> Result<String, No> {
        let channel = self.known(id, false)?;
        if channel.archived { Err("is_inactive".into()) } else { Ok(channel.id.clone()) }
    }

    /// What may be read, archived or not.
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
