//! GPUs: whether all are present, and whether any needs a reset or repair.

use std::collections::{BTreeMap, BTreeSet};

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::amdgpu;
use crate::collectors::gpu::{self, GFM_DISCONNECTED};
use crate::collectors::kernel::recovery_action::{self, RESET};
use crate::samples::Row;

pub(super) const COUNT: Check = Check {
    name: "gpus",
    about: "all GPUs of the node are there and answer",
    needs: &["amdgpu", "gpu"],
    run: count,
};
pub(super) const RECOVERY: Check = Check {
    name: "recovery",
    about: "no GPU asks for a reset or the node for a reboot",
    needs: &["gpu"],
    run: recovery,
};
pub(super) const ECC: Check = Check {
    name: "ecc",
    about: "no GPU has uncorrected memory errors or rows to be replaced",
    needs: &["amdgpu", "gpu"],
    run: ecc,
};
pub(super) const THROTTLE: Check = Check {
    name: "throttle",
    about: "no GPU is slowed down by heat or power",
    needs: &["amdgpu", "gpu"],
    run: throttle,
};
pub(super) const NVLINK: Check = Check {
    name: "nvlink",
    about: "every GPU has as many NVLinks up as configured (collectors.gpu.expected_nvlinks), or as any GPU of the node has or once had",
    needs: &["gpu"],
    run: nvlink,
};
pub(super) const FABRIC: Check = Check {
    name: "fabric",
    about: "GPUs are registered with their NVLink fabric, and it is healthy",
    needs: &["gpu"],
    run: fabric,
};

/// The error with which NVML refuses a handle for a GPU that must be reset first.
const RESET_REQUIRED: &str = "reset_required";
/// A function that reports only errors of the memory on the chip.
const SRAM_FUNCTION: &str = "nvmlDeviceGetSramEccErrorStatus";
const RESET_THOSE: &str = "reset those that ask for it (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)";
const RESET_AMD: &str = "reset the GPU before the next job (amd-smi reset --gpureset)";
const REPLACE: &str = "take the GPU out of service and have it replaced";
/// Reasons for low clocks that the job does not cause, and whether each is a fault of the hardware.
const THROTTLES: &[(&str, bool)] = &[
    (HW_SLOWDOWN, true),
    ("hw_thermal_slowdown", true),
    (POWER_BRAKE, false),
    ("sw_thermal_slowdown", false),
];
/// Throttling by the hardware, for any reason.
const HW_SLOWDOWN: &str = "hw_slowdown";
/// The power supply outside the GPU requests it, usually for the whole rack, so another node would
/// be affected too.
const POWER_BRAKE: &str = "hw_power_brake_slowdown";

fn count(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let resets = silent_gpus(node, &mut found);
    for row in node.set(&gpu::UNRESPONSIVE) {
        let gpu = row.label("gpu");
        found
            .unhealthy(format!("{} answers too slowly to be asked", node.gpu(gpu)))
            .device(gpu)
            .action("look for XID 119 or 120 in the kernel log; reset the GPU, or reboot the node");
    }
    let value = |family| node.rows(family).next().map(|row| row.value);
    // Without a count, NVML did not answer, which is a separate finding.
    let Some(answering) = value(&gpu::COUNT) else { return found };
    let expected = value(&gpu::EXPECTED).filter(|expected| *expected > answering);
    let none = expected.filter(|_| answering == 0.0);
    if let Some(expected) = none.filter(|_| node.rows(&gpu::DRIVER).next().is_none()) {
        found
            .unhealthy(format!("no NVIDIA driver is loaded, so none of {expected:.0} GPUs can be used"))
            .action("load it (modprobe nvidia; curl -X POST localhost:9765/-/nvml/acquire), and see why it was not: dkms status, the kernel log");
        return found;
    }
    if let (Some(expected), Some(why)) = (none, node.failure("gpu")) {
        found
            .unhealthy(format!("none of {expected:.0} GPUs can be used: {why}"))
            .action("reboot the node, or load the module anew once nobody uses it (curl -X POST localhost:9765/-/nvml/release; modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia; curl -X POST localhost:9765/-/nvml/acquire)");
        return found;
    }
    if let Some(expected) = expected {
        let action = if expected - answering <= resets {
            RESET_THOSE
        } else {
            "look for XID 79 in the kernel log, and power-cycle the node"
        };
        found
            .unhealthy(format!("{answering:.0} of {expected:.0} GPUs answer{}", silent(node)))
            .action(action);
    }
    for (function, gpus) in refused(node).into_iter().filter(|(function, _)| *function != SRAM_FUNCTION) {
        found
            .warning(format!("the driver refuses {function} of {gpus} GPUs to this user: no permission"))
            .action("give the exporter CAP_SYS_ADMIN, or do without");
    }
    for row in node.rows(&gpu::PERSISTENCE).filter(|row| row.value == 0.0) {
        let gpu = row.label("gpu");
        found
            .warning(format!("{} is not in persistence mode: every job waits for its start", node.gpu(gpu)))
            .device(gpu)
            .action("start nvidia-persistenced");
    }
    found.or_ok(|| format!("{answering:.0} GPUs answer"))
}

