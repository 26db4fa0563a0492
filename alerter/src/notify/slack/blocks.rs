//! The layout of an incident in Slack's Block Kit, within its limits.
//!
//! Text from a run is untrusted: `&`, `<` and `>` are escaped, so that it can neither mention
//! anybody nor contain a link, and every text object is `verbatim`, so that Slack creates no links
//! by itself. Slack has no escape for the characters of bold, italic, struck and code text; where
//! they would be markup, similar characters replace them.

use std::borrow::Cow;

use serde_json::{Value, json};
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::Ended;
use stepwatch_respond::message::{Fact, Message, Status};

use super::buttons;
use super::channel::{NAME_MAX, is_id};
use crate::notify::text::{clean, line, web_link};

/// Slack's limits in characters as sent; a whole message has about 13,000.
pub(super) const HEADER_MAX: usize = 150;
pub(super) const BUTTON_MAX: usize = 75;
pub(super) const HREF_MAX: usize = 3000;
/// Our own limits, so that the message stays below Slack's limit and on one screen.
const SUMMARY_MAX: usize = 1500;
const LABEL_MAX: usize = 60;
const FACT_MAX: usize = 500;
const FACTS_MAX: usize = 12;
const REASON_MAX: usize = 600;
const LINKS_MAX: usize = 5;
const FALLBACK_MAX: usize = 1000;
/// The most mentions, for a level with many people.
const MENTIONS_MAX: usize = 10;
const USER_ID_MAX: usize = 21;

/// A fact that is longer, or has several lines, does not fit into half the width.
const HALF_WIDTH: usize = 80;
const FIELDS_MAX: usize = 10;

/// The message of an incident: title, numbers, links and the reason for the notification; the
/// buttons too if `deeds`.
pub(super) fn message(n: &Notification, deeds: bool) -> Value {
    let m = &n.message;
    let header = format!("{} {}", emoji(m), plain(&m.title, HEADER_MAX - 3));
    let mut blocks =
        vec![json!({"type": "header", "text": {"type": "plain_text", "text": header, "emoji": true}})];
    blocks.extend(mention(n).map(|whom| section(&format!("For {whom}"))));
    blocks.push(section(&non_empty(summary(m))));
    blocks.extend(facts(&m.facts));
    blocks.extend(actions(m, deeds));
    let context = format!(
        "{} · {} · incident `{}`\n*Why you see this:* {}",
        m.severity.as_str(),
        date(m.started_at),
        escape(&m.incident.replace('`', "'"), LABEL_MAX),
        non_empty(escape(&m.reason, REASON_MAX)),
    );
    blocks.push(json!({"type": "context", "elements": [mrkdwn(&context)]}));
    Value::Array(blocks)
}

/// The message of an incident that continues in another channel.
pub(super) fn moved(n: &Notification, channel: &str) -> Value {
    let mut blocks = message(n, false);
    if let Some(blocks) = blocks.as_array_mut() {
        blocks.insert(1, section(&moved_fallback(n, channel)));
    }
    blocks
}

pub(super) fn moved_fallback(n: &Notification, channel: &str) -> String {
    let channel = if is_id(channel) { format!("<#{channel}>") } else { escape(channel, NAME_MAX) };
    let title = escape(&n.message.title, HEADER_MAX);
    format!("This message is out of date. The incident continues in {channel}: {title}")
}

/// A thread reply with the update.
pub(super) fn news(n: &Notification) -> Value {
    let m = &n.message;
    let reason = non_empty(escape(&capitalised(&m.reason), REASON_MAX));
    // Only a call mentions its users: an edit notifies nobody, and an update should not.
    let whom = mention(n).filter(|_| n.action == Action::Trigger).map(|whom| format!("{whom} "));
    let mut text = format!("{}{} *{reason}*", whom.unwrap_or_default(), emoji(m));
    if n.action != Action::Ack {
        text.push('\n');
        text.push_str(&summary(m));
    }
    let mut blocks = vec![section(&text)];
    if n.action != Action::Ack {
        blocks.extend(facts(&m.facts));
    }
    Value::Array(blocks)
}

/// The text for a phone's lock screen, a screen reader, and clients without blocks.
pub(super) fn fallback(n: &Notification) -> String {
    let m = &n.message;
    let whom = mention(n).map(|whom| format!("{whom} ")).unwrap_or_default();
    whom + &escape(&format!("{} {} - {} ({})", emoji(m), m.title, m.summary, m.reason), FALLBACK_MAX)
}

pub(super) fn news_fallback(n: &Notification) -> String {
    let m = &n.message;
    escape(&format!("{} {}: {}", emoji(m), m.title, m.reason), FALLBACK_MAX)
}

