//! Templates of the operator for the title, the summary, and additional lines and links of a
//! message.
//!
//! A message is rendered for its receiver before it is stored, and again when it is sent after a
//! wait. The outbox row has the rendered text that is sent. The result is plain text of limited
//! length, which each channel escapes like the built-in text, so that a template cannot mention a
//! channel or write HTML.
//!
//! A template is tried on a complete sample when the configuration is read. If it still fails on a
//! message, that message is sent with the built-in text, and the incident's history, the log and a
//! counter report it.

mod context;
mod filters;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::value::ValueKind;
use minijinja::{Environment, Output, State, UndefinedBehavior, Value};
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;
use stepwatch_respond::message::{Fact, Link, LinkRole};

use crate::notify::slack::inert;
use crate::notify::text::{clean, line, shorten, web_link};
use crate::notify::{ReceiverConfig, TemplatesConfig, test_notification};

/// The most instructions of one template: a hundred times a long one, a few milliseconds.
const FUEL: u64 = 20_000;
/// The most bytes of a template, and of its output before truncation.
const SOURCE_MAX: usize = 8 * 1024;
const OUTPUT_MAX: usize = 16 * 1024;
/// The most characters of a title, as of the built-in one, and of a summary, as the narrowest
/// channel shows.
const TITLE_MAX: usize = 150;
const SUMMARY_MAX: usize = 2000;
const LABEL_MAX: usize = 80;
const TEXT_MAX: usize = 1000;
const HREF_MAX: usize = 2000;
/// The most additional lines, and links.
const LIST_MAX: usize = 10;
/// The deepest nesting of calls, which is generous because there are no macros.
const DEPTH_MAX: usize = 50;
/// The most characters of an error in a history.
const ERROR_MAX: usize = 300;

/// A key in the context of a summary whose markup is effective; no template can use it.
const MARKUP: &str = "__markup";

/// The valid templates, by receiver.
#[derive(Debug, Default)]
pub struct Templates {
    env: Environment<'static>,
    /// The receivers that have templates.
    receivers: BTreeMap<String, Set>,
}

/// The templates of a receiver: names in the environment, which are positions in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Set {
    title: Option<String>,
    summary: Option<String>,
    /// The labels and templates of additional lines.
    facts: Vec<(String, String)>,
    links: Vec<(String, String)>,
    /// Whether the receiver shows the markup of a summary, so that values in it must be escaped.
    markup: bool,
}

/// A template that could not be rendered. The message has the built-in text instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The template's position, such as `receivers[2].templates.title`.
    pub template: String,
    pub error: String,
}

