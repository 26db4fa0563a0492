//! A page with the channels as a person would see them.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Channel, Post, Slack};
use crate::html::{self, escape};

const STYLE: &str = r"
.channel{background:#fff;border:1px solid #ddd;border-radius:8px;margin:0 auto 24px;max-width:860px}
.channel h2{margin:0;padding:12px 20px;border-bottom:1px solid #ddd;font-size:17px}
.post{padding:12px 20px;display:flex;gap:12px}
.avatar{width:36px;height:36px;border-radius:6px;background:#4a154b;color:#fff;font-weight:700;text-align:center;line-height:36px;flex:none}
.post .body{min-width:0;flex:1}
.who{font-weight:700}.app{background:#e8e8e8;font-size:10px;padding:1px 4px;border-radius:3px;margin:0 6px;font-weight:400}
.hdr{font-size:18px;font-weight:700;margin:4px 0}
.fields{display:grid;grid-template-columns:1fr 1fr;gap:6px 24px;margin:6px 0}
.ctx{color:#616061;font-size:12px;margin:4px 0}
.att{border-left:4px solid #ddd;padding-left:12px;margin:6px 0}
.thread{border-left:2px solid #e8e8e8;margin:8px 0 0 4px;padding-left:6px}
.thread .post{padding:6px 10px}.thread .avatar{width:24px;height:24px;line-height:24px;font-size:12px}
.btn{display:inline-block;border:1px solid #bbb;border-radius:4px;padding:4px 10px;margin:4px 6px 0 0;font-size:13px;font-weight:600}
.btn.primary{background:#007a5a;color:#fff;border-color:#007a5a}.btn.danger{background:#e01e5a;color:#fff;border-color:#e01e5a}
";

pub(super) fn render(slack: &Slack) -> String {
    let mut out = String::new();
    let used = |c: &&Channel| slack.posts.iter().any(|p| p.channel == c.id);
    for channel in slack.channels.iter().filter(used) {
        let _ = write!(out, "<section class=channel><h2># {}</h2>", escape(&channel.name));
        for post in slack.top().filter(|p| p.channel == channel.id) {
            message(&mut out, slack, post);
        }
        out.push_str("</section>");
    }
    if out.is_empty() {
        out.push_str("<p class=empty>Nobody has said anything yet.</p>");
    }
    html::page("Slack (fake)", STYLE, &out)
}

fn message(out: &mut String, slack: &Slack, post: &Post) {
    out.push_str("<div class=post><div class=avatar>S</div><div class=body>");
    let at = post.ts.split('.').next().and_then(|s| s.parse().ok()).unwrap_or(0);
    let _ = write!(
        out,
        "<div><span class=who>Stepwatch</span><span class=app>APP</span><span class=dim>{}{}</span></div>",
        html::clock(at),
        if post.edits.is_empty() { "" } else { " (edited)" },
    );
    if post.blocks.is_empty() && post.attachments.is_empty() {
        let _ = write!(out, "<div>{}</div>", mrkdwn(&post.text));
    }
    post.blocks.iter().for_each(|b| block(out, b));
    for file in slack.shown_files().filter(|file| post.file.as_deref() == Some(&file.id)) {
        let _ = write!(out, "<div class=ctx>[{}: {}]</div>", escape(&file.name), escape(&file.alt));
    }
    for a in &post.attachments {
        let color = a["color"].as_str().filter(|c| c.bytes().all(|b| b == b'#' || b.is_ascii_alphanumeric()));
        let _ = write!(out, "<div class=att style=\"border-color:{}\">", color.unwrap_or("#ddd"));
        if let Some(text) = a["text"].as_str() {
            let _ = write!(out, "<div>{}</div>", mrkdwn(text));
        }
        a["blocks"].as_array().into_iter().flatten().for_each(|b| block(out, b));
        out.push_str("</div>");
    }
    let replies: Vec<_> = slack.replies(&post.ts).collect();
    if !replies.is_empty() {
        out.push_str("<div class=thread>");
        replies.iter().for_each(|r| message(out, slack, r));
        out.push_str("</div>");
    }
    out.push_str("</div></div>");
}

fn block(out: &mut String, b: &Value) {
    match b["type"].as_str().unwrap_or_default() {
        "header" => {
            let _ = write!(out, "<div class=hdr>{}</div>", text(&b["text"]));
        }
        "section" => {
            let _ = write!(out, "<div>{}</div>", text(&b["text"]));
            if let Some(fields) = b["fields"].as_array() {
                out.push_str("<div class=fields>");
                fields.iter().for_each(|f| {
                    let _ = write!(out, "<div>{}</div>", text(f));
                });
                out.push_str("</div>");
            }
        }
        "context" => {
            let parts: Vec<_> = b["elements"].as_array().into_iter().flatten().map(text).collect();
            let _ = write!(out, "<div class=ctx>{}</div>", parts.join(" &nbsp; "));
        }
        "actions" => b["elements"].as_array().into_iter().flatten().for_each(|e| {
            let style =
                e["style"].as_str().filter(|s| matches!(*s, "primary" | "danger")).unwrap_or_default();
            let url = e["url"].as_str().filter(|u| u.starts_with("http")).unwrap_or("#");
            let _ = write!(out, "<a class=\"btn {style}\" href=\"{}\">{}</a>", escape(url), text(&e["text"]));
        }),
        "image" => {
            let (src, alt) =
                (b["image_url"].as_str().unwrap_or_default(), b["alt_text"].as_str().unwrap_or_default());
            let _ =
                write!(out, "<img style=\"max-width:100%\" src=\"{}\" alt=\"{}\">", escape(src), escape(alt));
        }
        "divider" => out.push_str("<hr>"),
        _ => {}
    }
}

fn text(t: &Value) -> String {
    let s = t["text"].as_str().unwrap_or_default();
    if t["type"] == "mrkdwn" { mrkdwn(s) } else { emoji(&escape(s)).replace('\n', "<br>") }
}

/// Converts Slack's markup to HTML. The sender has escaped `& < >` in the text, so the remaining
/// angle brackets are links or mentions. A mention is highlighted, so that an injected one is
/// visible.
fn mrkdwn(s: &str) -> String {
    let mut out = String::new();
    let mut rest = s;
    while let Some(open) = rest.find('<') {
        out.push_str(&inline(&rest[..open]));
        let Some(close) = rest[open..].find('>') else {
            rest = &rest[open + 1..];
            out.push_str("&lt;");
            continue;
        };
        let inside = &rest[open + 1..open + close];
        let (target, label) = inside.split_once('|').unwrap_or((inside, inside));
        if target.starts_with("http") {
            let _ = write!(out, "<a href=\"{}\">{}</a>", attribute(target), attribute(label));
        } else if let Some(at) = target.strip_prefix("!date^") {
            let seconds = at.split('^').next().and_then(|s| s.parse().ok()).unwrap_or(0);
            let _ = write!(out, "today at {} UTC", html::clock(seconds));
        } else {
            let _ = write!(out, "<mark>{}</mark>", attribute(inside));
        }
        rest = &rest[open + close + 1..];
    }
    out.push_str(&inline(rest));
    out.replace('\n', "<br>")
}

/// Escapes without escaping the sender's entities twice.
fn attribute(s: &str) -> String {
    escape(&s.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// Converts `*bold*`, `_italic_`, `` `code` `` and emoji in a text without links.
fn inline(s: &str) -> String {
    let mut out = emoji(&attribute(s));
    for (mark, open, close) in [('`', "<code>", "</code>"), ('*', "<b>", "</b>"), ('_', "<i>", "</i>")] {
        out = wrap(&out, mark, open, close);
    }
    out
}

/// Replaces pairs of `mark` at word edges; other marks are literal, as in `grad_norm`.
fn wrap(s: &str, mark: char, open: &str, close: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut rest = s;
    let mut before = ' ';
    while let Some(at) = rest.find(mark) {
        let (head, tail) = (&rest[..at], &rest[at + 1..]);
        out.push_str(head);
        before = head.chars().next_back().unwrap_or(before);
        let end = tail.find(mark).filter(|e| {
            let after = tail[e + 1..].chars().next().unwrap_or(' ');
            *e > 0 && !before.is_alphanumeric() && !after.is_alphanumeric() && !tail[..*e].contains('\n')
        });
        if let Some(end) = end {
            let _ = write!(out, "{open}{}{close}", &tail[..end]);
            rest = &tail[end + 1..];
        } else {
            out.push(mark);
            rest = tail;
        }
        before = mark;
    }
    out.push_str(rest);
    out
}

fn emoji(s: &str) -> String {
    const KNOWN: &[(&str, &str)] = &[
        (":rotating_light:", "\u{1f6a8}"),
        (":red_circle:", "\u{1f534}"),
        (":large_yellow_circle:", "\u{1f7e1}"),
        (":large_orange_circle:", "\u{1f7e0}"),
        (":large_green_circle:", "\u{1f7e2}"),
        (":large_blue_circle:", "\u{1f535}"),
        (":white_check_mark:", "\u{2705}"),
        (":eyes:", "\u{1f440}"),
        (":warning:", "\u{26a0}\u{fe0f}"),
        (":ticket:", "\u{1f3ab}"),
        (":fire:", "\u{1f525}"),
        (":pager:", "\u{1f4df}"),
        (":information_source:", "\u{2139}\u{fe0f}"),
    ];
    KNOWN.iter().fold(s.to_owned(), |s, (name, sign)| s.replace(name, sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_html_and_nothing_else_does() {
        assert_eq!(mrkdwn("*Loss* of `a_b` in grad_norm"), "<b>Loss</b> of <code>a_b</code> in grad_norm");
        assert_eq!(mrkdwn("<https://x/y|see &amp; act>"), "<a href=\"https://x/y\">see &amp; act</a>");
        assert_eq!(mrkdwn("a &lt;b&gt; <!channel>"), "a &lt;b&gt; <mark>!channel</mark>");
        assert_eq!(mrkdwn("<script>alert(1)</script"), "<mark>script</mark>alert(1)&lt;/script");
        assert_eq!(mrkdwn("2 * 3 * 4"), "2 <b> 3 </b> 4");
    }
}
