//! Matches lines of the drivers of PCIe, memory and network adapters.
//!
//! Each function names the source file with its format strings. Those of the kernel are in
//! torvalds/linux, those of Lustre in lustre/lustre-release.

use super::{Facts, Found, after_number, device_of, is_device, message_of_device};
use crate::collectors::kernel::patterns::Pattern;

/// drivers/net/ethernet/mellanox/mlx5/core: `events.c`, `health.c`, `cmd.c`, `en/reporter_*.c` and
/// `en_main.c`.
pub(super) fn mlx5(line: &str) -> Option<Found<'_>> {
    let (pci, netdev) = device_of(line);
    // Subfunctions of a device have addresses of a different form.
    if !line.starts_with("mlx5_c") || (pci.is_empty() && !line.starts_with("mlx5_core.sf mlx5_core.sf.")) {
        return None;
    }
    let has = |text: &str| line.contains(text);
    let pattern = if has("Port module event") {
        match () {
            () if has("High Temperature") || has("high temperature") => Pattern::Mlx5ModuleHot,
            () if has("Cable unplugged") => Pattern::Mlx5CableUnplugged,
            () if has("error") => Pattern::Mlx5ModuleError,
            () => return None,
        }
    } else {
        match () {
            () if has("Detected insufficient power on the PCIe slot") => Pattern::Mlx5SlotPower,
            () if has("Will cause a leak of a command resource") => Pattern::Mlx5CommandLeak,
            () if has("device's health compromised") && has("reached miss count") => Pattern::Mlx5Health,
            () if has("unrecoverable hardware error") => Pattern::Mlx5Unrecoverable,
            () if has("TX timeout detected") => Pattern::Mlx5TxTimeout,
            () if has("RX timeout on channel") => Pattern::Mlx5RxTimeout,
            () if has("mlx5_cmd_out_err") && has("ACCESS_REG") && has("failed") => {
                Pattern::Mlx5AccessRegister
            }
            () if line.ends_with("Link up") => Pattern::Mlx5LinkUp,
            () if line.ends_with("Link down") => Pattern::Mlx5LinkDown,
            () => return None,
        }
    };
    Some(Found::Pattern(pattern, Facts::pci(pci, netdev)))
}

/// Matches `infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe`: a request of the kernel
/// itself (for Lustre, NFS, NVMe or GPUDirect) failed. drivers/infiniband/hw/mlx5/cq.c, `dump_cqe`.
/// Later kernels print `WC error: 4, Message: local protection error` instead, and some print both
/// lines, so the second one, of `mlx5_handle_error_cqe`, is not counted.
pub(super) fn mlx5_completion(line: &str) -> Option<Found<'_>> {
    let (device, said) = line.strip_prefix("infiniband ")?.split_once(": dump_cqe:")?;
    let said = after_number(said)?.strip_prefix(":(pid ").and_then(after_number)?.strip_prefix("): ")?;
    let ours = is_device(device) && (said == "dump error cqe" || said.starts_with("WC error: "));
    ours.then(|| Found::Pattern(Pattern::Mlx5Completion, Facts::device(device)))
}

/// Matches `pcieport 0000:89:02.0: DPC: containment event, status:0x1f01 source:0x0000`
/// (drivers/pci/pcie/dpc.c, `dpc_process_error`; before 4.20 without the colon after `DPC`), and
/// `pcieport 0000:89:02.0: pciehp: Slot(400): Link Down` (drivers/pci/hotplug/pciehp_ctrl.c,
/// `pciehp_handle_presence_or_link_change`).
pub(super) fn pcieport(line: &str) -> Option<Found<'_>> {
    line.strip_prefix("pcieport ")?;
    let (pci, said) = message_of_device(line)?;
    let contained = ["DPC: containment event, status:", "DPC containment event, status:"];
    let slot = || said.strip_prefix("pciehp: Slot(").and_then(|rest| rest.split_once("): "));
    let pattern = match () {
        () if contained.iter().any(|text| said.starts_with(text)) => Pattern::PcieContained,
        () if slot().is_some_and(|(_, said)| said == "Link Down") => Pattern::PcieSlotDown,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::pci(pci, "")))
}

/// Matches `EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 (channel:0 slot:0
/// page:0x7e offset:0x400 grain:32 ...)`: drivers/edac/edac_mc.c, `edac_ue_error`. The name of a
/// process can be as long as the prefix, so the end is compared too.
pub(super) fn edac(line: &str) -> Option<Found<'_>> {
    let rest = after_number(line.strip_prefix("EDAC MC")?)?.strip_prefix(": ")?;
    let (_, label) = after_number(rest)?.strip_prefix(" UE ")?.split_once("on ")?;
    let (label, place) = label.split_once(" (")?;
    let ours = place.ends_with(')') && place.contains(" grain:") && !rest.contains(": page allocation");
    ours.then(|| Found::Pattern(Pattern::EdacUncorrected, Facts::device(label)))
}

