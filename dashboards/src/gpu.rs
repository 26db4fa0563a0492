//! GPUs of one node or a few: what do they do, are they faulty, and does the driver answer?

use crate::head;
use crate::layout::{Board, Chart, Row};
use crate::model::{Unit, Variable};
use crate::node;
use crate::series::{Expr, gpu, of};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-gpu",
        title: "Stepwatch / GPU",
        description: "The GPUs of one node or a few, down to their memory, their power and their driver.",
        variables,
        annotations: || vec![head::incidents(), node::xids()],
        rows: vec![
            work(),
            heat(),
            held_down(),
            faults(),
            memory(),
            pcie(),
            partitions(),
            driver(),
            identity(),
        ],
    }
}

fn variables() -> Vec<Variable> {
    let mut all = head::of_nodes();
    all.push(node::gpu_choice());
    all
}

/// One value a GPU.
fn each(name: &'static str) -> Expr {
    gpu(name).max("instance, gpu").named()
}

/// One value a GPU and value of `label`.
fn by(name: &'static str, label: &str) -> Expr {
    gpu(name).max(&format!("instance, gpu, {label}")).named()
}

const GPU: &str = "{{instance}} GPU {{index}}";

fn work() -> Row {
    Row::open(
        "What do the GPUs do?",
        vec![
            Chart::lines("Busy", "Do all GPUs have the same work?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(each("gpu_utilization_ratio"), GPU),
            Chart::lines("Tensor cores", "How much of the time do the tensor cores work?", Unit::Ratio)
                .from_zero()
                .show(each("gpu_tensor_active_ratio"), GPU),
            Chart::lines("Multiprocessors", "How much of the chip has something to do?", Unit::Ratio)
                .from_zero()
                .show(each("gpu_graphics_active_ratio"), "{{instance}} GPU {{index}} any of it")
                .show(each("gpu_sm_active_ratio"), "{{instance}} GPU {{index}} active")
                .show(each("gpu_sm_occupancy_ratio"), "{{instance}} GPU {{index}} occupied"),
            Chart::lines("Arithmetic units", "Which kind of arithmetic is it?", Unit::Ratio)
                .from_zero()
                .show(by("gpu_pipe_active_ratio", "pipe"), "{{instance}} GPU {{index}} {{pipe}}"),
            Chart::lines("Memory bandwidth", "Is the work bound by memory?", Unit::Ratio)
                .from_zero()
                .show(each("gpu_dram_active_ratio"), "{{instance}} GPU {{index}} moves data")
                .show(
                    each("gpu_memory_controller_utilization_ratio"),
                    "{{instance}} GPU {{index}} controller",
                ),
            Chart::lines("Memory", "Who is near the end of its memory?", Unit::Bytes)
                .from_zero()
                .show(each("gpu_memory_used_bytes"), GPU)
                .show(gpu("gpu_memory_total_bytes").max("instance"), "{{instance}} largest"),
            Chart::lines(
                "Memory not used",
                "How much is free, and how much does the driver keep?",
                Unit::Bytes,
            )
            .from_zero()
            .show(each("gpu_memory_free_bytes"), "{{instance}} GPU {{index}} free")
            .show(each("gpu_memory_reserved_bytes"), "{{instance}} GPU {{index}} kept"),
            Chart::lines("Processes", "Does more than one process compute on a GPU?", Unit::Count)
                .from_zero()
                .show(each("gpu_processes"), GPU),
        ],
    )
}

fn heat() -> Row {
    Row::open(
        "Power, heat and clocks",
        vec![
            Chart::lines("Power", "Does one GPU draw less, or hit its limit?", Unit::Watts)
                .from_zero()
                .show(each("gpu_power_watts"), GPU)
                .show(gpu("gpu_power_limit_watts").max("instance"), "{{instance}} limit"),
            Chart::lines(
                "Energy used",
                "What is the mean power, without the gaps between samples?",
                Unit::Watts,
            )
            .from_zero()
            .show(gpu("gpu_energy_joules_total").rate().max("instance, gpu").named(), GPU),
            Chart::lines("Power at one moment", "How far do the peaks go?", Unit::Watts)
                .from_zero()
                .show(each("gpu_power_instant_watts"), GPU)
                .show(by("gpu_module_power_watts", "scope"), "{{instance}} GPU {{index}} {{scope}}"),
            Chart::lines("Temperature", "Is one GPU hotter than its neighbours?", Unit::Celsius)
                .show(by("gpu_temperature_celsius", "sensor"), "{{instance}} GPU {{index}} {{sensor}}")
                .show(
                    gpu("gpu_temperature_threshold_celsius").min("instance, kind"),
                    "{{instance}} {{kind}}",
                ),
            Chart::lines("Margin", "How much warmer may a GPU become before it slows down?", Unit::Celsius)
                .show(each("gpu_temperature_margin_celsius"), GPU)
                .show(
                    gpu("gpu_temperature_margin_threshold_celsius").max("instance, kind"),
                    "{{instance}} {{kind}}",
                ),
            Chart::lines("Clocks", "Is one GPU slower than its neighbours?", Unit::Hertz)
                .show(by("gpu_clock_hertz", "domain"), "{{instance}} GPU {{index}} {{domain}}")
                .show(gpu("gpu_clock_max_hertz").max("instance, domain"), "{{instance}} {{domain}} highest"),
        ],
    )
}

fn held_down() -> Row {
    Row::open(
        "What holds them down?",
        vec![
            Chart::states("Held down by", "Which reason holds which GPU down?")
                .word(1.0, "held down", "orange")
                .show(
                    gpu("gpu_throttle_active")
                        .with(r#"reason!="gpu_idle""#)
                        .max("instance, gpu, reason")
                        .above(0.0)
                        .named(),
                    "{{instance}} GPU {{index}} {{reason}}",
                ),
            Chart::lines(
                "Time held down",
                "For which share of the time does which reason hold it down?",
                Unit::Ratio,
            )
            .from_zero()
            .show(
                gpu("gpu_throttled_seconds_total")
                    .with(r#"reason!="gpu_idle""#)
                    .rate()
                    .max("instance, gpu, reason")
                    .above(0.0)
                    .named(),
                "{{instance}} GPU {{index}} {{reason}}",
            ),
            Chart::lines(
                "Performance state",
                "Does a busy GPU run in a slow state? 0 is the fastest.",
                Unit::Count,
            )
            .from_zero()
            .show(each("gpu_performance_state"), GPU),
            Chart::states("Persistence mode", "Does the driver keep unused GPUs up?")
                .word(1.0, "on", "green")
                .word(0.0, "off", "orange")
                .show(each("gpu_persistence_mode"), GPU),
        ],
    )
}

fn faults() -> Row {
    Row::open(
        "Are the GPUs faulty?",
        vec![
            Chart::lines("XIDs", "Which errors did the driver report?", Unit::Count).bars().from_zero().show(
                gpu("gpu_xid_errors_total")
                    .new_in("$__rate_interval")
                    .max("instance, gpu, xid")
                    .named_or_not("xid"),
                "{{instance}} GPU {{index}} XID {{xid}} {{gpu}}",
            ),
            Chart::table(
                "Last XIDs",
                "Which errors were there since the boot, and how long ago?",
                Unit::Seconds,
            )
            .show(gpu("gpu_xid_last_timestamp_seconds").max("instance, gpu, xid").age().bottom(), "ago"),
            Chart::states("Conditions", "What does the driver want, and since when?")
                .show(
                    gpu("gpu_lost").max("instance, gpu").above(0.0).named_or_not(""),
                    "{{instance}} GPU {{index}} {{gpu}} lost",
                )
                .show(
                    gpu("gpu_recovery_action")
                        .with(r#"action!="none""#)
                        .max("instance, gpu, action")
                        .above(0.0)
                        .named_or_not("action"),
                    "{{instance}} GPU {{index}} {{gpu}} wants {{action}}",
                )
                .show(
                    gpu("gpu_xid_recovery_action")
                        .max("instance, gpu, action")
                        .above(0.0)
                        .named_or_not("action"),
                    "{{instance}} GPU {{index}} {{gpu}} an XID wants {{action}}",
                )
                .show(each("gpu_row_remap_pending").above(0.0), "{{instance}} GPU {{index}} remap pending")
                .show(each("gpu_row_remap_failed").above(0.0), "{{instance}} GPU {{index}} remap failed")
                .show(
                    each("gpu_sram_ecc_threshold_exceeded").above(0.0),
                    "{{instance}} GPU {{index}} too many errors of the chip",
                )
                .show(
                    each("gpu_retired_pages_pending").above(0.0),
                    "{{instance}} GPU {{index}} page waits for a reboot",
                ),
        ],
    )
}

fn memory() -> Row {
    Row::open(
        "Does their memory wear out?",
        vec![
            Chart::states("ECC", "Are memory errors corrected?")
                .word(1.0, "on", "green")
                .word(0.0, "off", "red")
                .show(each("gpu_ecc_enabled"), GPU),
            Chart::lines("Memory errors, corrected", "Does the memory of a GPU wear out?", Unit::Count)
                .from_zero()
                .show(ecc("corrected", "1h"), "{{instance}} GPU {{index}} an hour"),
            Chart::lines("Memory errors, uncorrected", "Was data lost?", Unit::Count)
                .bars()
                .from_zero()
                .show(ecc("uncorrected", "$__rate_interval"), GPU),
            Chart::lines(
                "Errors of memory on the chip",
                "Which GPU has errors that cannot be mapped out?",
                Unit::Count,
            )
            .from_zero()
            .show(
                gpu("gpu_sram_ecc_errors_total")
                    .increase_in("1h")
                    .max("instance, gpu, lifetime, kind")
                    .above(0.0)
                    .named(),
                "{{instance}} GPU {{index}} {{kind}}, {{lifetime}}, an hour",
            )
            .show(
                gpu("gpu_sram_ecc_uncorrected_total")
                    .increase_in("1h")
                    .max("instance, gpu, unit")
                    .above(0.0)
                    .named(),
                "{{instance}} GPU {{index}} uncorrected, {{unit}}, an hour",
            ),
            Chart::lines(
                "Memory taken out of use",
                "How much of its spare memory has a GPU used up?",
                Unit::Count,
            )
            .from_zero()
            .show(by("gpu_remapped_rows", "cause"), "{{instance}} GPU {{index}} rows, {{cause}}")
            .show(
                by("gpu_row_remap_banks", "availability").above(0.0),
                "{{instance}} GPU {{index}} banks, {{availability}}",
            )
            .show(by("gpu_retired_pages", "cause"), "{{instance}} GPU {{index}} pages, {{cause}}")
            .show(by("gpu_bad_pages", "state"), "{{instance}} GPU {{index}} pages, {{state}}"),
        ],
    )
}

/// Memory errors since the driver was loaded, of all places together.
fn ecc(severity: &str, window: &'static str) -> Expr {
    gpu("gpu_ecc_errors_total")
        .with(&format!(r#"severity="{severity}", lifetime="volatile""#))
        .increase_in(window)
        .max("instance, gpu, location")
        .sum("instance, gpu")
        .named()
}

fn pcie() -> Row {
    Row::folded(
        "Does data reach them over PCIe?",
        vec![
            Chart::lines("PCIe traffic", "How much goes over PCIe?", Unit::BytesPerSecond)
                .from_zero()
                .show(each("gpu_pcie_transmit_bytes_per_second"), "{{instance}} GPU {{index}} sent")
                .show(each("gpu_pcie_receive_bytes_per_second"), "{{instance}} GPU {{index}} received"),
            Chart::lines("PCIe errors", "Is a slot or a riser loose?", Unit::PerSecond).from_zero().show(
                gpu("gpu_pcie_errors_total").rate().max("instance, gpu, kind").named(),
                "{{instance}} GPU {{index}} {{kind}}",
            ),
            Chart::lines("PCIe lanes", "Has a GPU lost lanes?", Unit::Count)
                .from_zero()
                .show(each("gpu_pcie_link_width"), GPU)
                .show(gpu("gpu_pcie_link_max_width").max("instance"), "{{instance}} most"),
            Chart::lines("PCIe generation", "Is a busy GPU's link slow? An idle one lowers it.", Unit::Count)
                .from_zero()
                .show(each("gpu_pcie_link_generation"), GPU)
                .show(gpu("gpu_pcie_link_max_generation").max("instance"), "{{instance}} highest"),
            Chart::table("Nearest adapters", "Which adapter is near which GPU?", Unit::Count).facts(
                gpu("gpu_nic_affinity_info").with(r#"path!="sys""#).max("instance, gpu, device, path, rail"),
            ),
        ],
    )
}

fn partitions() -> Row {
    let of_instance = |name| gpu(name).max("instance, gpu, gi").named();
    const INSTANCE: &str = "{{instance}} GPU {{index}}/{{gi}}";
    Row::folded(
        "What do the parts of partitioned GPUs do?",
        vec![
            Chart::table("MIG instances", "Which GPU is cut into which parts?", Unit::Count)
                .facts(gpu("gpu_mig_info").max("instance, gpu, gi, ci, profile, mig_uuid").top()),
            Chart::lines("Memory of instances", "Who is near the end of its memory?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(
                    gpu("gpu_mig_memory_used_bytes")
                        .max("instance, gpu, gi, ci")
                        .over(&gpu("gpu_mig_memory_total_bytes").max("instance, gpu, gi, ci")),
                    "{{instance}} {{gpu}}/{{gi}}/{{ci}}",
                ),
            Chart::lines("Work of instances", "Do the parts have work?", Unit::Ratio)
                .from_zero()
                .show(of_instance("gpu_mig_sm_active_ratio"), INSTANCE),
            Chart::lines("Occupancy of instances", "Does their work fill them?", Unit::Ratio)
                .from_zero()
                .show(of_instance("gpu_mig_sm_occupancy_ratio"), INSTANCE),
            Chart::lines("Tensor cores of instances", "How much of the time do they work?", Unit::Ratio)
                .from_zero()
                .show(of_instance("gpu_mig_tensor_active_ratio"), INSTANCE),
            Chart::lines("Memory bandwidth of instances", "Is their work bound by memory?", Unit::Ratio)
                .from_zero()
                .show(of_instance("gpu_mig_dram_active_ratio"), INSTANCE),
            Chart::lines("XIDs of instances", "Whose work failed?", Unit::Count).bars().from_zero().show(
                gpu("gpu_mig_xid_errors_total").increase().max("instance, gpu, gi, ci, xid").above(0.0),
                "{{instance}} {{gpu}}/{{gi}}/{{ci}} XID {{xid}}",
            ),
        ],
    )
}

fn driver() -> Row {
    Row::folded(
        "Does the driver answer?",
        vec![
            Chart::lines(
                "Longest calls",
                "Does the driver answer in time? The longest only where the configuration asks for them.",
                Unit::Seconds,
            )
            .from_zero()
            .show(
                of("gpu_nvml_call_max_seconds").max("instance, function").top(),
                "{{instance}} {{function}}, longest",
            )
            .show(
                of("gpu_nvml_call_running_seconds").max("instance, function"),
                "{{instance}} {{function}}, not back yet",
            ),
            Chart::lines("Time in calls", "Which calls take the driver's time?", Unit::Ratio)
                .from_zero()
                .show(
                    of("gpu_nvml_call_seconds_total").rate().max("instance, function").top(),
                    "{{instance}} {{function}}",
                ),
            Chart::lines("Errors of the driver", "Does it answer with errors?", Unit::PerSecond)
                .from_zero()
                .show(
                    gpu("gpu_nvml_failures_total").rate().max("instance, gpu").named_or_not(""),
                    "{{instance}} GPU {{index}} {{gpu}}",
                )
                .show(
                    of("gpu_nvml_event_failures_total").rate().max("instance"),
                    "{{instance}} waiting for XIDs",
                ),
            Chart::table("Refused", "What may this exporter not read?", Unit::Count)
                .show(gpu("gpu_nvml_no_permission").max("instance, function"), "refused"),
            Chart::states("NVML given back", "Was the driver let go, so that GPUs can be reset?")
                .word(1.0, "given back", "orange")
                .word(0.0, "in use", "green")
                .show(of("stepwatch_exporter_nvml_released").max("instance"), "{{instance}}"),
            Chart::number("NVML taken back in", "When does the exporter take it back?", Unit::Seconds).show(
                of("stepwatch_exporter_nvml_released_until_timestamp_seconds").max("instance").until(),
                "{{instance}}",
            ),
        ],
    )
}

fn identity() -> Row {
    Row::folded(
        "Which GPUs are they?",
        vec![
            Chart::table("GPUs", "Which GPU is at which index and slot?", Unit::Count).width(24).facts(
                gpu("gpu_info").max("instance, gpu, index, pci, name, serial, vbios, driver, cuda, minor"),
            ),
            Chart::table("Racks", "Where in its rack is which GPU?", Unit::Count).width(24).facts(
                gpu("gpu_platform_info").max("instance, gpu, chassis, slot, tray, host, module, ib_guid"),
            ),
            Chart::table("Modes", "In which modes do they run?", Unit::Count)
                .facts(gpu("gpu_mode_info").max("instance, gpu, compute_mode, gsp_firmware")),
            Chart::table("Drivers", "Which driver is loaded?", Unit::Count)
                .facts(of("gpu_driver_info").max("instance, version")),
        ],
    )
}
