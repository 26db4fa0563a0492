//! The meaning, severity and remedy of each XID, as data.
//!
//! `xid.csv` is the only source; `docs/xid.md` is generated from it. The exporter uses it for XIDs
//! of the kernel log and NVML, the alerter for those that Prometheus has scraped. New drivers add
//! codes, so an unknown code is not an error: it is a ticket.

use std::sync::LazyLock;

use crate::conditions::Remedy;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Info, Self::Warn, Self::Error].into_iter().find(|level| level.as_str() == word)
    }
}

/// Who can cause an XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The application, by itself.
    Program,
    /// The application or a faulty GPU.
    Either,
    /// The hardware of the node, or its driver.
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid<'a> {
    pub code: u32,
    pub name: &'a str,
    pub level: Level,
    pub action: Remedy,
    /// Advice for a person.
    pub hint: &'a str,
    /// The reason for the level.
    pub why: &'a str,
    pub source: &'a str,
    pub fault: Fault,
}

/// The header of a table, which is optional.
const HEADER: &str = "code,name,level,action,hint,why,source";

static BUILT_IN: LazyLock<Vec<Xid<'static>>> =
    LazyLock::new(|| sorted(rows(include_str!("xid.csv")).filter_map(|(_, row)| parse(row).ok())));

/// The built-in table, sorted by code.
pub fn built_in() -> &'static [Xid<'static>] {
    &BUILT_IN
}

/// The entry of a code in the built-in table; as [`find_in`] if it is not there.
pub fn find(code: u32) -> Xid<'static> {
    find_in(built_in(), code)
}

/// The entry of a code in a table sorted by code. A code that is not in the table becomes a
/// warning, which is a ticket.
pub fn find_in<'a>(table: &[Xid<'a>], code: u32) -> Xid<'a> {
    let at = table.binary_search_by_key(&code, |xid| xid.code).ok();
    at.and_then(|at| table.get(at)).copied().unwrap_or(Xid {
        code,
        name: "unknown XID",
        level: Level::Warn,
        action: Remedy::ContactSupport,
        hint: "Newer than this program: look it up in NVIDIA's Xid catalog",
        why: "",
        source: "",
        fault: Fault::Node,
    })
}

pub fn sorted<'a>(rows: impl Iterator<Item = Xid<'a>>) -> Vec<Xid<'a>> {
    let mut all: Vec<Xid<'a>> = rows.collect();
    all.sort_by_key(|xid| xid.code);
    all
}

/// The rows of a table with their line numbers, without comments and header.
pub fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let says = |row: &&str| !row.is_empty() && !row.starts_with('#') && *row != HEADER;
    (1..).zip(text.lines().map(str::trim)).filter(move |(_, row)| says(row))
}

/// Parses a row. The error says what is wrong with it.
pub fn parse(row: &str) -> Result<Xid<'_>, String> {
    let mut rest = Some(row);
    let mut field = |name: &str| -> Result<&str, String> {
        let from = rest.ok_or_else(|| format!("{name} is missing; a row is {HEADER}"))?;
        let (field, after) = match from.strip_prefix('"') {
            Some(quoted) => {
                let (field, after) =
                    quoted.split_once('"').ok_or_else(|| format!("the quote of {name} does not end"))?;
                match after.strip_prefix(',') {
                    Some(after) => (field, Some(after)),
                    None if after.is_empty() => (field, None),
                    None => return Err(format!("after the quote of {name}, a comma is expected")),
                }
            }
            None => from.split_once(',').map_or((from, None), |(field, after)| (field, Some(after))),
        };
        rest = after;
        Ok(field)
    };
    let code = field("code")?;
    let code = code.parse().map_err(|_| format!("code {code:?} is no number of an XID"))?;
    let (name, level, action) = (field("name")?, field("level")?, field("action")?);
    if name.is_empty() {
        return Err("name is empty".to_owned());
    }
    let level = Level::parse(level).ok_or_else(|| format!("level {level:?} is none of info, warn, error"))?;
    let action = Remedy::parse(action).ok_or_else(|| {
        format!("action {action:?} is none of {}", Remedy::ALL.map(Remedy::as_str).join(", "))
    })?;
    let (hint, why, source) = (field("hint")?, field("why")?, field("source")?);
    let fault = match rest {
        None => Fault::Node,
        Some("program") => Fault::Program,
        Some("either") => Fault::Either,
        Some(_) => {
            return Err(format!("there is more than {HEADER}; what has a comma in it stands in quotes"));
        }
    };
    Ok(Xid { code, name, level, action, hint, why, source, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_reads_once() {
        for (line, row) in rows(include_str!("xid.csv")) {
            assert!(parse(row).is_ok(), "xid.csv:{line}: {}", parse(row).unwrap_err());
        }
        assert!(built_in().windows(2).all(|w| w[0].code < w[1].code), "a code is there once");
        for xid in built_in() {
            assert!(!xid.name.is_empty() && !xid.hint.is_empty() && !xid.why.is_empty(), "{xid:?}");
            assert!(["catalog", "header", "field"].contains(&xid.source), "{xid:?}");
        }
        assert_eq!((find(79).action, find(79).level), (Remedy::RebootNode, Level::Error));
        assert_eq!((find(9999).level, find(9999).code), (Level::Warn, 9999));
        let of = |fault| built_in().iter().filter(|x| x.fault == fault).map(|x| x.code).collect::<Vec<_>>();
        assert_eq!((of(Fault::Either), of(Fault::Program)), (vec![13, 31], vec![43, 45]));
    }
}
