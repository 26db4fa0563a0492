//! Metrics that scripts of the site write into files, with the semantics of node_exporter's
//! textfile collector.
//!
//! Every `*.prom` of the directories is read completely or not at all. A file with an invalid line
//! or a time stamp is refused and reported, because half of its metrics are worse than none. Names
//! of the exporter's own metrics are refused, and so is a series that two files contain, or a
//! family that another file declares with another type. When a file is removed, its series
//! disappear.

mod families;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use stepwatch_kit::config::Period;
use stepwatch_kit::exposition::read::{self, Dialect};

use self::families::Block;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::{Family, FamilyType};
use crate::family_filter::Metrics;
use crate::reach::Reach;
use crate::roots;
use crate::samples::Samples;

pub const ABOUT: &str = "metrics that scripts leave in *.prom files";
pub const NEEDS: &str = "the directory of the configuration; any user";
pub const COST: &str = "as many files as there are";

pub static MTIME: Family = Family::gauge(
    "stepwatch_exporter_textfile_mtime_timestamp_seconds",
    "seconds",
    &["file"],
    "Unix time at which the file was last written: what watches whether its script still runs",
);
pub static ERROR: Family = Family::gauge(
    "stepwatch_exporter_textfile_error",
    "",
    &["file"],
    "Whether the file was refused as a whole (it cannot be read, is too large, or has a bad line or a time stamp) or lost series for another reason than that they are not finite; the log has the reason",
);
pub static REFUSED: Family = Family::counter(
    "stepwatch_exporter_textfile_refused_series_total",
    "",
    &["reason"],
    "Series of files that were left out, added up over all looks",
);

pub static FAMILIES: &[&Family] = &[&MTIME, &ERROR, &REFUSED];

/// The most files that are read, and the most bytes of one.
const MAX_FILES: usize = 256;
const MAX_BYTES: u64 = 4 << 20;
/// The most samples of one file, as a multiple of the limit of series: a histogram has one a
/// bucket. They are counted first, because a sample in memory takes many times what its line does.
const MAX_SAMPLES_PER_SERIES: usize = 4;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Directories with files called `*.prom`.
    pub directories: Vec<PathBuf>,
    /// The most series of all files together.
    pub max_series: usize,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(15),
            directories: vec!["/var/lib/stepwatch-exporter/textfile".into()],
            max_series: 5000,
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct TextfileReader {
    config: Config,
    /// Names of this program's own metrics, without suffixes.
    own: BTreeSet<&'static str>,
    refused: BTreeMap<&'static str, u64>,
    /// Files whose errors were logged.
    complained: BTreeSet<PathBuf>,
}

/// The contents of all files by family.
#[derive(Debug, Default)]
struct Page {
    blocks: BTreeMap<String, Block>,
    kinds: BTreeMap<String, FamilyType>,
    series: usize,
}

