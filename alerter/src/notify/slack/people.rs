//! Whose clicks are accepted.
//!
//! Slack signs the clicks of everybody who sees a message; in a channel that is shared with another
//! company, this includes its people. A click contains the workspace of its user, and `auth.test`
//! returns the bot's home workspace. In an organisation with several workspaces, users have the id
//! of the organisation or of the workspace in which they clicked.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whose clicks are accepted, in order of strictness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// Everybody who sees the message.
    Anyone,
    /// The people of the bot's own workspace or organisation, and the people in `users`.
    #[default]
    Workspace,
    /// The people in `users` with a `slack_id`.
    KnownUsers,
}

/// The bot's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    team: String,
    enterprise: Option<String>,
}

/// The workspace that a click claims to come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    user_team: Option<String>,
    /// The workspace of the message. It is absent if the app belongs to a whole organisation.
    team: Option<String>,
    enterprise: Option<String>,
}

impl Home {
    /// Parses the reply of `auth.test`.
    pub(super) fn from_auth_test(reply: &Value) -> Option<Self> {
        let team = text(&reply["team_id"])?;
        Some(Self { team, enterprise: text(&reply["enterprise_id"]) })
    }
}

impl Origin {
    /// Parses a `block_actions` payload.
    pub(crate) fn from_payload(payload: &Value) -> Self {
        let enterprise = text(&payload["enterprise"]["id"]);
        Self {
            user_team: text(&payload["user"]["team_id"]),
            team: text(&payload["team"]["id"]),
            enterprise: enterprise.or_else(|| text(&payload["team"]["enterprise_id"])),
        }
    }

    pub(crate) fn is_of(&self, home: &Home) -> bool {
        let ours = |id: &str| id == home.team || home.enterprise.as_deref() == Some(id);
        let sister = || self.enterprise.is_some() && self.enterprise == home.enterprise;
        match &self.user_team {
            Some(id) => ours(id) || (self.user_team == self.team && sister()),
            None => self.team.as_deref().is_some_and(ours) || sister(),
        }
    }

    /// Whether the user is certainly external, without the bot's home workspace: the user's
    /// workspace is not that of the message. In doubt, nobody is.
    pub(crate) fn is_plainly_foreign(&self) -> bool {
        let Some(user) = &self.user_team else { return false };
        // `T...` is a workspace and `E...` an organisation.
        let alike = |id: &&String| id.bytes().next() == user.bytes().next();
        let mut known = [&self.team, &self.enterprise].into_iter().flatten().filter(alike).peekable();
        known.peek().is_some() && known.all(|id| id != user)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn click(user_team: Option<&str>, team: Option<&str>, enterprise: Option<&str>) -> Origin {
        let team = team.map(|id| json!({"id": id, "domain": "x", "enterprise_id": enterprise}));
        Origin::from_payload(
            &json!({"user": {"id": "U1", "team_id": user_team}, "team": team, "enterprise": enterprise.map(|id| json!({"id": id}))}),
        )
    }

    fn home(team: &str, enterprise: Option<&str>) -> Home {
        Home::from_auth_test(&json!({"ok": true, "team_id": team, "enterprise_id": enterprise})).unwrap()
    }

    #[test]
    fn of_one_workspace_are_its_own_people() {
        let ours = home("T1", None);
        assert!(click(Some("T1"), Some("T1"), None).is_of(&ours));
        assert!(!click(Some("T2"), Some("T1"), None).is_of(&ours), "a guest in our channel");
        assert!(!click(Some("T2"), Some("T2"), None).is_of(&ours), "and seen from their side");
        assert!(!click(Some("T2"), Some("T2"), Some("E2")).is_of(&ours));
        assert!(!click(Some("E2"), Some("T1"), None).is_of(&ours));
        assert!(click(None, Some("T1"), None).is_of(&ours) && !click(None, Some("T2"), None).is_of(&ours));
        assert!(!click(None, None, None).is_of(&ours));
    }

    #[test]
    fn of_an_organisation_are_the_people_of_all_its_workspaces() {
        let ours = home("T1", Some("E1"));
        assert!(click(Some("E1"), Some("T1"), Some("E1")).is_of(&ours));
        assert!(click(Some("E1"), None, None).is_of(&ours), "installed for all of it");
        assert!(click(Some("T3"), Some("T3"), Some("E1")).is_of(&ours), "a sister");
        assert!(!click(Some("T2"), Some("T1"), Some("E1")).is_of(&ours), "a guest in our channel");
        assert!(!click(Some("T2"), Some("T2"), Some("E2")).is_of(&ours));
        assert!(!click(Some("T2"), None, Some("E1")).is_of(&ours), "whose organisation that is, is not said");
        assert!(click(Some("T3"), Some("T3"), Some("E1")).is_of(&home("E1", Some("E1"))));
    }

    #[test]
    fn without_knowing_home_only_the_plain_stranger_is_one() {
        assert!(click(Some("T2"), Some("T1"), None).is_plainly_foreign());
        assert!(click(Some("E2"), Some("T1"), Some("E1")).is_plainly_foreign());
        for own in [
            click(Some("T1"), Some("T1"), None),
            click(Some("E1"), Some("T1"), None),
            click(Some("E1"), Some("T1"), Some("E1")),
            click(Some("T1"), None, Some("E1")),
            click(None, Some("T1"), None),
            click(None, None, None),
        ] {
            assert!(!own.is_plainly_foreign(), "{own:?}");
        }
    }

    #[test]
    fn an_answer_that_names_no_team_is_none() {
        assert_eq!(Home::from_auth_test(&json!({"ok": true, "team_id": ""})), None);
        assert_eq!(Home::from_auth_test(&json!([])), None);
    }
}