/// Matches `bnxt_en 0000:19:00.0 enp25s0f0np0: NIC Link is Down`:
/// drivers/net/ethernet/broadcom/bnxt/bnxt.c, `bnxt_report_link`.
pub(super) fn bnxt(line: &str) -> Option<Found<'_>> {
    line.strip_prefix("bnxt_en ")?;
    let (pci, netdev) = device_of(line);
    let (_, said) = line.split_once(": NIC Link is ")?;
    let pattern = match () {
        () if netdev.is_empty() => return None,
        () if said == "Down" => Pattern::BnxtLinkDown,
        () if said.starts_with("Up") => Pattern::BnxtLinkUp,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::pci(pci, netdev)))
}

/// Matches `efa 0000:10:1b.0 efa_0: Failed to process command CREATE_QP (opcode 1) comp_status 6
/// err -12`: drivers/infiniband/hw/efa/efa_com.c. A refused command may be an application's
/// mistake; an unanswered one is a fault of the device.
pub(super) fn efa(line: &str) -> Option<Found<'_>> {
    line.strip_prefix("efa ")?;
    let (pci, device) = device_of(line);
    if pci.is_empty() {
        return None;
    }
    let (_, said) = line.split_once(": ")?;
    let silent = [
        "Wait for completion (polling) timeout",
        "The device sent a completion but the driver didn't receive any MSI-X interrupt",
        "The device didn't send any completion for admin cmd",
        "Failed to submit command ",
    ];
    let pattern = match () {
        () if silent.iter().any(|text| said.starts_with(text)) => Pattern::EfaSilent,
        () if said.starts_with("Failed to process command ") => Pattern::EfaRefused,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::pci(pci, device)))
}

/// Matches `LNetError: 2345:0:(o2iblnd_cb.c:3410:kiblnd_check_conns()) Timed out RDMA with
/// 10.0.0.1@o2ib (52): c: 0, oc: 0, rc: 8`: lnet/klnds/o2iblnd/o2iblnd_cb.c, `kiblnd_check_conns`.
pub(super) fn o2iblnd(line: &str) -> Option<Found<'_>> {
    let place = after_number(line.strip_prefix("LNetError: ")?)?.strip_prefix(':')?;
    let said = after_number(place)?.strip_prefix(":(o2iblnd_cb.c:")?;
    let (_, rest) = said.split_once(") Timed out RDMA with ")?;
    let server = rest.split(' ').next()?;
    is_network_id(server).then(|| Found::Pattern(Pattern::LnetTimeout, Facts::device(server)))
}

/// Whether a text is a network id such as `10.0.0.1@o2ib1`.
fn is_network_id(text: &str) -> bool {
    text.split_once('@').is_some_and(|(at, network)| {
        is_device(at) && !network.is_empty() && network.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

/// Matches lines of AMD's GPUs, `amdgpu 0000:c1:00.0: amdgpu: <message>`, in
/// drivers/gpu/drm/amd/amdgpu: `amdgpu_job.c` (`ring sdma0 timeout, signaled seq=...`),
/// `amdgpu_device.c` (`GPU reset(3) succeeded!`, `GPU reset end with ret = -22`, `device lost from
/// bus!`), `amdgpu_ras.c` (`2 uncorrectable hardware errors detected in umc block`, `... RAS
/// records:N exceed threshold:M`).
pub(super) fn amdgpu(line: &str) -> Option<Found<'_>> {
    line.strip_prefix("amdgpu ")?;
    let (pci, said) = message_of_device(line)?;
    let said = said.strip_prefix("amdgpu: ")?;
    let said = said.strip_prefix("[drm] ").unwrap_or(said);
    let reset = || after_number(said.strip_prefix("GPU reset(")?)?.strip_prefix(") ");
    let ended = || said.strip_prefix("GPU reset end with ret = ");
    let pattern = match () {
        () if said.starts_with("ring ") && said.contains(" timeout, ") => Pattern::AmdgpuHang,
        () if reset().is_some_and(|outcome| outcome.starts_with("succeeded")) => Pattern::GpuReset,
        () if ended().is_some_and(|code| code != "0") => Pattern::GpuResetFailed,
        () if said == "device lost from bus!" => Pattern::GpuFallenOff,
        () if said.contains("uncorrectable hardware errors detected in ") && said.ends_with(" block") => {
            Pattern::AmdgpuUncorrected
        }
        () if said.starts_with("RAS records:") && said.contains("exceed threshold") => {
            Pattern::AmdgpuBadPages
        }
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::pci(pci, "")))
}
