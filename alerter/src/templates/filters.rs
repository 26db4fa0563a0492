//! Filters that format numbers like the built-in messages. An unknown value stays empty.

use minijinja::{Environment, Error, ErrorKind, Value};
use stepwatch_model::time::Span;
use stepwatch_respond::message;

use crate::notify::text::shorten;

/// The default length of `truncate`, in characters.
const TRUNCATE: usize = 80;

pub(super) fn add(env: &mut Environment<'static>) {
    // Formats `252.4` as `4m 12s`.
    env.add_filter("duration", |v: Value| written(&v, |secs| Span::from_secs_f64(secs).to_string()));
    env.add_filter("number", |v: Value| written(&v, message::number));
    env.add_filter("dollars", |v: Value| written(&v, |v| format!("${v:.2}")));
    env.add_filter("percent", |v: Value| written(&v, |v| format!("{:.1} %", 100.0 * v)));
    env.add_filter("truncate", |v: Value, max: Option<usize>| shorten(&text(&v), max.unwrap_or(TRUNCATE)));
    env.add_filter("urlencode", |v: Value| {
        url::form_urlencoded::byte_serialize(text(&v).as_bytes()).collect::<String>().replace('+', "%20")
    });
}

fn written(v: &Value, words: impl Fn(f64) -> String) -> Result<String, Error> {
    if v.is_undefined() || v.is_none() {
        return Ok(String::new());
    }
    let number = f64::try_from(v.clone()).ok();
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("{} is not a number", v.kind()));
    number.map(words).ok_or_else(wrong)
}

fn text(v: &Value) -> String {
    if v.is_undefined() || v.is_none() { String::new() } else { v.to_string() }
}