/// Reports each GPU that does not answer. Returns how many of them only need a reset.
fn silent_gpus(node: &Node<'_>, found: &mut Findings) -> f64 {
    let wants_reset = |uuid: &str| {
        let mut rows = node.set(&gpu::RECOVERY).filter(|row| row.label("action") == "gpu_reset");
        rows.any(|row| row.label("gpu") == uuid)
    };
    let mut resets = 0.0;
    let unusable = |uuid: &str| node.rows(&gpu::UNUSABLE).any(|row| row.label("gpu") == uuid);
    for row in node.set(&gpu::LOST).filter(|row| !unusable(row.label("gpu"))) {
        let gpu = row.label("gpu");
        if wants_reset(gpu) {
            resets += 1.0;
            let text = format!("{} does not answer until it is reset", node.gpu(gpu));
            found.unhealthy(text).device(gpu).action(RESET);
        } else {
            found
                .unhealthy(format!("{} does not answer any more", node.gpu(gpu)))
                .device(gpu)
                .action("reboot the node; if it comes back, have the GPU and its slot looked at");
        }
    }
    for row in node.rows(&gpu::UNUSABLE) {
        let reset = row.label("error") == RESET_REQUIRED;
        resets += f64::from(u8::from(reset));
        let (who, why) = (unusable_gpu(row), row.label("error").replace('_', " "));
        let finding = found.unhealthy(format!("{who} cannot be used: {why}"));
        let finding = finding.device(device(row));
        finding.action(if reset { RESET } else { "reboot the node; if it stays so, have the GPU looked at" });
    }
    resets
}

/// Names the GPUs that the kernel lists and NVML does not.
fn silent(node: &Node<'_>) -> String {
    let silent = node.rows(&gpu::INFO).filter(|row| row.label("index").is_empty());
    let places: Vec<&str> = silent.map(|row| row.label("pci")).collect();
    if places.is_empty() { String::new() } else { format!("; silent: {}", places.join(" ")) }
}

/// Functions that the driver refuses for lack of permission, and on how many GPUs.
fn refused<'a>(node: &'a Node<'_>) -> BTreeMap<&'a str, usize> {
    let mut refused = BTreeMap::new();
    for row in node.rows(&gpu::NO_PERMISSION) {
        *refused.entry(row.label("function")).or_default() += 1;
    }
    refused
}

/// The label of a GPU that NVML counts but cannot open.
fn unusable_gpu(row: Row<'_>) -> String {
    let index = row.label("index");
    match row.label("pci") {
        "" => format!("GPU {index}"),
        pci => format!("GPU {index} ({pci})"),
    }
}

/// The most exact name of such a GPU.
fn device(row: Row<'_>) -> String {
    let names = ["gpu", "pci", "index"].map(|label| row.label(label));
    names.into_iter().find(|name| !name.is_empty()).unwrap_or_default().to_owned()
}

fn recovery(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let unknown = |row: &Row<'_>| row.label("error") == RESET_REQUIRED && row.label("gpu").is_empty();
    for row in node.rows(&gpu::UNUSABLE).filter(unknown) {
        let text = format!("the driver wants something done to {}: gpu_reset", unusable_gpu(row));
        found.unhealthy(text).device(device(row)).action(RESET);
    }
    for row in node.set(&gpu::RECOVERY).filter(|row| row.label("action") != "none") {
        let gpu = row.label("gpu");
        found
            .unhealthy(format!(
                "the driver wants something done to {}: {}",
                node.gpu(gpu),
                row.label("action")
            ))
            .device(gpu)
            .action(recovery_action::by_name(row.label("action")).advice);
    }
    let is_told = node.rows(&gpu::RECOVERY).next().is_some();
    let untold = "the driver does not say what it wants done to a GPU";
    found.or_ok(|| if is_told { "no GPU asks for anything" } else { untold }.into())
}

