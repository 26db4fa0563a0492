//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
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
}

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
