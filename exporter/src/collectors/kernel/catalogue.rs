//! The catalogue of XIDs and SXIDs in this exporter.
//!
//! The built-in table of XIDs is in `wire`, where the alerter reads it too.
//! `collectors.kernel.xids` names an operator's table in the same format, for newer codes and for
//! other verdicts on known ones. A code that is in neither table is counted, and published as a
//! ticket.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use stepwatch_wire::conditions::Remedy;
use stepwatch_wire::xid::{self, parse, rows, sorted};
pub use stepwatch_wire::xid::{Level, Xid};

/// The most rows of the operator's table: each is a series of every GPU.
const MAX_ROWS: usize = 512;
const MAX_BYTES: u64 = 1 << 20;

/// Sorted by code.
type Table = &'static [Xid<'static>];

/// The built-in table merged with the operator's, and the text of the latter.
static EXTENDED: RwLock<Option<(String, Table)>> = RwLock::new(None);

/// All known XIDs, sorted by code.
pub fn all() -> Table {
    EXTENDED
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .map_or(xid::built_in(), |(_, table)| table)
}

pub fn knows(code: u32) -> bool {
    all().binary_search_by_key(&code, |xid| xid.code).is_ok()
}

/// The entry of a code; a code that is not in the table is a ticket.
pub fn find(code: u32) -> Xid<'static> {
    xid::find_in(all(), code)
}

/// The verdict on an SXID whose line does not contain its severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sxid {
    pub code: u32,
    pub name: &'static str,
    /// `Info` is only counted.
    pub level: Level,
    pub action: Remedy,
    pub hint: &'static str,
}

/// SXIDs of the switch as a whole that do more harm than others, or none; sorted by code.
pub static SXIDS: [Sxid; 8] = [
    Sxid {
        code: 10004,
        name: "NVSwitch too hot, slowed down",
        level: Level::Error,
        action: Remedy::CheckHardware,
        hint: "Look at the cooling of the node: its NVLinks are slow until the switch is cooler",
    },
    Sxid {
        code: 10005,
        name: "NVSwitch cool again",
        level: Level::Info,
        action: Remedy::None,
        hint: "No action",
    },
    Sxid {
        code: 10006,
        name: "NVSwitch shut down by its heat",
        level: Level::Error,
        action: Remedy::RebootNode,
        hint: "Look at the cooling of the node, then power-cycle it",
    },
    Sxid {
        code: 10007,
        name: "NVSwitch does not answer the host",
        level: Level::Error,
        action: Remedy::RebootNode,
        hint: "Drain the node, power-cycle it; if it returns, report it to the vendor",
    },
    Sxid {
        code: 28001,
        name: "cable module of an NVSwitch warm",
        level: Level::Warn,
        action: Remedy::CheckHardware,
        hint: "Look at the cooling of the cable modules",
    },
    Sxid {
        code: 28002,
        name: "cable module of an NVSwitch cool again",
        level: Level::Info,
        action: Remedy::None,
        hint: "No action",
    },
    Sxid {
        code: 28003,
        name: "cable module of an NVSwitch too hot",
        level: Level::Error,
        action: Remedy::CheckHardware,
        hint: "Look at the cooling of the cable modules: their links are shut off if it goes on",
    },
    Sxid {
        code: 28004,
        name: "cable module of an NVSwitch no longer too hot",
        level: Level::Info,
        action: Remedy::None,
        hint: "No action",
    },
];

/// The entry of an SXID whose line does not contain its severity; an unknown code is a ticket.
pub fn sxid(code: u32) -> Sxid {
    let at = SXIDS.binary_search_by_key(&code, |sxid| sxid.code).ok();
    at.and_then(|at| SXIDS.get(at)).copied().unwrap_or(Sxid {
        code,
        name: "error of the switch as a whole",
        level: Level::Warn,
        action: Remedy::ContactSupport,
        hint: "See whether all NVLinks are up; if one is missing or it returns, report it to the vendor",
    })
}

