//! The Python adapters against the frameworks themselves, and the logs of the run ledger against
//! `ml-goodput-measurement`.
//!
//! `clients/python/tests/real/requirements/GROUP.txt` names the packages of one environment,
//! `GROUP.no-deps.txt` those of it that pin what the environment has otherwise. Two comments in the
//! first give the rest: `# tests: a b`, what runs in it, and `# with: GROUP`, whose packages it
//! sees beside its own. So there is one PyTorch on the disk and not five.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Closing, not_run};
use crate::shell::{Output, Workspace};

const TESTS: &str = "clients/python/tests/real";
const NO_DEPS: &str = ".no-deps";
/// What an environment was installed from.
const STAMP: &str = "installed.txt";
/// Prints which PyTorch an environment sees, as pip writes it.
const PYTORCH: &str = "from importlib.metadata import version; print('torch==' + version('torch'))";
/// What a test prints of each framework that it found.
const TESTED: &str = "tested against ";

/// The group that has PyTorch and what most people train with.
const TORCH: &str = "torch";

/// The interpreter that can import PyTorch, once [`torch`] has made its environment.
pub(crate) fn torch_python(w: &Workspace) -> PathBuf {
    environment(w, TORCH).join("bin/python")
}

/// Makes the environment of PyTorch.
pub(crate) fn torch(w: &Workspace) -> Result<(), String> {
    let groups = groups(&w.root.join(TESTS))?;
    let group = groups.iter().find(|g| g.name == TORCH).ok_or("no group of requirements has PyTorch")?;
    install(w, group)
}

/// Tests of a log of `unittest -v` that were skipped, as `module.Class.test: reason`.
pub(crate) fn skipped(out: &Output) -> Vec<String> {
    let skipped = |line: &String| {
        let (test, reason) = line.split_once(" ... skipped ")?;
        let name = test.split_once('(').map_or(test, |(_, name)| name.trim_end_matches(')'));
        Some(format!("{name}: {}", reason.trim_matches(['\'', '"'])))
    };
    out.lines(|l| l.contains(" ... skipped ")).iter().filter_map(skipped).collect()
}

/// An environment and what runs in it.
struct Group {
    name: String,
    tests: Vec<String>,
    /// The group whose packages it sees, too.
    with: Option<String>,
    /// What it is installed from; another text is another environment.
    text: String,
    no_deps: Option<PathBuf>,
}

pub(crate) fn all(w: &Workspace) -> Result<Closing, String> {
    let groups = groups(&w.root.join(TESTS))?;
    let mut closing = Vec::new();
    let mut versions = BTreeSet::new();
    let mut failures = Vec::new();
    for group in &groups {
        if let Err(why) = install(w, group) {
            failures.push(format!("{}: cannot be installed\n{why}", group.name));
            continue;
        }
        for test in &group.tests {
            match run(w, group, test) {
                Ok(out) => {
                    closing.push(format!("{test:<18} {}", out.last(2).join(", ")));
                    closing.extend(skipped(&out).iter().map(|s| not_run(s)));
                    versions.extend(out.lines(|l| l.contains(TESTED)).iter().filter_map(|l| row(l)));
                }
                Err(why) => failures.push(format!("{test}\n{why}")),
            }
        }
    }
    closing.push(format!("{:<18} version", "framework"));
    closing.extend(versions);
    if failures.is_empty() {
        return Ok(closing);
    }
    Err(format!("{}\n{}", closing.join("\n"), failures.join("\n")))
}

/// The groups, those first that others build on.
fn groups(tests: &Path) -> Result<Vec<Group>, String> {
    let mut found = Vec::new();
    for path in files(&tests.join("requirements"), "txt") {
        let name = stem(&path);
        if name.ends_with(NO_DEPS) {
            continue;
        }
        let no_deps = Some(path.with_file_name(format!("{name}{NO_DEPS}.txt"))).filter(|p| p.is_file());
        let mut text = read(&path)?;
        let tests = comment(&text, "tests:");
        let with = comment(&text, "with:").pop();
        if let Some(path) = &no_deps {
            text += &read(path)?;
        }
        found.push(Group { name, tests, with, text, no_deps });
    }
    found.sort_by_key(|g| (g.with.is_some(), g.name.clone()));
    let run: BTreeSet<_> = found.iter().flat_map(|g| g.tests.clone()).collect();
    let written: BTreeSet<_> =
        files(tests, "py").iter().map(|p| stem(p)).filter(|n| n.starts_with("test_")).collect();
    match written.symmetric_difference(&run).next() {
        None => Ok(found),
        Some(odd) => Err(format!("{TESTS}: {odd} is no test, or no group of requirements runs it")),
    }
}

/// The words of the comment that begins with `key`.
fn comment(text: &str, key: &str) -> Vec<String> {
    let words = text.lines().find_map(|l| l.strip_prefix("# ")?.strip_prefix(key)).unwrap_or("");
    words.split_whitespace().map(str::to_owned).collect()
}

