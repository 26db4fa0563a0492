//! Finds the script that a command line runs.

use super::wrapper;

/// The suffixes of files that an interpreter runs.
const SCRIPTS: &[&str] = &[".py", ".sh"];
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "fish", "ksh", "tcsh", "csh", "ash"];
/// Programs that start unrelated commands, or adopt processes.
const HOSTS: &[&str] = &[
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "sshd",
    "tmux",
    "screen",
    "xargs",
    "parallel",
];

/// Returns the script without directory and suffix: the first word with a script's suffix, or the
/// module after `-m`, or the program, unless it is an interpreter with an inline command. For
/// `stepwatch run`, the script of the command.
pub fn script_of(argv: &[String]) -> Option<String> {
    if let Some(command) = wrapper::command(argv) {
        return script_of(command);
    }
    let is_script =
        |w: &&String| SCRIPTS.iter().any(|s| w.ends_with(s)) && !w.chars().any(char::is_whitespace);
    if let Some(word) = argv.iter().find(is_script) {
        return stem(word);
    }
    if let Some(at) = argv.iter().position(|w| w == "-m") {
        let module = argv.get(at + 1)?;
        return Some(module.rsplit('.').next().unwrap_or(module).to_owned()).filter(|m| !m.is_empty());
    }
    if is_python(argv) || is_shell(argv) {
        let first = argv.get(1).filter(|w| !w.starts_with('-'))?;
        return stem(first);
    }
    stem(argv.first()?)
}

pub fn is_python(argv: &[String]) -> bool {
    program(argv).starts_with("python")
}

pub(super) fn is_shell(argv: &[String]) -> bool {
    // A login shell has a dash before its name.
    SHELLS.contains(&program(argv).trim_start_matches('-'))
}

/// Whether the processes that this program started are unrelated.
pub(super) fn is_host(argv: &[String]) -> bool {
    is_shell(argv) || HOSTS.contains(&program(argv).trim_end_matches(':'))
}

fn program(argv: &[String]) -> &str {
    argv.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word))
}

pub(super) fn stem(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem });
    Some(stem.to_owned()).filter(|s| !s.is_empty())
}