fn is_of_amd(node: &Node<'_>, uuid: &str) -> bool {
    let mut rows = node.rows(&gpu::INFO).filter(|row| row.label("gpu") == uuid);
    rows.any(|row| row.label("name").starts_with("AMD"))
}

fn ecc(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut uncorrected = BTreeMap::<&str, f64>::new();
    let volatile =
        |row: &Row<'_>| row.label("severity") == "uncorrected" && row.label("lifetime") == "volatile";
    for row in node.set(&gpu::ECC).filter(volatile) {
        // If a total is reported besides its parts, it is the largest value.
        let most = uncorrected.entry(row.label("gpu")).or_default();
        *most = most.max(row.value);
    }
    for (gpu, errors) in uncorrected {
        let text = format!(
            "{} had {errors:.0} uncorrected memory errors since the driver was loaded",
            node.gpu(gpu)
        );
        found.unhealthy(text).device(gpu).action(if is_of_amd(node, gpu) { RESET_AMD } else { RESET });
    }
    for row in node.set(&amdgpu::BAD_PAGES) {
        let (gpu, pages) = (row.label("gpu"), row.value);
        let (what, action) = match row.label("state") {
            "pending" => ("waits for a reset to take", RESET_AMD),
            "failed" => ("could not take", REPLACE),
            _ => continue,
        };
        let text = format!("{} {what} {pages:.0} bad pages of its memory out of use", node.gpu(gpu));
        found.unhealthy(text).device(gpu).action(action);
    }
    for (family, what, action) in [
        (&gpu::REMAP_FAILED, "could not replace a row of memory", REPLACE),
        (&gpu::SRAM_THRESHOLD, "had more errors of its on-chip memory than its maker accepts", REPLACE),
        (&gpu::REMAP_PENDING, "waits for a reset to replace a row of memory", RESET),
        (&gpu::RETIRED_PENDING, "waits for a reboot to take a page of memory out of use", "reboot the node"),
    ] {
        for row in node.set(family) {
            let gpu = row.label("gpu");
            found.unhealthy(format!("{} {what}", node.gpu(gpu))).device(gpu).action(action);
        }
    }
    for row in node.rows(&gpu::ECC_ENABLED).filter(|row| row.value == 0.0) {
        let gpu = row.label("gpu");
        found
            .warning(format!("{} does not correct memory errors", node.gpu(gpu)))
            .device(gpu)
            .action("enable ECC: nvidia-smi --ecc-config=1, then reset the GPU");
    }
    if let Some(gpus) = refused(node).get(SRAM_FUNCTION) {
        let text = format!(
            "the driver denies this user SRAM ECC errors ({SRAM_FUNCTION} of {gpus} GPUs: no permission)"
        );
        found.warning(text).action("give the exporter and its check CAP_SYS_ADMIN, or do without");
    }
    found.or_ok(|| "no uncorrected errors, nothing to be replaced".into())
}

fn throttle(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    for row in node.set(&gpu::THROTTLE) {
        let (gpu, reason) = (row.label("gpu"), row.label("reason"));
        let Some((_, hardware)) = THROTTLES.iter().find(|(name, _)| *name == reason) else { continue };
        let text = format!("{} is slowed down: {reason}", node.gpu(gpu));
        let braked = |of: Row<'_>| of.label("gpu") == gpu && of.label("reason") == POWER_BRAKE;
        let asked = *reason == *HW_SLOWDOWN && node.set(&gpu::THROTTLE).any(braked);
        let finding = if *hardware && !asked { found.unhealthy(text) } else { found.warning(text) };
        finding.device(gpu).action("look at its cooling, power supply and cables");
    }
    let is_told = node.rows(&gpu::THROTTLE).next().is_some();
    let untold = "the driver does not say what holds clocks down";
    found.or_ok(|| if is_told { "no GPU is slowed down" } else { untold }.into())
}