/// Checks an operator's table; the errors are returned with their positions.
pub fn check(path: &Path) -> Result<(), Vec<String>> {
    let shown = path.display().to_string();
    let text = read(path).map_err(|e| vec![format!("cannot read {shown}: {e}")])?;
    let wrong = mistakes(&shown, &text);
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Adds the rows of a table to the built-in ones, and replaces those added before. The table was
/// checked with the configuration; if it is unreadable now, nothing changes.
pub fn extend(path: Option<&Path>) {
    let text = match path.map(read).transpose() {
        Ok(text) => text,
        Err(error) => {
            tracing::error!(%error, "cannot read the table of XIDs; it stays as it was");
            return;
        }
    };
    let mut extended = EXTENDED.write().unwrap_or_else(PoisonError::into_inner);
    if text.as_deref() == extended.as_ref().map(|(text, _)| text.as_str()) {
        return;
    }
    *extended = text.map(|text| {
        // The table is leaked, because entries are used everywhere. A table has some kilobytes, and
        // changes only when a person edits it.
        let own: &'static str = Box::leak(text.clone().into_boxed_str());
        (text, Box::leak(extended_by(own).into_boxed_slice()) as Table)
    });
}

fn extended_by<'a>(text: &'a str) -> Vec<Xid<'a>> {
    let own = sorted(rows(text).filter_map(|(_, row)| parse(row).ok()));
    let ours = |xid: &&Xid<'a>| own.binary_search_by_key(&xid.code, |own| own.code).is_err();
    let built_in: Vec<Xid<'a>> = xid::built_in().iter().filter(ours).copied().collect();
    sorted(built_in.into_iter().chain(own))
}

fn read(path: &Path) -> io::Result<String> {
    if std::fs::metadata(path)?.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    std::fs::read_to_string(path)
}