impl TextfileReader {
    pub fn new(config: &Config) -> Self {
        let reasons = ["own_name", "duplicate", "other_type", "limit", "not_finite", "malformed"];
        Self {
            config: config.clone(),
            own: BTreeSet::new(),
            refused: reasons.into_iter().map(|reason| (reason, 0)).collect(),
            complained: BTreeSet::new(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for dir in &self.config.directories {
            let names = roots::list(dir).unwrap_or_default();
            let paths = names.into_iter().map(|n| dir.join(n));
            found.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "prom")));
        }
        found.truncate(MAX_FILES);
        found
    }

    fn file(&mut self, path: &Path, page: &mut Page, out: &mut Samples) {
        let name = path.to_string_lossy();
        let wrong = match read_file(path, self.config.max_series.saturating_mul(MAX_SAMPLES_PER_SERIES)) {
            Ok((text, modified)) => {
                out.maybe(&MTIME, &[&name], modified);
                let mut lost = None;
                for (name, block) in families::blocks(&text) {
                    let reason = self.block(name.clone(), block, page);
                    lost = lost.or(reason.map(|reason| format!("series of {name} were left out: {reason}")));
                }
                lost
            }
            Err(why) => Some(format!("refused as a whole: {why}")),
        };
        out.set(&ERROR, &[&name], wrong.is_some());
        match wrong {
            Some(why) if self.complained.insert(path.to_owned()) => {
                tracing::warn!(path = %path.display(), why, "a file of metrics is not shown in full");
            }
            Some(_) => {}
            None => {
                self.complained.remove(path);
            }
        }
    }

    /// Merges a family of one file with those of the others. If not all of it could be merged
    /// because of an error in a file, returns the reason.
    fn block(&mut self, name: String, block: Block, page: &mut Page) -> Option<&'static str> {
        if self.own.contains(families::bare(&name)) {
            self.refuse("own_name", block.series.len());
            return Some("own_name");
        }
        // In the exposition, a counter's family is named without the suffix.
        let base = if block.kind == FamilyType::Counter { name.trim_end_matches("_total") } else { &name };
        let kind = *page.kinds.entry(base.to_owned()).or_insert(block.kind);
        if kind != block.kind {
            self.refuse("other_type", block.series.len());
            return Some("other_type");
        }
        let mut lost = None;
        let whole = page.blocks.entry(name).or_insert_with(|| Block::new(block.kind, block.help.clone()));
        for (labels, value) in block.series {
            let shown = value.and_then(|value| match whole.series.contains_key(&labels) {
                true => Err("duplicate"),
                false if page.series + value.series() > self.config.max_series => Err("limit"),
                false => Ok(value),
            });
            match shown {
                Ok(value) => {
                    page.series += value.series();
                    whole.series.insert(labels, Ok(value));
                }
                Err(reason) => {
                    self.refuse(reason, 1);
                    // A script without a value writes NaN, which is not an error.
                    lost = lost.or(Some(reason).filter(|reason| *reason != "not_finite"));
                }
            }
        }
        lost
    }

    fn refuse(&mut self, reason: &'static str, series: usize) {
        *self.refused.entry(reason).or_default() += series as u64;
    }
}

/// Reads a file that is a valid exposition, and its modification time.
fn read_file(path: &Path, max_samples: usize) -> Result<(String, Option<f64>), String> {
    // The operator chose the directory; a link in it leads only to files that its owner may see.
    // Only regular files are opened, because others may have no end or no writer.
    let directory = path.parent().unwrap_or(path);
    let file = Reach::Below(directory.to_owned()).open(path).map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is larger than {MAX_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is no UTF-8".to_owned())?;
    for (i, sample) in read::read(&text, Dialect::Text).enumerate() {
        if i >= max_samples {
            return Err(format!("it has more than {max_samples} samples (collectors.textfile.max_series)"));
        }
        let sample = sample.map_err(|malformed| malformed.to_string())?;
        if sample.time.is_some() {
            return Err(format!("{} has a time stamp, which a file of metrics must not", sample.name));
        }
        families::check(&sample)?;
    }
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok((text, modified.map(|since| since.as_secs_f64())))
}

impl Collector for TextfileReader {
    fn probe(&mut self, _: &Context<'_>) -> Result<Support, CollectError> {
        let there: Vec<_> = self.config.directories.iter().filter(|d| d.is_dir()).collect();
        let names =
            |dirs: &[&PathBuf]| dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(" ");
        Ok(if there.is_empty() {
            let all: Vec<_> = self.config.directories.iter().collect();
            Support::Unsupported(format!("there is no {}", names(&all)))
        } else {
            Support::Supported(names(&there))
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        if self.own.is_empty() {
            self.own = (cx.families)().iter().map(|family| families::bare(family.name)).collect();
        }
        let files = self.files();
        self.complained.retain(|path| files.contains(path));
        let mut page = Page::default();
        for path in &files {
            self.file(path, &mut page, out);
        }
        for (name, block) in page.blocks {
            let count = block.series.len();
            if !families::write(&name, &block, out) {
                self.refuse("limit", count);
            }
        }
        for (reason, count) in &self.refused {
            out.set(&REFUSED, &[reason], *count);
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) {
    let blocks = families::blocks(&String::from_utf8_lossy(data));
    assert!(blocks.values().all(|b| !b.help.contains('\n')));
}

#[cfg(test)]
mod tests;