impl Templates {
    /// Parses and tries all templates; adds an error with the position for every mistake.
    pub fn build(common: &TemplatesConfig, receivers: &[ReceiverConfig], errors: &mut Vec<String>) -> Self {
        let mut env = environment();
        let common = Set::build("templates", common, &mut env, errors);
        let mut sets = BTreeMap::new();
        for (i, r) in receivers.iter().enumerate() {
            let own = r.templates.clone().unwrap_or_default();
            let set =
                Set::build(&format!("receivers[{i}].templates"), &own, &mut env, errors).or(&common, &own);
            let set = Set { markup: r.slack.is_some(), ..set };
            if set != (Set { markup: set.markup, ..Set::default() }) {
                sets.insert(r.name.clone(), set);
            }
        }
        let names: Vec<String> = env.templates().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if let Err(error) = trial(&env, &name) {
                errors.push(format!("{name}: {error}"));
            }
        }
        // A missing checkpoint must not cause the built-in text to be used.
        env.set_undefined_behavior(UndefinedBehavior::Chainable);
        Self { env, receivers: sets }
    }

    /// Renders a message with the templates of its receiver.
    pub fn dress(&self, n: &mut Notification) -> Vec<Failed> {
        let Some(set) = self.receivers.get(&n.receiver) else { return Vec::new() };
        let context = context::for_notification(n);
        let mut failed = Vec::new();
        let quoting = minijinja::context! { __markup => set.markup, ..context.clone() };
        let mut render_in = |context: &Value, name: &String| match self.render(name, context) {
            Ok(text) => Some(text),
            Err(error) => {
                failed.push(Failed { template: name.clone(), error });
                None
            }
        };
        let summary = set.summary.as_ref().and_then(|name| render_in(&quoting, name));
        let mut render = |name: &String| render_in(&context, name);
        let title = set.title.as_ref().and_then(&mut render);
        let facts: Vec<(&str, Option<String>)> =
            set.facts.iter().map(|(label, name)| (label.as_str(), render(name))).collect();
        let links: Vec<(&str, Option<String>)> =
            set.links.iter().map(|(text, name)| (text.as_str(), render(name))).collect();
        let m = &mut n.message;
        if let (Some(title), Some(name)) = (title, &set.title) {
            let title = line(&title, TITLE_MAX);
            // Some channels cannot send a message without a title.
            if title.is_empty() {
                failed.push(Failed { template: name.clone(), error: "it wrote nothing".into() });
            } else {
                m.title = title;
            }
        }
        if let Some(summary) = summary {
            m.summary = shorten(clean(&summary).trim(), SUMMARY_MAX);
            m.marked_up = set.markup;
        }
        for (label, text) in facts {
            let text = shorten(clean(&text.unwrap_or_default()).trim(), TEXT_MAX);
            if !text.is_empty() {
                m.facts.push(Fact { label: line(label, LABEL_MAX), text });
            }
        }
        for ((text, href), (_, name)) in links.into_iter().zip(&set.links) {
            let Some(href) = href.map(|h| h.trim().to_owned()).filter(|h| !h.is_empty()) else { continue };
            if web_link(&href, HREF_MAX).is_some() {
                m.links.push(Link { role: LinkRole::Other, text: line(text, LABEL_MAX), href });
            } else {
                failed.push(Failed { template: name.clone(), error: "it wrote no http(s) address".into() });
            }
        }
        failed
    }

    fn render(&self, name: &str, context: &Value) -> Result<String, String> {
        render(&self.env, name, context)
    }
}

impl Set {
    /// Adds the templates of one section to the environment.
    fn build(
        at: &str,
        config: &TemplatesConfig,
        env: &mut Environment<'static>,
        errors: &mut Vec<String>,
    ) -> Self {
        let mut add = |name: String, source: &str| {
            if let Err(error) = read(env, &name, source) {
                errors.push(format!("{name}: {error}"));
                // The mistake is already reported, so later steps must not try the template again.
                env.remove_template(&name);
            }
            name
        };
        let title = config.title.as_ref().map(|source| add(format!("{at}.title"), source));
        let summary = config.summary.as_ref().map(|source| add(format!("{at}.summary"), source));
        let facts = config.facts.iter().flatten().enumerate();
        let facts =
            facts.map(|(i, f)| (f.label.clone(), add(format!("{at}.facts[{i}].text"), &f.text))).collect();
        let links = config.links.iter().flatten().enumerate();
        let links: Vec<_> =
            links.map(|(i, l)| (l.text.clone(), add(format!("{at}.links[{i}].href"), &l.href))).collect();
        for (key, count) in [
            ("facts", config.facts.as_ref().map_or(0, Vec::len)),
            ("links", config.links.as_ref().map_or(0, Vec::len)),
        ] {
            if count > LIST_MAX {
                errors.push(format!("{at}.{key}: has {count} entries, more than {LIST_MAX}"));
            }
        }
        Self { title, summary, facts, links, markup: false }
    }

    /// The receiver's own templates, and the common ones for the fields that it does not set.
    fn or(self, common: &Self, own: &TemplatesConfig) -> Self {
        Self {
            title: self.title.or_else(|| common.title.clone()),
            summary: self.summary.or_else(|| common.summary.clone()),
            facts: if own.facts.is_some() { self.facts } else { common.facts.clone() },
            links: if own.links.is_some() { self.links } else { common.links.clone() },
            markup: self.markup,
        }
    }
}

