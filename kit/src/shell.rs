//! Shell integration of a program: completions of its command line, and manual pages.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Writes the completion script of `program` for `shell`.
pub fn completions(mut program: Command, shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    let name = program.get_name().to_owned();
    // The generator panics if it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    out.write_all(&script)
}

/// Writes the manual page of `program` and of each of its commands to a directory, which is created
/// if it is missing. Returns the files.
pub fn manual(program: Command, directory: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)?;
    let mut program = program.disable_help_subcommand(true);
    // Gives the commands the names of their pages and the global options.
    program.build();
    let mut written = Vec::new();
    pages(&program, directory, &mut written)?;
    written.sort();
    Ok(written)
}

fn pages(command: &Command, directory: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
    if command.is_hide_set() {
        return Ok(());
    }
    for sub in command.get_subcommands() {
        pages(sub, directory, written)?;
    }
    let page = Man::new(command.clone());
    let path = directory.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(&path, text)?;
    written.push(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn program() -> Command {
        let show = Command::new("show").about("Show one").arg(Arg::new("run").required(true));
        Command::new("watcher")
            .about("Watches")
            .subcommand(Command::new("runs").about("The runs").subcommand(show))
            .subcommand(Command::new("inner").hide(true))
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("man1");
        let written = manual(program(), &directory).unwrap();
        let names: Vec<_> = written.iter().filter_map(|p| p.file_name()?.to_str()).collect();
        assert_eq!(names, ["watcher-runs-show.1", "watcher-runs.1", "watcher.1"]);
        let page = std::fs::read_to_string(directory.join("watcher-runs-show.1")).unwrap();
        assert!(page.contains("Show one") && page.contains("watcher runs show"), "{page}");
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let mut script = Vec::new();
            completions(program(), shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("watcher") && script.contains("runs"), "{shell}: {script}");
        }
    }
}