/// Disables link previews, and links and mentions in the fallback text.
pub(super) fn add_options(body: &mut Value) {
    body["unfurl_links"] = false.into();
    body["unfurl_media"] = false.into();
    body["parse"] = "none".into();
    body["link_names"] = false.into();
}

/// Mentions of the configured users. Nothing else becomes a mention.
fn mention(n: &Notification) -> Option<String> {
    let ids = n.slack_ids.iter().filter(|id| is_user_id(id)).take(MENTIONS_MAX);
    let all: Vec<String> = ids.map(|id| format!("<@{id}>")).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Whether the text has the form of a user id, such as `U012AB3CD`.
pub(crate) fn is_user_id(text: &str) -> bool {
    let mut bytes = text.bytes();
    let plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit();
    matches!(bytes.next(), Some(b'U' | b'W')) && (2..=USER_ID_MAX).contains(&text.len()) && bytes.all(plain)
}

/// The summary. Markup of the operator's templates is effective; the values in them are escaped
/// already.
fn summary(m: &Message) -> String {
    if m.marked_up { cut(&m.summary, SUMMARY_MAX) } else { escape(&m.summary, SUMMARY_MAX) }
}

fn emoji(m: &Message) -> &'static str {
    match (m.status, m.severity) {
        // The end of the fault was not reported.
        (Status::Resolved, _) if m.ended == Some(Ended::Stale) => "❔",
        (Status::Resolved, _) => "✅",
        (Status::Acknowledged, _) => "👀",
        (Status::Firing, Severity::Page) => "🚨",
        (Status::Firing, Severity::Ticket) => "🎫",
        (Status::Firing, Severity::Info) => "📝",
    }
}

/// Short facts in two columns, long ones at full width, in order of importance.
fn facts(facts: &[Fact]) -> Vec<Value> {
    let mut blocks = Vec::new();
    let mut row: Vec<Value> = Vec::new();
    let flush = |row: &mut Vec<Value>, blocks: &mut Vec<Value>| {
        if !row.is_empty() {
            blocks.push(json!({"type": "section", "fields": std::mem::take(row)}));
        }
    };
    let shown = facts.iter().filter(|fact| !fact.text.trim().is_empty()).take(FACTS_MAX);
    for fact in shown {
        let label = non_empty(escape(&fact.label.replace(['*', '\n'], " "), LABEL_MAX));
        let text = format!("*{label}*\n{}", escape(&fact.text, FACT_MAX));
        if fact.text.chars().count() > HALF_WIDTH || fact.text.contains('\n') {
            flush(&mut row, &mut blocks);
            blocks.push(section(&text));
        } else {
            row.push(mrkdwn(&text));
        }
        if row.len() == FIELDS_MAX {
            flush(&mut row, &mut blocks);
        }
    }
    flush(&mut row, &mut blocks);
    blocks
}

/// The buttons first, then the links.
fn actions(m: &Message, deeds: bool) -> Option<Value> {
    let mut elements: Vec<Value> = if deeds { buttons::for_message(m).collect() } else { Vec::new() };
    let links = m.links.iter().filter_map(|link| Some((link, web_link(&link.href, HREF_MAX)?)));
    elements.extend(links.take(LINKS_MAX).enumerate().map(|(i, (link, href))| {
        let text = non_empty(plain(&link.text, BUTTON_MAX));
        json!({
            "type": "button", "action_id": format!("stepwatch_link_{i}"), "url": href,
            "text": {"type": "plain_text", "text": text, "emoji": false},
        })
    }));
    (!elements.is_empty()).then(|| actions_of(elements))
}

pub(super) fn actions_of(elements: Vec<Value>) -> Value {
    json!({"type": "actions", "elements": elements})
}

pub(super) fn section(text: &str) -> Value {
    json!({"type": "section", "text": mrkdwn(text)})
}

pub(super) fn mrkdwn(text: &str) -> Value {
    json!({"type": "mrkdwn", "text": text, "verbatim": true})
}

/// Text for headers and buttons, which support neither markup nor escapes, without anything similar
/// to a mention.
pub(super) fn plain(text: &str, max: usize) -> String {
    line(text, max).replace('<', "‹").replace('>', "›")
}

/// A time in the reader's own time zone.
fn date(ts: Ts) -> String {
    format!("<!date^{}^{{date_short_pretty}} {{time_secs}}|{ts}>", ts.0.div_euclid(1000))
}

/// Cleaned and escaped text of at most `max` characters as sent. Entities are not split.
pub(crate) fn escape(text: &str, max: usize) -> String {
    cut(&inert(&clean(text)), max)
}

