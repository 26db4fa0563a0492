//! Memory errors of the node, as the drivers of its memory controllers count them (EDAC).
//!
//! This is host memory, not the GPUs'. Corrected errors are a trend to watch. An uncorrected one
//! has hit a process or the kernel, and its module is named, so that it can be replaced.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::origin::Origin;
use crate::roots;
use crate::samples::Samples;

pub const ABOUT: &str = "errors of the node's memory (EDAC)";
pub const NEEDS: &str =
    "/sys/devices/system/edac, where the driver of the memory controller is loaded; any user";
pub const COST: &str = "a few small files";

const SEVERITY: &[&str] = &["controller", "severity"];

pub static ERRORS: Family = Family::counter(
    "edac_errors_total",
    "",
    SEVERITY,
    "Errors of the memory behind a controller, corrected or not, since its driver was loaded",
);
pub static UNATTRIBUTED: Family = Family::counter(
    "edac_unattributed_errors_total",
    "",
    SEVERITY,
    "Those of the errors that the controller could not attribute to a module",
);
pub static MODULE_ERRORS: Family = Family::counter(
    "edac_module_errors_total",
    "",
    &["controller", "module", "label", "severity"],
    "Errors of one memory module, or of one row of chips where the driver does not know modules",
);
pub static INFO: Family = Family::gauge(
    "edac_controller_info",
    "",
    &["controller", "type"],
    "Memory controller with what its driver calls it; always 1",
);
pub static SIZE: Family =
    Family::gauge("edac_controller_size_bytes", "bytes", &["controller"], "Memory behind the controller");
pub static PARITY: Family = Family::counter(
    "edac_pci_parity_errors_total",
    "",
    &[],
    "Parity errors on buses of the node that the memory drivers watch",
);

pub static FAMILIES: &[&Family] = &[&ERRORS, &UNATTRIBUTED, &MODULE_ERRORS, &INFO, &SIZE, &PARITY];

const CORRECTED: &str = "corrected";
const UNCORRECTED: &str = "uncorrected";
/// The most controllers of one node, and the most modules of one controller.
const MAX_CONTROLLERS: usize = 64;
const MAX_MODULES: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(10) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct EdacReader {
    /// The last uncorrected errors of each controller and module.
    uncorrected: BTreeMap<(String, String), u64>,
}

/// A memory module, or a row of chips with a count of its own.
#[derive(Debug, PartialEq, Eq)]
struct Module {
    name: String,
    label: String,
    corrected: Option<u64>,
    uncorrected: Option<u64>,
}

impl EdacReader {
    pub fn new(_: &Config) -> Self {
        Self { uncorrected: BTreeMap::new() }
    }

    /// The number of new errors since the last pass. Errors from before the first pass are not
    /// reported.
    fn news(&mut self, controller: &str, module: &str, now: Option<u64>) -> u64 {
        let Some(now) = now else { return 0 };
        let before = self.uncorrected.insert((controller.to_owned(), module.to_owned()), now);
        before.map_or(0, |before| now.saturating_sub(before))
    }

    fn controller(&mut self, cx: &Context<'_>, dir: &Path, name: &str, out: &mut Samples) {
        let number = |file: &str| roots::read_number::<u64>(&dir.join(file));
        out.maybe(&ERRORS, &[name, CORRECTED], number("ce_count"));
        let uncorrected = number("ue_count");
        out.maybe(&ERRORS, &[name, UNCORRECTED], uncorrected);
        out.maybe(&UNATTRIBUTED, &[name, CORRECTED], number("ce_noinfo_count"));
        out.maybe(&UNATTRIBUTED, &[name, UNCORRECTED], number("ue_noinfo_count"));
        out.maybe(&SIZE, &[name], number("size_mb").map(|megabytes| megabytes << 20));
        if let Some(kind) = roots::read(&dir.join("mc_name")) {
            out.set(&INFO, &[name, &kind], 1u64);
        }
        let mut blamed = Vec::new();
        for module in modules(dir) {
            let labels = |severity| [name, &*module.name, &*module.label, severity];
            out.maybe(&MODULE_ERRORS, &labels(CORRECTED), module.corrected);
            out.maybe(&MODULE_ERRORS, &labels(UNCORRECTED), module.uncorrected);
            if self.news(name, &module.name, module.uncorrected) > 0 {
                blamed.push(if module.label.is_empty() { module.name } else { module.label });
            }
        }
        let more = self.news(name, "", uncorrected);
        if more > 0 {
            cx.hub.publish(Origin::Node, event(name, more, &blamed));
        }
    }
}

