//! Finds the programs under test, and builds them if they are missing or older than their sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};

/// The directories of the programs' sources, from the workspace root.
const SOURCES: &[&str] = &["wire", "kit", "exporter", "alerter"];

/// The source directory of the preloaded library, and its file name.
const LIBC_SOURCE: &str = "tests/libc";
const LIBC: &str = "libstepwatch_fake_libc.so";

pub const EXPORTER: &str = "stepwatch-exporter";
pub const ALERTER: &str = "stepwatch-alerter";

/// The workspace root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The path of a program: from `STEPWATCH_BIN_DIR`, or from the target directory of the running
/// test.
pub fn path(program: &str) -> anyhow::Result<PathBuf> {
    static DIR: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let dir = DIR.get_or_init(|| directory().map_err(|e| format!("{e:#}")));
    match dir {
        Ok(dir) => Ok(dir.join(program)),
        Err(why) => bail!("no programs to test: {why}"),
    }
}

/// The library that is loaded before the C library. Nothing links to it, so cargo does not build it
/// with the tests.
pub fn fake_libc() -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let dir = target()?;
        let library = dir.join(LIBC);
        let built = modified(&library);
        if built.is_none() || built < newest(&root().join(LIBC_SOURCE)) {
            build(&dir, &["-p", "stepwatch-fake-libc"])?;
        }
        Ok(library)
    };
    let built = BUILT.get_or_init(|| build().map_err(|e: anyhow::Error| format!("{e:#}")));
    built.clone().map_err(|why| anyhow::anyhow!("no library to preload: {why}"))
}

fn directory() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("STEPWATCH_BIN_DIR") {
        return Ok(dir.into());
    }
    let dir = target()?;
    if stale(&dir) {
        build(&dir, &["--bin", EXPORTER, "--bin", ALERTER])?;
    }
    Ok(dir)
}

/// The directory `<target>/<profile>` of the running test.
fn target() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("this program has no path")?;
    let in_deps = exe.parent().is_some_and(|d| d.ends_with("deps"));
    let dir = exe.ancestors().nth(if in_deps { 2 } else { 1 }).context("not in a target directory")?;
    Ok(dir.to_owned())
}

/// Whether a program is missing or older than any source. A false positive is harmless, because
/// cargo then has nothing to do.
fn stale(dir: &Path) -> bool {
    let built = [EXPORTER, ALERTER].iter().map(|p| modified(&dir.join(p))).min().flatten();
    let newest = SOURCES.iter().filter_map(|s| newest(&root().join(s))).max();
    built.is_none() || built < newest
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// When the last source below a directory was written. Programs contain no tests: one that was
/// edited would make every test ask cargo to build them, which does nothing and waits for any other
/// cargo.
fn newest(dir: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
    let is_test =
        |path: &PathBuf| path.file_stem().is_some_and(|name| name == "tests" || name == "snapshots");
    let sources = entries.filter(|path| !is_test(path));
    sources.filter_map(|p| if p.is_dir() { newest(&p) } else { modified(&p) }).max()
}

/// Builds into `dir`, which is `<target>/<profile>`. The whole workspace is built: for a single
/// package, dependencies have other features and would be compiled again.
fn build(dir: &Path, what: &[&str]) -> anyhow::Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(what).current_dir(root());
    if let Some(target) = dir.parent() {
        cargo.arg("--target-dir").arg(target);
    }
    if dir.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