/// Truncates text whose markup is effective.
fn cut(text: &str, max: usize) -> String {
    let text = clean(text);
    let text = text.trim();
    let entity = |c: char| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        _ => None,
    };
    let size = |c: char| entity(c).map_or(1, str::len);
    let whole = text.chars().map(size).sum::<usize>() <= max;
    // One character is reserved for the ellipsis.
    let room = if whole { max } else { max.saturating_sub(1) };
    let mut out = String::with_capacity(text.len());
    let mut length = 0;
    for c in text.chars() {
        length += size(c);
        if length > room {
            break;
        }
        match entity(c) {
            Some(entity) => out.push_str(entity),
            None => out.push(c),
        }
    }
    if !whole {
        out.push('…');
    }
    out
}

/// Similar text without Slack markup: an underscore within a word is no markup, and a `>` only at
/// the beginning of a line.
pub(crate) fn inert(text: &str) -> Cow<'_, str> {
    if !text.contains(['*', '_', '~', '`', '>']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let (before, after) = (&text[..at], &text[at..]);
        out.push(match c {
            '*' => '∗',
            '~' => '∼',
            '`' => 'ˋ',
            '_' => {
                let left = before.trim_end_matches('_').chars().next_back();
                let right = after.trim_start_matches('_').chars().next();
                if left.is_some_and(char::is_alphanumeric) && right.is_some_and(char::is_alphanumeric) {
                    '_'
                } else {
                    'ˍ'
                }
            }
            '>' if before.lines().next_back().is_none_or(|line| line.trim().is_empty())
                || before.ends_with('\n') =>
            {
                '›'
            }
            c => c,
        });
    }
    Cow::Owned(out)
}

