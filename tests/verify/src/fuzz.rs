//! Fuzzers: of the alerter's API, by one that has read its OpenAPI document, which a validator has
//! read before; and of the parsers of outside bytes, by libFuzzer over their corpora.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::report::Closing;
use crate::shell::{Workspace, cargo};

const REQUIREMENTS: &str = "tests/scripts/api-fuzz.txt";
const DOCUMENT: &str = "docs/openapi.json";

/// The test of the API; it runs here and nowhere else.
pub(crate) const API_TEST: &str = "the_answers_are_those_of_the_document";

/// Packages of fuzz targets.
const TARGETS: &[&str] = &["exporter/formats/fuzz", "exporter/fuzz", "alerter/fuzz"];
/// Seconds that each target is fuzzed for, beyond its corpus, by default.
const SECONDS: u32 = 10;
const SECONDS_VARIABLE: &str = "STEPWATCH_FUZZ_SECONDS";
/// What `cargo fuzz` compiles with. The sanitizers are there in a released compiler, which takes
/// the flag when it is asked to.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 -Cpasses=sancov-module \
                     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Builds every target as `cargo fuzz` does, runs it over its corpus and then for some seconds
/// beyond.
pub(crate) fn targets(w: &Workspace) -> Result<Closing, String> {
    let host = host(w)?;
    let given = std::env::var(SECONDS_VARIABLE).ok();
    let seconds =
        given.map_or(Ok(SECONDS), |n| n.parse().map_err(|e| format!("{SECONDS_VARIABLE}={n}: {e}")))?;
    let mut all = Vec::new();
    for package in TARGETS {
        let built = build(w, package, &host)?;
        for name in names(&w.root.join(package).join("fuzz_targets"))? {
            let corpus = w.root.join(package).join("corpus").join(&name);
            all.push(Target {
                program: built.join(&name),
                found: built.join(format!("{name}-found")),
                corpus,
                name,
            });
        }
    }
    // One target uses one core.
    let next = AtomicUsize::new(0);
    let fuzz_next = || {
        let mut said = Vec::new();
        while let Some(target) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            said.push(target.fuzz(w, seconds));
        }
        said
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let said = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(fuzz_next)).collect();
        workers
            .into_iter()
            .map(|w| w.join().map_err(|_| "a fuzzing thread panicked".to_owned()))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let mut closing = said.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    closing.sort();
    Ok(closing)
}

struct Target {
    name: String,
    program: PathBuf,
    corpus: PathBuf,
    /// New inputs, and those that break it.
    found: PathBuf,
}

impl Target {
    fn fuzz(&self, w: &Workspace, seconds: u32) -> Result<String, String> {
        let found = &self.found;
        std::fs::create_dir_all(found).map_err(|e| format!("{}: {e}", found.display()))?;
        let mut fuzz = Command::new(&self.program);
        // New inputs go to the first directory.
        fuzz.arg(found).arg(&self.corpus).arg(format!("-max_total_time={seconds}"));
        fuzz.args(["-rss_limit_mb=2048", "-timeout=25"])
            .arg(format!("-artifact_prefix={}/", found.display()));
        // SQLite has two static arrays of one name in one file, which is no error.
        fuzz.env("ASAN_OPTIONS", "detect_odr_violation=0");
        let out = w.run(&format!("fuzz-{}", self.name), &mut fuzz)?;
        let done = out.lines(|l| l.starts_with("Done ")).pop();
        Ok(format!("{:<14} {}", self.name, done.ok_or(format!("{} did not say how much it did", self.name))?))
    }
}

/// The directory of the programs.
fn build(w: &Workspace, package: &str, host: &str) -> Result<PathBuf, String> {
    let dir = w.root.join(package);
    // The versions that are tested otherwise; what only the fuzzer needs is added.
    let lock = dir.join("Cargo.lock");
    if !lock.exists() {
        std::fs::copy(w.root.join("Cargo.lock"), &lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    }
    let log = format!("fuzz-build-{}", package.replace('/', "-"));
    // One directory for all packages: they share most of what they are built of.
    let into = w.scratch.join("fuzz");
    let mut cargo = cargo(&["build", "--release", "--bins", "--target", host]);
    // Debug assertions find what a release build would pass over.
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    w.run(&log, cargo.env("CARGO_TARGET_DIR", &into).current_dir(dir))?;
    Ok(into.join(host).join("release"))
}

/// The platform that we compile for, so that build scripts and macros are compiled without the
/// sanitizers.
fn host(w: &Workspace) -> Result<String, String> {
    let said = w.run("fuzz-host", Command::new("rustc").arg("-vV"))?.lines(|l| l.starts_with("host: "));
    let host = said.first().and_then(|l| l.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".into())
}

/// The targets of a package, sorted.
fn names(dir: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let files = entries.flatten().map(|e| e.path()).filter(|p| p.extension() == Some(OsStr::new("rs")));
    let mut names: Vec<_> =
        files.filter_map(|p| Some(p.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

pub(crate) fn api(w: &Workspace) -> Result<Closing, String> {
    let programs = install(w)?;
    let mut validator = Command::new(programs.join("openapi-spec-validator"));
    let valid = w.run("openapi", validator.arg(DOCUMENT))?;
    let mut fuzz =
        cargo(&["test", "--locked", "-p", "stepwatch-tests", "--test", "api_fuzz", "--", "--nocapture"]);
    let out = w.run("api-fuzz", fuzz.env("STEPWATCH_SCHEMATHESIS", programs.join("schemathesis")))?;
    let mut closing = valid.last(1);
    closing.extend(out.lines(|l| l.starts_with("figure:") || l.starts_with("test result:")));
    Ok(closing)
}

/// The directory of the programs, in an environment of their own.
fn install(w: &Workspace) -> Result<PathBuf, String> {
    let dir = w.scratch.join("api-fuzz");
    let programs = dir.join("bin");
    let file = w.root.join(REQUIREMENTS);
    let wanted = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let stamp = dir.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(programs);
    }
    if !programs.join("python").is_file() {
        w.run("api-fuzz-venv", Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let mut pip = Command::new(programs.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]);
    w.run("api-fuzz-pip", &mut pip)?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_corpus_and_is_built() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for package in TARGETS {
            let dir = root.join(package);
            let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
            let names = names(&dir.join("fuzz_targets")).unwrap();
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                assert!(dir.join("corpus").join(&name).is_dir(), "{package}: {name} has no corpus");
                assert!(
                    manifest.contains(&format!("name = \"{name}\"")),
                    "{package}: {name} is not in Cargo.toml"
                );
            }
        }
    }

    #[test]
    fn the_test_of_the_api_has_its_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let test = std::fs::read_to_string(root.join("tests/tests/api_fuzz.rs")).unwrap();
        assert!(test.contains(&format!("fn {API_TEST}()")));
    }
}
