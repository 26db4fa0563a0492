//! Checks a configured channel and token without a request to Slack.

use stepwatch_kit::config::Secret;

use super::is_user_id;
use crate::notify::mistake::Mistake;
use crate::notify::secret::SecretSource;

/// Slack's limit of a channel name, in characters.
pub(super) const NAME_MAX: usize = 80;

/// Prefixes of tokens that are not bot tokens, and their kinds.
const OTHER_TOKENS: [(&str, &str); 5] = [
    ("xapp-", "an app-level token, which belongs into app_token_file"),
    ("xoxp-", "a user's token"),
    ("xoxe-", "a token that only renews others"),
    ("xoxs-", "a token of a browser"),
    ("https://", "an address, which belongs into webhook_url_file"),
];

/// Whether it is an id, such as `C0123ABCD`, `G...` or `D...`: names are in lower case.
pub(super) fn is_id(channel: &str) -> bool {
    let id = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit();
    channel.len() >= 9 && channel.starts_with(['C', 'G', 'D']) && channel.bytes().all(id)
}

/// Checks the form of a channel name or id.
pub(super) fn check(channel: &str) -> Result<(), String> {
    if is_id(channel) {
        return Ok(());
    }
    let name = channel.strip_prefix('#').unwrap_or(channel);
    let says = |why: &str| Err(format!("{channel:?} {why}, expected #name or an id as in C0123ABCD"));
    if is_user_id(channel) {
        return says("is a person, not a channel");
    }
    if name.is_empty() || name.chars().count() > NAME_MAX {
        return says(&format!("must have 1 to {NAME_MAX} characters"));
    }
    if name.contains(char::is_whitespace) {
        return says("has spaces, and no channel's name has any");
    }
    if name.chars().any(char::is_uppercase) {
        return says(&format!(
            "has capital letters, and no channel's name has any (#{})",
            name.to_lowercase()
        ));
    }
    match name.chars().find(|c| !(c.is_alphanumeric() || matches!(c, '-' | '_'))) {
        Some(odd) => says(&format!("has a {odd:?}, and names have letters, digits, - and _")),
        None => Ok(()),
    }
}

/// Checks the form of a bot token. Errors do not contain the token.
pub(super) fn check_token(source: &SecretSource, token: &Secret) -> Result<(), Mistake> {
    let text = token.expose();
    // With token rotation, the bot token begins with xoxe.
    let body = text.strip_prefix("xoxb-").or_else(|| text.strip_prefix("xoxe.xoxb-"));
    let why = match body {
        Some(body) if !body.is_empty() && body.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') => {
            return Ok(());
        }
        Some(_) => "something else behind xoxb- than letters, digits and -".to_owned(),
        None => {
            let other = OTHER_TOKENS.iter().find(|(begin, _)| text.starts_with(begin));
            other.map_or("something else".to_owned(), |(_, what)| (*what).to_owned())
        }
    };
    Err(source.mistake(format!("{source} holds {why}, expected the app's bot token (xoxb-...)")))
}