/// Slack refuses an empty text.
fn non_empty(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::notify::tests::{gpu_fault, hostile, page};

    fn pretty(v: &Value) -> String {
        serde_json::to_string_pretty(v).unwrap()
    }

    #[test]
    fn a_page_at_one_glance() {
        let n = page("chat", 1, Action::Trigger);
        insta::assert_snapshot!("page_blocks", pretty(&message(&n, false)));
        insta::assert_snapshot!("page_fallback", fallback(&n));
    }

    #[test]
    fn what_can_be_done_about_it() {
        let mut n = page("chat", 1, Action::Trigger);
        let ids = |n: &Notification| {
            let blocks = message(n, true);
            let actions =
                blocks.as_array().unwrap().iter().find(|b| b["type"] == "actions").cloned().unwrap();
            let elements = actions["elements"].as_array().unwrap().clone();
            elements.iter().map(|e| e["action_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let links = ["stepwatch_link_0", "stepwatch_link_1"];
        assert_eq!(
            ids(&n),
            [&["stepwatch_ack", "stepwatch_escalate", "stepwatch_silence", "stepwatch_resolve"][..], &links]
                .concat()
        );
        n.message.status = Status::Acknowledged;
        assert_eq!(
            ids(&n),
            [&["stepwatch_escalate", "stepwatch_silence", "stepwatch_resolve"][..], &links].concat()
        );
        n.message.status = Status::Resolved;
        assert_eq!(ids(&n), links);
        insta::assert_snapshot!(
            "page_with_buttons",
            pretty(&message(&page("chat", 1, Action::Trigger), true))
        );
    }

    #[test]
    fn a_message_that_is_left_says_where_it_continues_and_has_no_buttons() {
        let n = page("chat", 1, Action::Trigger);
        for (channel, shown) in [("#oncall", "#oncall"), ("C0ONCALL00", "<#C0ONCALL00>")] {
            let blocks = pretty(&moved(&n, channel));
            assert!(blocks.contains(&format!("continues in {shown}")), "{blocks}");
            assert!(!blocks.contains("stepwatch_ack") && blocks.contains("stepwatch_link_0"), "{blocks}");
        }
    }

    #[test]
    fn a_faulty_node_at_one_glance() {
        insta::assert_snapshot!("node_page_blocks", pretty(&message(&gpu_fault(true), false)));
        insta::assert_snapshot!("node_ticket_blocks", pretty(&message(&gpu_fault(false), false)));
        insta::assert_snapshot!("node_ticket_fallback", fallback(&gpu_fault(false)));
    }

    #[test]
    fn the_thread_contains_what_is_new() {
        let mut n = page("chat", 2, Action::Resolve);
        n.message.status = Status::Resolved;
        n.message.title = "RESOLVED llama-70b: gradient spike at step 31215".into();
        n.message.reason = "resolved by itself after 12m".into();
        insta::assert_snapshot!("resolve_news", pretty(&news(&n)));
        insta::assert_snapshot!("resolve_news_fallback", news_fallback(&n));
        let header = message(&n, false)[0]["text"]["text"].clone();
        assert_eq!(header, "✅ RESOLVED llama-70b: gradient spike at step 31215");
    }

    #[test]
    fn whoever_it_is_for_is_mentioned_by_a_call_and_by_nothing_else() {
        let mut n = page("chat", 1, Action::Trigger);
        n.slack_ids = vec!["U012AB3CD".into(), "U0BAD> <!channel".into()];
        assert_eq!(message(&n, false)[1]["text"]["text"], "For <@U012AB3CD>");
        assert!(fallback(&n).starts_with("<@U012AB3CD> 🚨 PAGE"), "{}", fallback(&n));
        assert!(news(&n)[0]["text"]["text"].as_str().unwrap().starts_with("<@U012AB3CD> "), "a call again");
        assert!(!message(&n, false).to_string().contains("<!channel"));
        n.action = Action::Update;
        assert!(!news(&n).to_string().contains("<@"), "news rouse nobody");
        let name = is_user_id;
        assert!(name("W1") && !name("U") && !name("") && !name("u012") && !name("U012 ") && !name("C012"));
    }

    #[test]
    fn nobody_can_be_mentioned_by_a_run_name() {
        let n = hostile(page("chat", 1, Action::Trigger));
        let sent = format!("{} {} {} {}", message(&n, false), news(&n), fallback(&n), news_fallback(&n));
        for evil in ["<!channel>", "<!here>", "<@U", "<http", "<javascript", "\u{202e}"] {
            assert!(!sent.contains(evil), "{evil} in {sent}");
        }
        assert!(sent.contains("&lt;!channel&gt;"));
        assert!(!sent.contains("\"url\":\"javascript"), "only web addresses become buttons");
    }

    #[test]
    fn what_would_be_markup_only_looks_like_it() {
        for (text, want) in [
            ("*b* _i_ ~s~ `c` ```d```", "∗b∗ ˍiˍ ∼s∼ ˋcˋ ˋˋˋdˋˋˋ"),
            ("grad_norm of llama__70b", "grad_norm of llama__70b"),
            ("_x__y_ a_ _", "ˍx__yˍ aˍ ˍ"),
            ("> quoted\n > too\n3 > 2", "› quoted\n › too\n3 &gt; 2"),
        ] {
            assert_eq!(escape(text, 200), want);
        }
    }

    #[test]
    fn an_entity_is_never_cut() {
        assert_eq!(escape("a<b", 3), "a…");
        assert_eq!(escape("a<b", 5), "a…");
        assert_eq!(escape("a<b", 6), "a&lt;b");
        assert_eq!(escape("a<bc", 6), "a&lt;…");
        assert_eq!(escape(" \u{202e} ", 10), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_limits_of_block_kit_hold(text in "\\PC{0,40}|[&<>*`\n]{0,40}", times in 1usize..200, facts in 0usize..30) {
            let text = text.repeat(times);
            let mut n = page("chat", 1, Action::Trigger);
            let m = &mut n.message;
            (m.title, m.summary, m.reason) = (text.clone(), text.clone(), text.clone());
            m.facts = vec![Fact { label: text.clone(), text: text.clone() }; facts];
            m.links[0].text = text.clone();
            for blocks in [message(&n, false), news(&n)] {
                check(&blocks);
            }
            prop_assert!(fallback(&n).chars().count() <= FALLBACK_MAX);
            prop_assert!(!fallback(&n).is_empty());
        }
    }

    /// Checks the limits as Slack's reference states them, independently of this module.
    fn check(blocks: &Value) {
        let length = |v: &Value| v.as_str().map_or(0, |s| s.chars().count());
        let mut total = 0;
        let blocks = blocks.as_array().unwrap();
        assert!((1..=50).contains(&blocks.len()));
        for block in blocks {
            let max = if block["type"] == "header" { 150 } else { 3000 };
            let mut texts: Vec<(&Value, usize)> = vec![(&block["text"]["text"], max)];
            for (key, count, max) in [("fields", 10, 2000), ("elements", 10, 3000)] {
                let items = block[key].as_array().map(Vec::as_slice).unwrap_or_default();
                assert!(items.len() <= count);
                texts.extend(items.iter().map(|item| match item["type"].as_str() {
                    Some("button") => (&item["text"]["text"], 75),
                    _ => (&item["text"], max),
                }));
            }
            for (text, max) in texts {
                assert!(text.is_null() || (1..=max).contains(&length(text)), "{text}");
                total += length(text);
            }
        }
        assert!(total <= 13_000, "{total}");
    }
}
