//! Reports whether the collectors that the checks need could read.

use super::item::{Check, listed};
use super::node::Node;
use super::report::{FindingDetails, Findings};
use crate::schedule::State;

/// The name of the findings about collectors. It cannot be skipped, because what a collector did
/// not read is not healthy.
pub(super) const NAME: &str = "collectors";

/// The findings about collectors; `chosen` are the selected checks.
pub(super) fn findings(node: &Node<'_>, chosen: &[&'static Check]) -> Findings {
    let mut found = Findings::default();
    for collector in node.collectors() {
        let (name, detail) = (collector.name, collector.detail.as_str());
        if name == "gpu"
            && [State::Failed, State::Starting, State::Stuck].contains(&collector.state)
            && let Some((gpu, spent)) = node.waits_for()
        {
            let seconds = spent.total.as_secs_f64();
            let text = format!(
                "GPU {gpu} does not answer in time: {seconds:.1} s so far, the longest in {}",
                spent.function
            );
            let action = "look for XID 119 or 120 in the kernel log; reset the GPU, or reboot the node";
            found.unhealthy(text).device(format!("GPU {gpu}")).action(action);
        }
        let dark = || listed(chosen.iter().filter(|c| c.needs.contains(&name)).map(|c| c.name));
        let finding = match collector.state {
            State::Disabled => continue,
            State::Healthy => {
                found.ok(format!("{name} reads: {detail}"));
                continue;
            }
            State::Unsupported => {
                found.ok(format!("{name} has nothing to read: {detail}"));
                continue;
            }
            State::Failed => {
                found.unknown(format!("{name} failed, so nothing is known of {}: {detail}", dark()))
            }
            State::Starting | State::Stuck => late(node, name, &dark(), &mut found),
        };
        finding.device(name);
    }
    found.or_ok(|| "none is needed".into())
}

/// A device that does not answer in time would hang a job too, so the node is unhealthy, not
/// unknown.
fn late<'a>(node: &Node<'_>, name: &str, dark: &str, found: &'a mut Findings) -> FindingDetails<'a> {
    match node.hanging_call().filter(|_| name == "gpu") {
        Some((function, spent)) => found
            .unhealthy(format!(
                "the NVIDIA driver does not answer: {function} has not returned for {:.1} s, so nothing is known of {dark}",
                spent.as_secs_f64()
            ))
            .action("look for XID 119 or 120 in the kernel log, and reboot the node; where the driver has to start the GPUs first, enable nvidia-persistenced or give it longer with --timeout"),
        None => found
            .unhealthy(format!("{name} did not answer in time, so nothing is known of {dark}"))
            .action("look for a driver or a mount that hangs, or give it longer with --timeout"),
    }
}
