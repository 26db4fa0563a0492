//! The alerter's API, asked by a fuzzer that has read its OpenAPI document, which a validator has read before.

use std::path::PathBuf;
use std::process::Command;

use crate::report::Closing;
use crate::shell::{Workspace, cargo};

const REQUIREMENTS: &str = "tests/scripts/api-fuzz.txt";
const DOCUMENT: &str = "docs/openapi.json";

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
