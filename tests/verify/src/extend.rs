//! What a new detector costs: one file and one line. A copy of the workspace gets one that way, and
//! is compiled with all that matches on detectors.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::report::Closing;
use crate::shell::{Workspace, cargo};

const DETECTORS: &str = "alerter/detect/src/detectors";
const MODEL: &str = "user_alert";
const LINE: &str = "        user_alert: user_alert::UserAlert,\n";

pub(crate) fn detector(w: &Workspace) -> Result<Closing, String> {
    let copy = w.scratch.join("extend");
    let _ = fs::remove_dir_all(&copy);
    let git = |log: &str, args: &[&str], dir: &Path| {
        w.run(log, Command::new("git").args(args).current_dir(dir)).map(|out| out.lines(|_| true))
    };
    // What is committed and what is not.
    for file in git("extend-files", &["ls-files", "-co", "--exclude-standard"], &w.root)? {
        let (from, to) = (w.root.join(&file), copy.join(&file));
        let made = to.parent().map_or(Ok(()), fs::create_dir_all);
        if from.is_file() {
            made.and_then(|()| fs::copy(&from, &to).map(drop))
                .map_err(|e| format!("cannot copy {file}: {e}"))?;
        }
    }
    git("extend-init", &["init", "--quiet"], &copy)?;
    git("extend-add", &["add", "--all"], &copy)?;

    let directory = copy.join(DETECTORS);
    change(&directory.join(MODEL).with_extension("rs"), &directory.join("scratch.rs"), |text| {
        // Not the kind and the topic of the same name.
        let words: Vec<_> =
            text.split("::UserAlert").map(|part| part.replace("UserAlert", "Scratch")).collect();
        Some(words.join("::UserAlert"))
    })?;
    let list = directory.with_extension("rs");
    change(&list, &list, |text| {
        let scratch = LINE.replace(MODEL, "scratch").replace("UserAlert", "Scratch");
        text.contains(LINE).then(|| text.replace(LINE, &format!("{LINE}{scratch}")))
    })?;
    let touched = git("extend-touched", &["status", "--short"], &copy)?;
    let changed = touched.iter().filter(|line| !line.starts_with("A ")).count();
    if changed != 2 {
        return Err(format!("a detector touches {changed} files, 2 expected:\n{}", touched.join("\n")));
    }
    let mut check = cargo(&["check", "--workspace", "--locked"]);
    check.current_dir(&copy).env("CARGO_TARGET_DIR", w.scratch.join("extend-target"));
    w.run("extend-check", &mut check)?;
    let _ = fs::remove_dir_all(&copy);
    Ok(vec!["a detector is one file and one line".into()])
}

fn change(from: &Path, to: &Path, edit: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let text = fs::read_to_string(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
    let text = edit(&text).ok_or_else(|| format!("{} is not as expected", from.display()))?;
    fs::write(to, text).map_err(|e| format!("cannot write {}: {e}", to.display()))
}