/// An environment without includes, macros, files, and functions whose memory use depends on a
/// number.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(DEPTH_MAX);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    // Template names end in `.text` and `.title`. Nothing is escaped here, because every channel
    // does it.
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(write);
    env.remove_global("namespace");
    for name in ["batch", "format", "indent", "pprint", "slice", "safe", "escape", "e"] {
        env.remove_filter(name);
    }
    filters::add(&mut env);
    env
}

/// Writes a value. An unknown value is empty, and not the word `none`. Markup in values is removed
/// if markup is effective.
fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), minijinja::Error> {
    if value.is_none() {
        return Ok(());
    }
    if state.lookup(MARKUP).is_some_and(|markup| markup.is_true()) {
        return Ok(out.write_str(&inert(&value.to_string()))?);
    }
    minijinja::escape_formatter(out, state, value)
}

/// Adds a template; checks its syntax and the names that it uses.
fn read(env: &mut Environment<'static>, name: &str, source: &str) -> Result<(), String> {
    if source.len() > SOURCE_MAX {
        return Err(format!("is longer than {SOURCE_MAX} bytes"));
    }
    // A YAML block scalar ends with a line break, which is not part of the text.
    let source = source.trim_end().to_owned();
    env.add_template_owned(name.to_owned(), source).map_err(|e| words(&e))?;
    let template = env.get_template(name).map_err(|e| words(&e))?;
    let sample = context::for_notification(&sample());
    let global = |used: &String| env.globals().any(|(name, _)| used.split('.').next() == Some(name));
    let mut used: Vec<String> =
        template.undeclared_variables(true).into_iter().filter(|u| !global(u)).collect();
    used.sort();
    used.iter().try_for_each(|path| exists(&sample, path))
}

/// Checks that the complete sample has the name; the error lists the names at its level.
fn exists(sample: &Value, path: &str) -> Result<(), String> {
    let mut at = sample.clone();
    for name in path.split('.') {
        let next = at.get_attr(name).unwrap_or_default();
        if at.kind() == ValueKind::Map && next.is_undefined() {
            let mut names: Vec<String> = at.try_iter().into_iter().flatten().map(|n| n.to_string()).collect();
            names.sort();
            return Err(format!("there is no {path:?}, only: {}", names.join(", ")));
        }
        at = next;
    }
    Ok(())
}

/// Renders a template for a complete message, in which an unknown name is an error.
fn trial(env: &Environment<'static>, name: &str) -> Result<(), String> {
    render(env, name, &context::for_notification(&sample())).map(drop)
}

fn sample() -> Notification {
    test_notification("sample", "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C", Ts(1_795_227_416_980))
}

fn render(env: &Environment<'static>, name: &str, context: &Value) -> Result<String, String> {
    let work = || {
        let template = env.get_template(name)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(context.clone(), &mut out)?;
        Ok::<_, minijinja::Error>(out.0)
    };
    // A template must not crash the process.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok(Err(error)) => Err(words(&error)),
        Err(_) => Err("it made the renderer panic".into()),
    }
}

/// The text of the error, with its line in the template.
fn words(error: &minijinja::Error) -> String {
    use minijinja::ErrorKind::{OutOfFuel, WriteFailure};
    let what = match (error.kind(), error.detail()) {
        (OutOfFuel, _) => format!("takes more than {FUEL} instructions"),
        (WriteFailure, _) => format!("writes more than {OUTPUT_MAX} bytes"),
        (kind, None) => kind.to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    };
    let at = error.line().map(|n| format!("line {n} of the template: ")).unwrap_or_default();
    line(&format!("{at}{what}"), ERROR_MAX)
}

/// A buffer with a limit, beyond which writes fail.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_MAX {
            return Err(io::Error::other("too much"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