fn event(controller: &str, more: u64, blamed: &[String]) -> Event {
    let errors = if more == 1 { "an error".to_owned() } else { format!("{more} errors") };
    let of = if blamed.is_empty() { String::new() } else { format!(", module {}", blamed.join(", ")) };
    let text = format!("{errors} of host memory that could not be corrected (controller {controller}{of})");
    tracing::error!(controller, more, modules = ?blamed, "memory errors that could not be corrected");
    let mut event = Event {
        ts: Some(unix_now()),
        name: Some(NodeCondition::Mce.name().into()),
        code: Some(1),
        level: Some("error".into()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("once".into(), Value::Bool(true));
    event.extra.insert("device".into(), Value::Text(controller.to_owned()));
    event.extra.insert("source".into(), Value::Text("edac".into()));
    event.extra.insert("errors".into(), Value::Number(more as f64));
    if !blamed.is_empty() {
        event.extra.insert("modules".into(), Value::Text(blamed.join(", ")));
    }
    event
}

/// The modules of a controller as its driver names them: `dimm*` or `rank*`, or `csrow*` in older
/// drivers.
fn modules(dir: &Path) -> Vec<Module> {
    let names = roots::list(dir).unwrap_or_default();
    let of = |prefix: &str| {
        let numbered = |n: &&String| {
            let number = n.strip_prefix(prefix).unwrap_or_default();
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        };
        names.iter().filter(numbered).take(MAX_MODULES).cloned().collect::<Vec<_>>()
    };
    let named: Vec<_> = of("dimm").into_iter().chain(of("rank")).collect();
    if !named.is_empty() {
        return named.into_iter().map(|name| module(&dir.join(&name), name)).collect();
    }
    of("csrow").into_iter().map(|name| row(&dir.join(&name), name)).collect()
}

fn module(dir: &Path, name: String) -> Module {
    Module {
        label: roots::read(&dir.join("dimm_label")).unwrap_or_default(),
        corrected: roots::read_number(&dir.join("dimm_ce_count")),
        uncorrected: roots::read_number(&dir.join("dimm_ue_count")),
        name,
    }
}

/// A row of chips, which may span several modules: one a channel.
fn row(dir: &Path, name: String) -> Module {
    let channels = (0..MAX_MODULES).map_while(|i| roots::read(&dir.join(format!("ch{i}_dimm_label"))));
    let labels: Vec<String> = channels.filter(|label| !label.is_empty()).collect();
    Module {
        label: labels.join(" "),
        corrected: roots::read_number(&dir.join("ce_count")),
        uncorrected: roots::read_number(&dir.join("ue_count")),
        name,
    }
}

fn controllers(dir: &Path) -> Vec<String> {
    let names = roots::list(dir).unwrap_or_default();
    let is_one = |n: &String| n.strip_prefix("mc").is_some_and(|n| n.parse::<u32>().is_ok());
    names.into_iter().filter(is_one).take(MAX_CONTROLLERS).collect()
}

impl Collector for EdacReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let found = controllers(&cx.roots.sys("devices/system/edac/mc"));
        Ok(if found.is_empty() {
            Support::Unsupported("no driver of a memory controller is loaded".into())
        } else {
            Support::Supported(found.join(" "))
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let dir = cx.roots.sys("devices/system/edac/mc");
        for name in controllers(&dir) {
            self.controller(cx, &dir.join(&name), &name, out);
        }
        let parity = cx.roots.sys("devices/system/edac/pci/pci_parity_count");
        out.maybe(&PARITY, &[], roots::read_number::<u64>(&parity));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join("devices/system/edac").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn modules_rows_and_what_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = EdacReader::new(&Config::default());
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
        write(
            dir.path(),
            &[
                ("mc/mc0/ce_count", "12"),
                ("mc/mc0/ue_count", "1"),
                ("mc/mc0/mc_name", "Intel_0 Socket#0 IMC#0"),
                ("mc/mc0/size_mb", "65536"),
                ("mc/mc0/dimm0/dimm_label", "CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
                ("mc/mc0/dimm0/dimm_ce_count", "12"),
                ("mc/mc0/dimm0/dimm_ue_count", "not a number"),
                ("mc/mc1/ce_count", "0"),
                ("mc/mc1/csrow0/ce_count", "3"),
                ("mc/mc1/csrow0/ue_count", "0"),
                ("mc/mc1/csrow0/ch0_dimm_label", "DIMM_A1"),
                ("mc/mc1/csrow0/ch1_dimm_label", "DIMM_B1"),
                ("mc/power/control", "auto"),
                ("pci/pci_parity_count", "2"),
            ],
        );
        assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("mc0 mc1".into()));
        let page = bench.collect(&mut reader);
        let label = "CPU_SrcID#0_MC#0_Chan#0_DIMM#0";
        for (family, labels, want) in [
            (&ERRORS, &["mc0", CORRECTED][..], Some(12.0)),
            (&ERRORS, &["mc0", UNCORRECTED], Some(1.0)),
            (&ERRORS, &["mc1", UNCORRECTED], None),
            (&MODULE_ERRORS, &["mc0", "dimm0", label, CORRECTED], Some(12.0)),
            (&MODULE_ERRORS, &["mc0", "dimm0", label, UNCORRECTED], None),
            (&MODULE_ERRORS, &["mc1", "csrow0", "DIMM_A1 DIMM_B1", CORRECTED], Some(3.0)),
            (&SIZE, &["mc0"], Some(68_719_476_736.0)),
            (&INFO, &["mc0", "Intel_0 Socket#0 IMC#0"], Some(1.0)),
            (&PARITY, &[], Some(2.0)),
        ] {
            assert_eq!(page.get(family, labels), want, "{} {labels:?}", family.name);
        }
        assert!(bench.published().is_empty(), "what happened before this exporter started is not news");
    }

    #[test]
    fn an_error_that_was_not_corrected_is_an_event_that_names_the_module() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = EdacReader::new(&Config::default());
        let counts = |controller: &str, module: &str| {
            write(
                dir.path(),
                &[
                    ("mc/mc0/ue_count", controller),
                    ("mc/mc0/dimm3/dimm_ue_count", module),
                    ("mc/mc0/dimm3/dimm_label", "P1-DIMMC1"),
                ],
            );
        };
        counts("1", "1");
        bench.collect(&mut reader);
        counts("3", "3");
        bench.collect(&mut reader);
        bench.collect(&mut reader);
        let [event] = &bench.published()[..] else { panic!() };
        assert_eq!((event.kind, event.name.as_deref(), event.code), (Kind::Hw, Some("mce"), Some(1)));
        assert_eq!(event.extra.get("once"), Some(&Value::Bool(true)));
        let text = event.text.as_deref().unwrap();
        assert_eq!(
            text,
            "2 errors of host memory that could not be corrected (controller mc0, module P1-DIMMC1)"
        );
        counts("0", "0");
        bench.collect(&mut reader);
        assert!(bench.published().is_empty(), "the driver was loaded anew");
    }
}
