//! The XID catalogue: what each code means, how serious it is and what to do, as data.
//!
//! `xid.csv` is the one place; `docs/xid.md` is made from it. Codes come with every driver, so one that is not in the table is no error of
//! anybody's: it is counted and told all the same, as a ticket.

use std::sync::LazyLock;

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

/// What an operator is to do, mildest first.
pub const ACTIONS: [&str; 7] =
    ["none", "restart_app", "drain_reset", "reset_gpu", "reboot_node", "check_hardware", "contact_support"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    pub code: u32,
    pub name: &'static str,
    pub level: Level,
    /// One of [`ACTIONS`].
    pub action: &'static str,
    /// What to do, for a person.
    pub hint: &'static str,
    /// Why it is as serious as we say.
    pub why: &'static str,
    pub source: &'static str,
}

static CATALOGUE: LazyLock<Vec<Xid>> = LazyLock::new(|| {
    let mut all: Vec<Xid> = rows().filter_map(parse).collect();
    all.sort_by_key(|xid| xid.code);
    all
});

/// All that is known, by code.
pub fn all() -> &'static [Xid] {
    &CATALOGUE
}

pub fn knows(code: u32) -> bool {
    CATALOGUE.binary_search_by_key(&code, |xid| xid.code).is_ok()
}

/// What is known of a code; for one that is not in the table, that it is a ticket.
pub fn find(code: u32) -> Xid {
    let at = CATALOGUE.binary_search_by_key(&code, |xid| xid.code).ok();
    at.and_then(|at| CATALOGUE.get(at)).copied().unwrap_or(Xid {
        code,
        name: "unknown XID",
        level: Level::Warn,
        action: "contact_support",
        hint: "Newer than this exporter: look it up in NVIDIA's Xid catalog",
        why: "",
        source: "",
    })
}

fn rows() -> impl Iterator<Item = &'static str> {
    include_str!("xid.csv").lines().filter(|line| !line.starts_with('#')).skip(1)
}

fn parse(row: &'static str) -> Option<Xid> {
    let mut rest = row;
    let mut field = || {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').map(|(f, after)| (f, after.trim_start_matches(',')))?,
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        rest = after;
        Some(field)
    };
    Some(Xid {
        code: field()?.parse().ok()?,
        name: field()?,
        level: field().and_then(Level::parse)?,
        action: field().and_then(|word| ACTIONS.into_iter().find(|action| *action == word))?,
        hint: field()?,
        why: field()?,
        source: field()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn every_row_reads_once() {
        assert_eq!(rows().count(), all().len());
        assert!(all().windows(2).all(|w| w[0].code < w[1].code), "a code is there once");
        for xid in all() {
            assert!(!xid.name.is_empty() && !xid.hint.is_empty() && !xid.why.is_empty(), "{xid:?}");
            assert!(["catalog", "header", "field"].contains(&xid.source), "{xid:?}");
        }
        assert_eq!((find(79).action, find(79).level), ("reboot_node", Level::Error));
        assert_eq!((find(9999).level, find(9999).code), (Level::Warn, 9999));
    }

    /// `docs/xid.md` as it should be.
    fn page() -> String {
        let mut page = String::from(
            "# XID errors\n\nWhat the NVIDIA driver reports in the kernel log, and what Stepwatch makes of it. The table is made from \
             `exporter/src/collectors/kernel/xid.csv`; a code that is not in it is counted and told as a ticket all the same.\n\n\
             * **Level**: `error` is worth a page when it hits a run, `warn` is a ticket, `info` a note.\n\
             * **Action**: `restart_app` the job; `drain_reset` reset the GPU at the next drain; `reset_gpu` take the node out now and reset the \
             GPU; `reboot_node` power-cycle it; `check_hardware` a person looks at it; `contact_support` report it to the vendor.\n\
             * Each is counted in `gpu_xid_errors_total{gpu,xid}`, from zero for every GPU and every code below, so that `increase()` sees the \
             first one; of MIG instances also in `gpu_mig_xid_errors_total{gpu,gi,ci,xid}`. Each is an event `xid` of the stream, with the process, \
             and with `caused_by` where the kernel names the XID that it follows from.\n\
             * The first line of a GPU's trouble is the cause; what comes in the seconds after it is mostly echo.\n\n\
             | XID | Meaning | Level | Action | What to do | Why we treat it so | Source |\n|---|---|---|---|---|---|---|\n",
        );
        for x in all() {
            let level = match x.code {
                144..=150 => "error, or warn if Nonfatal",
                154 => "as the line says",
                _ => x.level.as_str(),
            };
            writeln!(
                page,
                "| {} | {} | {level} | `{}` | {} | {} | {} |",
                x.code, x.name, x.action, x.hint, x.why, x.source
            )
            .unwrap();
        }
        page.push_str(
            "\nSource: `catalog` is NVIDIA's [Xid catalog](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) for Ampere and \
             later, `header` the header `nverror.h` of the open kernel driver, `field` reports of operators.\n\n\
             ## NVSwitch: SXID\n\nErrors of NVSwitches are counted in `gpu_nvswitch_sxid_errors_total{nvswitch,sxid,severity}` and told as `xid` events \
             of name `sxid`: `error` where the line says Fatal, `warn` where it says Non-fatal. Fatal ones take every GPU of the fabric along: drain \
             the node, restart fabric manager and reset all GPUs together.\n",
        );
        page
    }

    #[test]
    fn xid_page() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/xid.md");
        if std::env::var_os("STEPWATCH_BLESS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == page(),
            "docs/xid.md is not what the catalogue says: STEPWATCH_BLESS=1 cargo test -p stepwatch-exporter xid_page"
        );
    }
}
