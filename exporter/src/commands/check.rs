//! `check`: whether this node is fit to train now. For a Slurm prolog or HealthCheckProgram, a
//! Kubernetes init container, or a person.
//!
//! The check only reads: it queries no service, and writes nothing but the reference, on request.
//! With `--active`, tests then put load on the node, if it is idle (`active`).
//! Its input is one pass of the collectors, so each fact is read by one piece of code. A check is a
//! small function of that input, one a file, with one line in `CHECKS`. The worst finding decides
//! the exit status. What does not answer in time is unknown, and does not delay the result
//! (`child`).

mod active;
mod child;
mod clock;
mod collectors;
mod conditions;
mod disk;
mod gpu;
mod idle;
mod item;
mod kernel;
mod learned;
mod memory;
mod mounts;
mod nic;
mod node;
mod pcie;
mod rdma;
mod reference;
mod report;
mod services;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use stepwatch_kit::config::Period;

use crate::clock::unix_now;
use crate::commands::format::Format;
use crate::config::Config;
use crate::roots::Roots;
use item::Check;
use node::Node;
use report::Strictness;
pub use report::{Facts, Finding, Report, SCHEMA, Verdict};

pub use child::{answer, supervised, test_answer};
pub use reference::Reference;

/// With this, the command including start and output ends within two seconds.
const TIMEOUT: Period = Period::millis(1500);

/// All checks, one a line.
static CHECKS: &[&Check] = &[
    &gpu::COUNT,
    &gpu::RECOVERY,
    &gpu::ECC,
    &gpu::THROTTLE,
    &pcie::CHECK,
    &gpu::NVLINK,
    &gpu::FABRIC,
    &rdma::CHECK,
    &nic::CHECK,
    &memory::CHECK,
    &kernel::CHECK,
    &clock::CHECK,
    &mounts::CHECK,
    &disk::CHECK,
    &services::CHECK,
    &conditions::CHECK,
    &reference::CHECK,
];

/// What `--active` asks first.
static IDLE: &Check = &idle::CHECK;
/// What it asks while a tool runs.
static JOBS: &Check = &idle::JOBS;

#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  stepwatch-exporter check
  stepwatch-exporter check --quiet --skip disk --timeout 20s
  stepwatch-exporter check --write-reference node.json
  stepwatch-exporter check --reference node.json --format json
  stepwatch-exporter check --active --config /etc/stepwatch/exporter.yml
  stepwatch-exporter check --active --only nvbandwidth,nccl --budget 60s
  stepwatch-exporter check --active --tests-only --skip fio")]
pub struct Options {
    /// How to print what was found
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Print what is wrong only
    #[arg(long)]
    pub quiet: bool,
    /// What has not answered after this long is unknown
    #[arg(long, value_name = "TIME", default_value_t = TIMEOUT)]
    pub timeout: Period,
    /// Make these checks alone
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = names())]
    pub only: Vec<String>,
    /// Make all checks but these
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = names())]
    pub skip: Vec<String>,
    /// Then put load on the node with the tools that are installed, unless a job has it
    #[arg(long)]
    pub active: bool,
    /// Make the tests of --active alone: nothing else fails, and exit 3 means that none was begun
    #[arg(long, requires = "active")]
    pub tests_only: bool,
    /// The time for all tests of --active [default: check.active.budget, 2m]
    #[arg(long, value_name = "TIME", requires = "active")]
    pub budget: Option<Period>,
    /// Compare the node with what --write-reference wrote on one that is right
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Write what this node is like, if nothing is wrong with it, for --reference on others
    #[arg(long, value_name = "FILE")]
    pub write_reference: Option<PathBuf>,
    /// Fail on warnings too, and on tests that were not run
    #[arg(long)]
    pub strict: bool,
    /// Do not fail on unknown findings
    #[arg(long)]
    pub lenient: bool,
    /// This is the process that looks; another one waits for it
    #[arg(long, hide = true)]
    pub inner: bool,
    /// This is the process that tests; another one waits for it
    #[arg(long, hide = true)]
    pub tester: bool,
    /// Look only whether the node is idle
    #[arg(long, hide = true)]
    pub probe: bool,
    /// Look only whether a job began beside a test
    #[arg(long, hide = true)]
    pub watch: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    let checks = CHECKS.iter().map(|check| (check.name, check.about));
    let all = checks.chain(active::TESTS.iter().map(|test| (test.name, test.about)));
    all.map(|(name, about)| clap::builder::PossibleValue::new(name).help(about)).collect::<Vec<_>>().into()
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: Format::default(),
            quiet: false,
            timeout: TIMEOUT,
            only: Vec::new(),
            skip: Vec::new(),
            active: false,
            tests_only: false,
            budget: None,
            reference: None,
            write_reference: None,
            strict: false,
            lenient: false,
            inner: false,
            tester: false,
            probe: false,
            watch: false,
        }
    }
}

impl Options {
    fn strictness(&self) -> Strictness {
        Strictness { strict: self.strict, lenient: self.lenient }
    }

    /// Whether the user wants the check or test of this name.
    fn wants(&self, name: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|listed| listed == name);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }

    fn chosen(&self) -> Vec<&'static Check> {
        if self.watch {
            return vec![JOBS];
        }
        let alone = self.probe || self.tests_only;
        let wanted = CHECKS.iter().filter(|check| !alone && self.wants(check.name)).copied();
        wanted.chain((self.active || self.probe).then_some(IDLE)).collect()
    }
}

/// Runs the checks in this process.
pub fn run(config: &Config, roots: &Roots, options: &Options) -> Report {
    let began = Instant::now();
    let chosen = options.chosen();
    let needed: BTreeSet<&str> = chosen.iter().flat_map(|check| check.needs).copied().collect();
    let needed: Vec<&str> = needed.into_iter().collect();
    let node = Node::look(
        config,
        roots,
        options.reference.as_deref(),
        &needed,
        began + options.timeout.as_duration(),
    );
    let facts = reference::facts(&node);
    let mut findings: Vec<Finding> = collectors::findings(&node, &chosen).named(collectors::NAME).collect();
    for check in chosen {
        if check.needs.is_empty() || check.needs.iter().any(|name| node.has_read(name)) {
            let found = (check.run)(&node).named(check.name);
            let unread = node.unread(check.needs);
            findings.extend(found.map(|f| match unread {
                Some(collector) => f.not_seen_by(collector),
                None => f,
            }));
        }
    }
    findings.extend(active::passed_over(options));
    let seconds = began.elapsed().as_secs_f64();
    Report { facts, ..Report::new(config.node_name(), unix_now(), seconds, findings, options.strictness()) }
}

#[cfg(test)]
mod hardware_tests;
#[cfg(test)]
mod tests;
