//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use stepwatch_kit::serve::ListenAddr;

use crate::app::Setup;
use crate::commands::check;
use crate::commands::emit::Emit;
use crate::commands::format::Format;
use crate::commands::runs::Runs;
use crate::roots::Roots;

/// Exports GPU, network, node and training metrics of one node.
#[derive(Debug, Parser)]
#[command(name = "stepwatch-exporter", version = crate::VERSION)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: Options,
    /// Print one page and exit
    #[arg(long, global = true)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct Options {
    /// Configuration file (YAML); every key has a default
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Address to serve HTTP on [default: :9765]
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<ListenAddr>,
    /// TLS and authentication, in the format of the Prometheus exporter toolkit
    #[arg(long = "web.config.file", value_name = "FILE", global = true)]
    pub web: Option<PathBuf>,
    /// Where sysfs is mounted
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", global = true)]
    pub sysfs: PathBuf,
    /// Where procfs is mounted
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", global = true)]
    pub procfs: PathBuf,
    /// Where shared memory is mounted
    #[arg(long = "path.shm", value_name = "DIR", default_value = "/dev/shm", global = true)]
    pub shm: PathBuf,
    /// Where the device files of GPUs are
    #[arg(long = "path.dev", value_name = "DIR", default_value = "/dev", global = true)]
    pub dev: PathBuf,
    /// Device of the kernel log
    #[arg(long = "path.kmsg", value_name = "FILE", default_value = "/dev/kmsg", global = true)]
    pub kmsg: PathBuf,
    /// NVML to load instead of the one that the loader finds
    #[arg(long, value_name = "FILE", global = true)]
    pub nvml_library: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve metrics and the event stream (the default)
    Run,
    /// Check this node once: exit 0 healthy, 1 unhealthy, 2 unknown
    Check(check::Options),
    /// Work with configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Send one event, from a shell
    Emit(Emit),
    /// Show which runs the exporter of this node follows, through whom, and why each source is of
    /// its run
    Runs(Runs),
    /// Print the reference of every metric family
    Metrics {
        #[arg(long, value_enum, default_value_t)]
        format: ReferenceFormat,
    },
    /// Print the script with which a shell completes this command line
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completions { shell: Shell },
    /// Write the manual page of every command to a directory
    #[command(after_help = MANUAL_EXAMPLES)]
    Man { directory: PathBuf },
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(stepwatch-exporter completions bash)
  stepwatch-exporter completions zsh > \"${fpath[1]}/_stepwatch-exporter\"
  stepwatch-exporter completions fish > ~/.config/fish/completions/stepwatch-exporter.fish";

const MANUAL_EXAMPLES: &str = "\
Examples:
  stepwatch-exporter man /usr/local/share/man/man1
  man stepwatch-exporter-check";

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file: exit 0 when it is right, 64 with the mistakes when it is not
    Check {
        file: PathBuf,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReferenceFormat {
    #[default]
    Text,
    Json,
    Markdown,
}

impl Options {
    pub fn setup(&self) -> Setup {
        Setup {
            file: self.config.clone(),
            listen: self.listen.clone(),
            web: self.web.clone(),
            roots: Roots {
                sysfs: self.sysfs.clone(),
                procfs: self.procfs.clone(),
                shm: self.shm.clone(),
                dev: self.dev.clone(),
                kmsg: self.kmsg.clone(),
                nvml_library: self.nvml_library.clone(),
                state: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::*;

    #[test]
    fn the_examples_are_commands() {
        fn examples(command: &Command, found: &mut Vec<String>) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            found.extend(text.lines().filter(|l| l.starts_with("  stepwatch-")).map(str::to_owned));
            command.get_subcommands().for_each(|sub| examples(sub, found));
        }
        let mut found = Vec::new();
        examples(&Cli::command(), &mut found);
        assert!(found.len() >= 8, "{found:?}");
        for line in found {
            // A quoted part is one word.
            let parts = line.split('\'').enumerate();
            let words =
                parts.flat_map(
                    |(i, part)| {
                        if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
                    },
                );
            // Redirections are the shell's.
            let parsed = Cli::try_parse_from(words.take_while(|word| *word != ">"));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
