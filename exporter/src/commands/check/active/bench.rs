//! What the tests of `--active` use: the settings, the runner of tools, and what is known of the
//! node.

use std::ffi::OsStr;
use std::path::Path;

use super::reading::Reading;
use super::runner::{End, Output, Runner};
use crate::node_tests::ActiveConfig;
use crate::roots::Roots;

pub(super) struct Bench<'a> {
    pub(super) config: &'a ActiveConfig,
    pub(super) roots: &'a Roots,
    pub(super) runner: Runner,
    /// The number of NVIDIA GPUs that answer.
    pub(super) gpus: usize,
}

impl Bench<'_> {
    /// The output of a tool; the reading of the test, if there is none.
    pub(super) async fn output(
        &mut self,
        tool: &str,
        args: &[&str],
        dir: Option<&Path>,
    ) -> Result<Output, Reading> {
        let program = self.runner.find(tool).map_err(Reading::not_run)?;
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        let end = self.runner.run(&program, &args, dir).await;
        ended(tool, end)
    }
}

/// The output of a tool that ended by itself.
pub(super) fn ended(tool: &str, end: End) -> Result<Output, Reading> {
    match end {
        End::Exited(output) => Ok(output),
        End::Late(spent) => {
            let seconds = spent.as_secs_f64();
            Err(Reading::unknown(format!("{tool} had not ended after {seconds:.0} s, and was killed")))
        }
        End::Interrupted => Err(Reading::unknown(format!("{tool} was killed: the check was told to stop"))),
        End::Occupied(why) => {
            Err(Reading::unknown(format!("{tool} was stopped, because a job began: {why}")))
        }
        End::NotStarted(error) => Err(Reading::unknown(format!("{tool} does not start: {error}"))),
    }
}