/// Reports NVLinks. A link that is down on all GPUs may have no far end, or be missing on all: it
/// was never up, or was up once.
fn nvlink(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut links = BTreeMap::<&str, Vec<(&str, bool)>>::new();
    for row in node.rows(&gpu::NVLINK_UP) {
        links.entry(row.label("gpu")).or_default().push((row.label("link"), row.value != 0.0));
    }
    // A GPU that should have links but reports none has zero.
    for row in node.rows(&gpu::EXPECTED_NVLINKS) {
        links.entry(row.label("gpu")).or_default();
    }
    // A partitioned GPU does not use its links, and they may be off.
    for row in node.rows(&gpu::MIG_INFO) {
        links.remove(row.label("gpu"));
    }
    let up = |links: &[(&str, bool)]| links.iter().filter(|(_, up)| *up).count();
    let most = links.values().map(|links| up(links)).max().unwrap_or(0);
    for (gpu, links) in &links {
        let expected = node.rows(&gpu::EXPECTED_NVLINKS).find(|row| row.label("gpu") == *gpu);
        let expected = expected.map_or(0, |row| row.value as usize).max(most);
        if up(links) < expected {
            let mut down: Vec<&str> = links.iter().filter(|(_, up)| !up).map(|(link, _)| *link).collect();
            down.sort_by_key(|link| link.parse().unwrap_or(u32::MAX));
            let down = if down.is_empty() { String::new() } else { format!("; down: {}", down.join(" ")) };
            found
                .unhealthy(format!("{} has {} of {expected} NVLinks up{down}", node.gpu(gpu), up(links)))
                .device(*gpu)
                .action("reset the GPUs; if it stays down, reseat or replace the GPU or its baseboard");
        }
    }
    found.or_ok(|| match most {
        0 => "no NVLinks".into(),
        most => format!("{} GPUs with {most} NVLinks up each", links.len()),
    })
}

fn fabric(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut registered = 0;
    for row in node.set(&gpu::FABRIC_STATE) {
        let (gpu, state) = (row.label("gpu"), row.label("state"));
        match state {
            "completed" => registered += 1,
            "not_supported" => {}
            _ => {
                found
                    .unhealthy(format!("{} is not registered with the NVLink fabric: {state}", node.gpu(gpu)))
                    .device(gpu)
                    .action("see whether nvidia-fabricmanager runs, and what it logs");
            }
        }
    }
    for row in node.set(&gpu::FABRIC_HEALTH) {
        let (gpu, condition) = (row.label("gpu"), row.label("condition"));
        let text = format!("the NVLink fabric of {}: {condition}", node.gpu(gpu));
        if condition == GFM_DISCONNECTED {
            found
                .warning(text)
                .device(gpu)
                .action("see whether the global fabric manager of its domain runs");
        } else {
            found.unhealthy(text).device(gpu).action("see what nvidia-fabricmanager logs; reset the GPUs");
        }
    }
    let switched = switched(node);
    let outside = node.set(&gpu::FABRIC_STATE).filter(|row| row.label("state") == "not_supported");
    let outside = outside.filter(|row| switched.contains(row.label("gpu"))).count();
    // A single GPU needs no fabric, and says so; several GPUs with switches need it.
    if outside >= 2 {
        found
            .warning(format!(
                "{outside} GPUs have NVLinks to NVSwitches and report that they have no fabric, as they do when it is not set up"
            ))
            .action("see whether nvidia-fabricmanager runs, on an NVL rack nvidia-imex too, and what they log");
    }
    found.or_ok(|| match registered {
        0 if !switched.is_empty() && node.rows(&gpu::FABRIC_STATE).next().is_none() => {
            "the driver reports nothing about the NVLink fabric".into()
        }
        0 => "no NVLink fabric".into(),
        n => format!("{n} GPUs registered, nothing wrong"),
    })
}

/// GPUs whose NVLinks lead to NVSwitches. A partitioned one does not use them.
fn switched<'a>(node: &'a Node<'_>) -> BTreeSet<&'a str> {
    let mut switched: BTreeSet<&str> = node.set(&gpu::NVLINK_SWITCHED).map(|row| row.label("gpu")).collect();
    for row in node.rows(&gpu::MIG_INFO) {
        switched.remove(row.label("gpu"));
    }
    switched
}
