//! The runbooks of the project, embedded in the program, so that links in messages work without
//! internet access.

use std::borrow::Cow;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use stepwatch_model::Kind;

use super::layout::{Frame, Place};
use super::page::{Result, page};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;

/// The pages of `docs/runbooks/`: name and Markdown.
const RUNBOOKS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runbooks.rs"));
/// The name of the list of runbooks.
const CONTENTS: &str = "README";
/// The base URL of the other documents.
const DOCS: &str = "https://github.com/stepwatch/stepwatch/blob/main/docs/";

#[derive(Debug, Template)]
#[template(path = "runbook.html")]
struct RunbookPage {
    frame: Frame,
    /// HTML by [`to_html`] from our own document.
    body: String,
}

/// `GET /runbooks`
pub(super) async fn contents(State(api): State<Arc<Api>>, caller: Caller) -> Result<Response> {
    show_one(&api, &caller, CONTENTS).await
}

/// `GET /runbooks/{kind}`, with `.md` or without.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Response> {
    show_one(&api, &caller, name.strip_suffix(".md").unwrap_or(&name)).await
}

async fn show_one(api: &Api, caller: &Caller, name: &str) -> Result<Response> {
    let found = RUNBOOKS.iter().find(|(known, _)| *known == name);
    let (name, text) = found.ok_or_else(|| ApiError::not_found(format!("there is no runbook {name:?}")))?;
    let title = text.lines().next().unwrap_or(name).trim_start_matches(['#', ' ']);
    let frame = Frame::new(api, caller, Place::Runbooks, title, &format!("/runbooks/{name}")).await?;
    let frame = Frame { renews: false, reloads: false, ..frame };
    Ok(page(StatusCode::OK, &RunbookPage { frame, body: to_html(text) }))
}

/// The meaning of a kind: the first sentence of its runbook, as plain text.
pub(super) fn meaning(kind: Kind) -> Option<String> {
    let (_, text) = RUNBOOKS.iter().find(|(name, _)| *name == kind.as_str())?;
    let (_, rest) = text.split_once("**Means.** ")?;
    let mut blocks = rest.split("\n\n").map(plain);
    let first = blocks.next()?;
    // A list that the sentence introduces is a part of it.
    let whole = if first.ends_with(':') { format!("{first} {}", blocks.next()?) } else { first };
    let end = whole.find(". ").map_or(whole.len(), |at| at + 1);
    Some(whole[..end].to_owned())
}

/// The plain text of a Markdown block, on one line.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    for event in Parser::new(markdown) {
        match event {
            Event::Text(part) | Event::Code(part) => text.push_str(&part),
            Event::SoftBreak | Event::End(TagEnd::Item) => text.push(' '),
            _ => {}
        }
    }
    text.trim_end().to_owned()
}

/// Converts Markdown to HTML. HTML in it is shown as text; links lead to our own pages, to the
/// other documents, or to HTTP addresses.
fn to_html(markdown: &str) -> String {
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES).map(|event| match event {
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let dest_url = CowStr::from(target(&dest_url).into_owned());
            Event::Start(Tag::Link { link_type, dest_url, title, id })
        }
        // No external resources are loaded.
        Event::Start(Tag::Image { .. }) => Event::Start(Tag::Emphasis),
        Event::End(TagEnd::Image) => Event::End(TagEnd::Emphasis),
        other => other,
    });
    let mut out = String::with_capacity(markdown.len() * 2);
    html::push_html(&mut out, events);
    out
}

fn target(url: &str) -> Cow<'_, str> {
    if url.starts_with('#') || url.starts_with("https://") || url.starts_with("http://") {
        return Cow::Borrowed(url);
    }
    if let Some(document) = url.strip_prefix("../") {
        return Cow::Owned(format!("{DOCS}{}", document.trim_start_matches("../")));
    }
    let (path, anchor) = url.split_once('#').map_or((url, ""), |(path, anchor)| (path, anchor));
    let name = path.strip_suffix(".md").filter(|name| RUNBOOKS.iter().any(|(known, _)| known == name));
    match name {
        Some(name) if anchor.is_empty() => Cow::Owned(format!("/runbooks/{name}")),
        Some(name) => Cow::Owned(format!("/runbooks/{name}#{anchor}")),
        None => Cow::Borrowed("#"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_runbook_inside() {
        for kind in Kind::ALL {
            let name = kind.runbook();
            let name = name.trim_end_matches(".md");
            assert!(RUNBOOKS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn every_runbook_says_first_what_its_kind_means() {
        for kind in Kind::ALL {
            let meaning = meaning(*kind).unwrap_or_default();
            assert!(meaning.ends_with('.') && (20..700).contains(&meaning.len()), "{kind:?}: {meaning}");
            assert!(!meaning.contains("**") && !meaning.contains("]("), "{meaning}");
        }
    }

    #[test]
    fn markup_is_text_and_links_stay_with_us() {
        let html = to_html(
            "# T\n\n<script>alert(1)</script>\n\na <b onclick=x>b</b> [hang](hang.md) [x](javascript:alert(1)) \
             [doc](../incidents.md#routes) ![p](https://evil.example/p.png)",
        );
        assert!(!html.contains("<script") && !html.contains("<b ") && !html.contains("<img"), "{html}");
        assert!(html.contains("href=\"/runbooks/hang\"") && !html.contains("javascript"), "{html}");
        assert!(html.contains("docs/incidents.md#routes\""), "{html}");
    }

    #[test]
    fn every_link_of_every_runbook_leads_somewhere() {
        for (name, text) in RUNBOOKS {
            let html = to_html(text);
            assert!(!html.contains("href=\"#\""), "{name}: {html}");
        }
    }
}