fn install(w: &Workspace, group: &Group) -> Result<(), String> {
    let dir = environment(w, &group.name);
    let stamp = dir.join(STAMP);
    if std::fs::read_to_string(&stamp).is_ok_and(|s| s == group.text) {
        return Ok(());
    }
    println!("   installing the packages of {}.txt", group.name);
    let python = dir.join("bin/python");
    let log = |what: &str| format!("python-real-{}-{what}", group.name);
    if !python.is_file() {
        w.run(&log("venv"), Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let constraints = dir.join("constraints.txt");
    write(&constraints, "")?;
    if let Some(with) = &group.with {
        let theirs = site_packages(&environment(w, with))?;
        write(&site_packages(&dir)?.join("shared.pth"), &format!("{}\n", theirs.display()))?;
        // Whatever else is installed must do with the PyTorch that is there.
        let shared = w.run(&log("shared"), Command::new(&python).args(["-c", PYTORCH]))?;
        write(&constraints, &shared.last(1).concat())?;
    }
    let requirements = w.root.join(TESTS).join("requirements").join(format!("{}.txt", group.name));
    let pip = |more: &[&str], file: &Path| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]);
        // DeepSpeed would compile its kernels.
        command.args(more).arg("-c").arg(&constraints).arg("-r").arg(file).env("DS_BUILD_OPS", "0");
        command
    };
    w.run(&log("pip"), &mut pip(&[], &requirements))?;
    if let Some(file) = &group.no_deps {
        w.run(&log("pip-no-deps"), &mut pip(&["--no-deps", "--no-build-isolation"], file))?;
    }
    write(&stamp, &group.text)
}

/// In a process of its own: several frameworks in one get in each other's way.
fn run(w: &Workspace, group: &Group, test: &str) -> Result<Output, String> {
    let mut python = Command::new(environment(w, &group.name).join("bin/python"));
    python.args(["-m", "unittest", "-v", test]).current_dir(w.root.join(TESTS));
    python.env("STEPWATCH_REQUIRE_PEERS", "1").env("PYTHONWARNINGS", "ignore");
    w.run(&format!("python-real-{test}"), &mut python)
}

/// `tested against torch 2.15.0` as a row of the table; what is asked for within a test stands
/// behind the test's name.
fn row(line: &str) -> Option<String> {
    let (_, found) = line.split_once(TESTED)?;
    let (framework, version) = found.split_once(' ')?;
    Some(format!("{framework:<18} {version}"))
}

fn environment(w: &Workspace, group: &str) -> PathBuf {
    w.scratch.join("real").join(group)
}

fn site_packages(environment: &Path) -> Result<PathBuf, String> {
    let lib = environment.join("lib");
    let versions = std::fs::read_dir(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    let found = versions.flatten().map(|e| e.path().join("site-packages")).find(|p| p.is_dir());
    found.ok_or_else(|| format!("{} has no site-packages", lib.display()))
}

/// Files with this extension directly in `dir`, sorted.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.retain(|p| p.extension() == Some(OsStr::new(extension)));
    found.sort();
    found
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_group_and_every_group_a_base() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let groups = groups(&root.join(TESTS)).unwrap();
        for (i, group) in groups.iter().enumerate() {
            assert!(!group.tests.is_empty(), "{}", group.name);
            if let Some(with) = &group.with {
                assert!(groups[..i].iter().any(|g| g.name == *with), "{} comes after {with}", group.name);
            }
        }
    }

    #[test]
    fn skipped_tests_are_named_with_their_reason() {
        let lines = "test_a (test_x.Case.test_a) ... ok\n\
                     test_b (test_x.Case.test_b) ... skipped 'PyTorch is not installed'\n\
                     test_c (test_x.Case.test_c)\nWhat it does. ... skipped \"no GPU\"\n";
        let out = Output::from_text(lines);
        assert_eq!(skipped(&out)[0], "test_x.Case.test_b: PyTorch is not installed");
        assert_eq!(skipped(&out)[1], "What it does.: no GPU");
        assert_eq!(skipped(&out).len(), 2);
    }

    #[test]
    fn comments_and_rows() {
        let text = "# with: torch\n# tests: test_a test_b\nray\n";
        assert_eq!(comment(text, "tests:"), ["test_a", "test_b"]);
        assert_eq!(comment(text, "with:"), ["torch"]);
        assert!(comment("ray\n", "with:").is_empty());
        assert_eq!(row("tested against torch 2.15.0").unwrap(), format!("{:<18} 2.15.0", "torch"));
        assert_eq!(
            row("test_a (Trl.test_a) ... tested against trl 1.16.0"),
            Some(format!("{:<18} 1.16.0", "trl"))
        );
        assert_eq!(row("tested against"), None);
    }
}
