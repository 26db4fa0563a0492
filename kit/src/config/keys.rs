//! The keys that a configuration accepts, derived from its type.
//!
//! A sample file that claims to show every key is checked against this list. The keys come from the
//! errors that users see: an unknown key is inserted at every place, and the error lists the
//! accepted keys.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::parse;

const NOBODY: &str = "nobody_has_this_key";
/// The most levels of keys; types may contain themselves.
const MAX_DEPTH: usize = 8;

/// Returns the dotted path of every key that `T` accepts, with `[]` for an element of a list:
/// `sources[].tail.path`.
///
/// Only enums and structs that deny unknown fields list their keys; the keys of a free map are the
/// user's own. Enum variants without content are values, not keys.
pub fn accepted<T: DeserializeOwned>() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    ask::<T>(&|inner| inner.to_owned(), "", &mut found, 0);
    found
}

/// Inserts the unknown key at the place where `around` puts its argument.
fn ask<T: DeserializeOwned>(
    around: &dyn Fn(&str) -> String,
    path: &str,
    found: &mut BTreeSet<String>,
    depth: usize,
) {
    let offered = if depth < MAX_DEPTH { offered::<T>(&around(&format!("{{{NOBODY}: 0}}"))) } else { None };
    let Some((what, names)) = offered else { return };
    for key in names {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let before = found.len();
        ask::<T>(&|inner| around(&format!("{{{key}: {inner}}}")), &path, found, depth + 1);
        ask::<T>(&|inner| around(&format!("{{{key}: [{inner}]}}")), &format!("{path}[]"), found, depth + 1);
        if what == What::Field || found.len() > before {
            found.insert(path);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Field,
    Variant,
}

fn offered<T: DeserializeOwned>(text: &str) -> Option<(What, Vec<String>)> {
    let message = parse::<T>("", text).err()?.message();
    let what = if message.contains(&format!("unknown field `{NOBODY}`")) {
        What::Field
    } else if message.contains(&format!("unknown variant `{NOBODY}`")) {
        What::Variant
    } else {
        return None;
    };
    let (_, names) = message.split_once(", expected one of ")?;
    Some((what, names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        plain: u32,
        inner: Inner,
        list: Vec<Choice>,
        free: std::collections::BTreeMap<String, u32>,
    }

    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        only: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[expect(dead_code, reason = "only its shape is asked for")]
    enum Choice {
        First(Inner),
        Second,
    }

    #[test]
    fn every_place_is_asked() {
        let want = ["free", "inner", "inner.only", "list", "list[].first", "list[].first.only", "plain"];
        assert_eq!(accepted::<Outer>().into_iter().collect::<Vec<_>>(), want);
    }
}