fn mistakes(name: &str, text: &str) -> Vec<String> {
    let (mut wrong, mut codes) = (Vec::new(), BTreeSet::new());
    for (line, row) in rows(text) {
        match parse(row) {
            Err(why) => wrong.push(format!("{name}:{line}: {why}")),
            Ok(xid) if !codes.insert(xid.code) => {
                wrong.push(format!("{name}:{line}: {} is there twice", xid.code));
            }
            Ok(_) => {}
        }
    }
    if codes.len() > MAX_ROWS {
        wrong.push(format!("{name}: has {} rows; at most {MAX_ROWS} are taken", codes.len()));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn sxids_are_sorted() {
        assert!(SXIDS.windows(2).all(|w| w[0].code < w[1].code));
    }

    const OWN: &str = "# ours\n\ncode,name,level,action,hint,why,source\n\
        4711,New trouble,error,reset_gpu,\"Drain it, then reset\",\"\",site\n43,Stopped,warn,restart_app,Restart,,site\n";

    #[test]
    fn a_table_of_the_operators_adds_and_overrides() {
        assert_eq!(mistakes("own.csv", OWN), Vec::<String>::new());
        let all = extended_by(OWN);
        assert_eq!(all.len(), xid::built_in().len() + 1);
        assert!(all.windows(2).all(|w| w[0].code < w[1].code));
        let of = |code: u32| *all.iter().find(|xid| xid.code == code).unwrap();
        assert_eq!((of(4711).level, of(4711).hint), (Level::Error, "Drain it, then reset"));
        assert_eq!((of(43).name, of(43).level), ("Stopped", Level::Warn));
        assert_eq!(of(79), find(79));
    }

    #[test]
    fn mistakes_have_their_place() {
        let text = "x,a,info,none,h,w,s\n# fine\n1,,info,none,h,w,s\n2,a,bad,none,h,w,s\n3,a,info,shout,h,w,s\n4,a,info\n\
            5,a,info,none,\"h,w,s\n6,a,info,none,h,w,s,t\n7,a,info,none,h,w,s\n7,a,info,none,h,w,s\n8,\"a\"b,info,none,h,w,s\n";
        insta::assert_snapshot!(mistakes("own.csv", text).join("\n"), @r#"
        own.csv:1: code "x" is no number of an XID
        own.csv:3: name is empty
        own.csv:4: level "bad" is none of info, warn, error
        own.csv:5: action "shout" is none of none, restart_app, drain_reset, reset_gpu, reboot_node, check_hardware, contact_support
        own.csv:6: action is missing; a row is code,name,level,action,hint,why,source
        own.csv:7: the quote of hint does not end
        own.csv:8: there is more than code,name,level,action,hint,why,source; what has a comma in it stands in quotes
        own.csv:10: 7 is there twice
        own.csv:11: after the quote of name, a comma is expected
        "#);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.csv");
        assert!(check(&path).unwrap_err()[0].contains("cannot read"));
        std::fs::write(&path, text).unwrap();
        let yaml = format!("collectors:\n  kernel:\n    xids: {}\n", path.display());
        let shown = crate::config::Config::parse("x.yml", &yaml).unwrap_err().to_string();
        assert!(shown.contains("x.yml:3:") && shown.contains("own.csv:1: code \"x\""), "{shown}");
        std::fs::write(&path, OWN).unwrap();
        assert!(crate::config::Config::parse("x.yml", &yaml).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([0-9]{1,3}|[a-z\",#\n ]|,error,|,reset_gpu,){0,60}") {
            let taken = extended_by(&text).len();
            proptest::prop_assert!(taken >= xid::built_in().len() && taken <= xid::built_in().len() + rows(&text).count());
            let _ = mistakes("x", &text);
        }
    }

    /// The expected contents of `docs/xid.md`.
    fn page() -> String {
        let mut page = String::from(
            "# XID errors\n\nXIDs are errors that the NVIDIA driver reports in the kernel log. This page says how \
             Stepwatch rates\neach of them. It is generated from `wire/src/xid.csv`. A code \
             that is not in the table is\ncounted and reported as a ticket.\n\n\
             * **Level**: an `error` pages if a run has ranks on the node, a `warn` is a ticket, and an `info` is\n  \
             an annotation.\n\
             * **Action**: `restart_app`: restart the job. `drain_reset`: reset the GPU at the next drain.\n  \
             `reset_gpu`: take the node out now and reset the GPU. `reboot_node`: power-cycle the node.\n  \
             `check_hardware`: have a person look at the hardware. `contact_support`: report it to the vendor.\n\
             * **Metrics**: each XID is counted in `gpu_xid_errors_total{gpu,xid}`, from the first one on.\n  \
             `increase()` does not see a first one; `collectors.kernel.metrics` with `include:\n  \
             [gpu_xid_errors_total]` starts each GPU and every code below at zero. XIDs of MIG instances are\n  \
             also counted in `gpu_mig_xid_errors_total{gpu,gi,ci,xid}`.\n\
             * **Events**: each XID is an event `xid` of the stream, with the process and with `caused_by` if the\n  \
             kernel names the XID that caused it. It has the NVLink (`link`) and its `unit` of an XID 74 or\n  \
             144 to 150, and the multiprocessor (`gpc`, `tpc`, `sm`) of a 13, where the line has them. NVLink\n  \
             errors 144 to 150 are rated by their sub-code, as NVIDIA's catalog decodes it, or else by the\n  \
             words Fatal and Nonfatal.\n\
             * **Reading a log**: the first XID of a GPU is usually the cause. Those in the following seconds are\n  \
             mostly consequences.\n\
             * **Your own rows**: `collectors.kernel.xids` in the exporter's configuration names a file with\n  \
             further rows, for codes of a newer driver or to replace rows below. Its columns are\n  \
             `code,name,level,action,hint,why,source`. Put a value with a comma in quotes, and `#` before a\n  \
             comment. Levels and actions are those above. `stepwatch-exporter config check` shows mistakes.\n  \
             Events, counters and `check` use these rows.\n\n\
             | XID | Meaning | Level | Action | What to do | Reason | Source |\n|---|---|---|---|---|---|---|\n",
        );
        for x in xid::built_in() {
            let level = match x.code {
                144..=150 => "by its sub-code",
                154 => "as the line says",
                _ => x.level.as_str(),
            };
            writeln!(
                page,
                "| {} | {} | {level} | `{}` | {} | {} | {} |",
                x.code,
                x.name,
                x.action.as_str(),
                x.hint,
                x.why,
                x.source
            )
            .unwrap();
        }
        page.push_str(
            "\nSources: `catalog` is NVIDIA's \
             [Xid catalog](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) for Ampere and\n\
             later. `header` is `nverror.h` of the open kernel driver. `field` are reports of operators.\n\n\
             ## NVSwitch: SXID\n\nSXIDs are errors of NVSwitches. They are counted in\n\
             `gpu_nvswitch_sxid_errors_total{nvswitch,sxid,severity}` and reported as `xid` events with the name\n\
             `sxid`. The level is `error` if the line says Fatal, and `warn` if it says Non-fatal. Correctable\n\
             errors are only counted.\n\n\
             A fatal SXID affects every GPU of the fabric: drain the node and reboot it. Restarting the fabric\n\
             manager and resetting all GPUs together may also help, but nothing confirms it, so `check` counts\n\
             fatal SXIDs until the next boot.\n\n\
             If the line says none of these (`severity=\"unknown\"`), the error is about the switch as a whole, its\n\
             firmware or its cable modules. It is a ticket, except for these:\n\n\
             | SXID | Meaning | Level | Action | What to do |\n|---|---|---|---|---|\n",
        );
        for x in &SXIDS {
            let level = if x.level == Level::Info { "only counted" } else { x.level.as_str() };
            writeln!(page, "| {} | {} | {level} | `{}` | {} |", x.code, x.name, x.action.as_str(), x.hint)
                .unwrap();
        }
        page
    }

    #[test]
    fn xid_page() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/xid.md");
        if std::env::var_os("STEPWATCH_BLESS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == page(),
            "docs/xid.md differs from the catalogue: STEPWATCH_BLESS=1 cargo test -p stepwatch-exporter xid_page"
        );
    }
}
