//! Where checkpoints and data are: is there room, does it answer, and are the drives well?

use crate::head::{self, mark};
use crate::layout::{Board, Chart, Row};
use crate::model::{Annotation, Unit};
use crate::series::{Expr, of};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-storage",
        title: "Stepwatch / Storage and checkpoints",
        description: "Checkpoints of runs, and the file systems and drives of one node or a few.",
        variables: head::of_nodes,
        annotations,
        rows: vec![checkpoints(), network_file_systems(), nfs(), lustre(), local(), drives(), nvme_drives()],
    }
}

fn annotations() -> Vec<Annotation> {
    let last_minute = |name| of(name).increase_in("1m").max("run").above(0.0);
    vec![
        head::incidents(),
        mark("Checkpoint failed", "red", last_minute("train_checkpoint_failures_total"), "{{run}}"),
    ]
}

const MOUNT: &str = "{{instance}} {{mount}}";

fn on_mount(name: &'static str) -> Expr {
    of(name).max("instance, mount")
}

/// Shares of what there is, without what is a number of nothing.
fn share(part: &'static str, whole: &'static str) -> Expr {
    on_mount(part).over(&on_mount(whole))
}

fn checkpoints() -> Row {
    let of_run = |name| of(name).max("run");
    Row::open(
        "Is the work safe?",
        vec![
            Chart::lines("Work at risk", "How much work would a crash lose now?", Unit::Seconds)
                .from_zero()
                .show(
                    of_run("train_checkpoint_last_success_timestamp_seconds").age().top(),
                    "{{cluster}} {{run}}",
                ),
            Chart::lines("Duration of a checkpoint", "Which stage of saving gets slower?", Unit::Seconds)
                .from_zero()
                .show(
                    of("train_checkpoint_duration_seconds").max("run, stage").top(),
                    "{{cluster}} {{run}} {{stage}}",
                ),
            Chart::lines("Failed checkpoints", "Whose checkpoints fail?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("train_checkpoint_failures_total").increase().max("run").above(0.0).top(),
                    "{{cluster}} {{run}}",
                ),
            Chart::lines("Checkpoints on disk", "How many are whole, and how many are not?", Unit::Count)
                .from_zero()
                .show(of("train_checkpoints").max("run, state").top(), "{{cluster}} {{run}} {{state}}"),
            Chart::lines(
                "Size of checkpoints",
                "How much room do they take, and does one differ in size?",
                Unit::Bytes,
            )
            .from_zero()
            .show(of_run("train_checkpoints_bytes").top(), "{{cluster}} {{run}} all")
            .show(of_run("train_checkpoint_size_bytes").top(), "{{cluster}} {{run}} last"),
            Chart::lines("Being written", "Does the checkpoint that is written grow?", Unit::Bytes)
                .from_zero()
                .show(of_run("train_checkpoint_written_bytes").top(), "{{cluster}} {{run}}"),
            Chart::table("Room for checkpoints", "How many more checkpoints fit?", Unit::Short)
                .show(of("disk_checkpoints_left").min("run, instance, mount").bottom(), "checkpoints left"),
            Chart::table(
                "Time to the first that does not fit",
                "When does a checkpoint not fit any more?",
                Unit::Seconds,
            )
            .show(of("disk_checkpoints_full_seconds").min("run, instance, mount").bottom(), "time left"),
            Chart::table("Directories of checkpoints", "Where does a run save?", Unit::Count)
                .facts(of("disk_checkpoint_directory_info").max("run, instance, mount, path").top()),
            Chart::table("Last complete checkpoint", "To which step could a run go back?", Unit::Count)
                .show(of_run("train_checkpoint_last_step").top(), "step"),
        ],
    )
}

fn network_file_systems() -> Row {
    Row::open(
        "Do the network file systems answer?",
        vec![
            Chart::lines(
                "Answer of mounts",
                "How long does a network file system take to answer?",
                Unit::Seconds,
            )
            .from_zero()
            .show(on_mount("mount_response_seconds"), MOUNT),
            Chart::states("Mounts", "Which mount does not answer, and since when?")
                .word(1.0, "answers", "green")
                .word(0.0, "does not answer", "red")
                .show(of("mount_responsive").min("instance, mount"), MOUNT),
            Chart::lines("Room on mounts", "Which network file system fills up?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(share("mount_free_bytes", "mount_size_bytes"), "{{instance}} {{mount}} free"),
            Chart::lines("Room for files", "Does a file system run out of inodes?", Unit::Short)
                .from_zero()
                .show(on_mount("mount_free_inodes"), MOUNT),
            Chart::states("Read-only mounts", "Which mount can only be read?")
                .word(1.0, "read-only", "orange")
                .word(0.0, "can be written", "green")
                .show(on_mount("mount_read_only"), MOUNT),
            Chart::lines("Not watched", "Which mounts are not asked?", Unit::Count)
                .from_zero()
                .show(of("mount_unwatched").max("instance"), "{{instance}} too many, or too many stuck")
                .show(of("mount_unwatched_automounts").max("instance"), "{{instance}} automounted"),
            Chart::table("Mounts and their servers", "What is mounted from where?", Unit::Count)
                .facts(of("mount_info").max("instance, mount, fstype, source").top()),
        ],
    )
}

fn nfs() -> Row {
    let rate = |name| of(name).rate().max("instance, mount, operation");
    let of_mount = |name| rate(name).sum("instance, mount");
    const OPERATION: &str = "{{instance}} {{mount}} {{operation}}";
    Row::folded(
        "What does NFS do?",
        vec![
            Chart::lines("Requests", "What is asked of the servers?", Unit::PerSecond)
                .from_zero()
                .show(rate("nfs_requests_total").top(), OPERATION),
            Chart::lines("Response time", "How long do the servers take?", Unit::Seconds)
                .from_zero()
                .show(of("nfs_response_time_seconds").max("instance, mount, operation").top(), OPERATION),
            Chart::lines(
                "Where requests spend their time",
                "Do they wait here or at the server?",
                Unit::Ratio,
            )
            .from_zero()
            .show(of_mount("nfs_queue_seconds_total"), "{{instance}} {{mount}} before sending")
            .show(of_mount("nfs_response_seconds_total"), "{{instance}} {{mount}} at the server")
            .show(of_mount("nfs_execute_seconds_total"), "{{instance}} {{mount}} in all"),
            Chart::lines("NFS traffic", "How much goes to and from the servers?", Unit::BytesPerSecond)
                .from_zero()
                .show(of_mount("nfs_transmit_bytes_total"), "{{instance}} {{mount}} sent")
                .show(of_mount("nfs_receive_bytes_total"), "{{instance}} {{mount}} received"),
            Chart::lines("Sent again", "Does the network or the server lose requests?", Unit::PerSecond)
                .from_zero()
                .show(of_mount("nfs_retransmissions_total"), "{{instance}} {{mount}} sent again")
                .show(of_mount("nfs_timeouts_total"), "{{instance}} {{mount}} timed out"),
            Chart::lines("Errors of servers", "What do the servers refuse?", Unit::PerSecond)
                .from_zero()
                .show(rate("nfs_errors_total").above(0.0).top(), OPERATION),
        ],
    )
}

fn lustre() -> Row {
    let rate = |name| of(name).rate().max("instance, filesystem");
    Row::folded(
        "What does Lustre do?",
        vec![
            Chart::states("Client", "Does the Lustre client report that it is healthy?")
                .word(1.0, "healthy", "green")
                .word(0.0, "unhealthy", "red")
                .show(of("lustre_healthy").min("instance"), "{{instance}}"),
            Chart::table(
                "Connections that are down",
                "Which target is not connected, and in which state?",
                Unit::Count,
            )
            .facts(of("lustre_import_down_info").max("instance, target, kind, state").top()),
            Chart::lines("Connections", "In which state are the connections?", Unit::Count)
                .from_zero()
                .show(of("lustre_imports").max("instance, kind, state"), "{{instance}} {{kind}} {{state}}")
                .show(of("lustre_imports_left_out").max("instance"), "{{instance}} left out"),
            Chart::lines("Lustre traffic", "How much do programs read and write?", Unit::BytesPerSecond)
                .from_zero()
                .show(rate("lustre_client_read_bytes_total"), "{{instance}} {{filesystem}} read")
                .show(rate("lustre_client_written_bytes_total"), "{{instance}} {{filesystem}} written"),
            Chart::lines("Lustre calls", "What do programs do there?", Unit::PerSecond).from_zero().show(
                of("lustre_client_operations_total").rate().max("instance, filesystem, operation").top(),
                "{{instance}} {{filesystem}} {{operation}}",
            ),
        ],
    )
}

fn local() -> Row {
    Row::open(
        "Is there room on the local disks?",
        vec![
            Chart::lines("Room", "Which file system fills up?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(share("disk_free_bytes", "disk_size_bytes"), "{{instance}} {{mount}} free"),
            Chart::lines("Time until full", "When is a file system full?", Unit::Seconds)
                .log()
                .show(on_mount("disk_full_seconds"), MOUNT),
            Chart::lines("Fills by", "How fast is the room used up?", Unit::BytesPerSecond)
                .show(on_mount("disk_fill_bytes_per_second"), MOUNT),
            Chart::lines("Room for files on disks", "Does a file system run out of inodes?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(share("disk_free_inodes", "disk_inodes"), "{{instance}} {{mount}} free"),
            Chart::states("Read-only disks", "Which file system can only be read?")
                .word(1.0, "read-only", "red")
                .word(0.0, "can be written", "green")
                .show(on_mount("disk_read_only"), MOUNT),
            Chart::table("File systems", "What is on which device?", Unit::Count)
                .facts(of("disk_info").max("instance, mount, fstype, source").top()),
        ],
    )
}

fn drives() -> Row {
    let device = |name| of(name).max("instance, device");
    let errors = |name| of(name).increase_in("1h").max("instance, device");
    const DEVICE: &str = "{{instance}} {{device}}";
    Row::folded(
        "Are the drives well?",
        vec![
            Chart::states("Read-only drives", "Is a drive worn out?")
                .word(1.0, "read-only", "red")
                .word(0.0, "can be written", "green")
                .show(device("disk_device_read_only"), DEVICE),
            Chart::lines("Errors of drives", "Which drive or file system has errors?", Unit::Count)
                .bars()
                .from_zero()
                .show(errors("disk_device_io_errors_total"), "{{instance}} {{device}} requests an hour")
                .show(errors("disk_filesystem_errors_total"), "{{instance}} {{device}} file system an hour"),
            Chart::lines("Missing from arrays", "Which software RAID has lost a device?", Unit::Count)
                .from_zero()
                .show(device("disk_array_missing_devices"), DEVICE),
            Chart::table("Drives", "Which drives are there?", Unit::Count)
                .width(8)
                .facts(of("disk_device_info").max("instance, device, model, rotational").top()),
            Chart::table("Size of drives", "How large are they?", Unit::Bytes)
                .width(8)
                .show(device("disk_device_size_bytes").top(), "size"),
        ],
    )
}

fn nvme_drives() -> Row {
    let nvme = |name| of(name).max("instance, controller");
    let a_day = |name| of(name).increase_in("1d").max("instance, controller");
    Row::folded(
        "Are the NVMe drives well?",
        vec![
            Chart::states("NVMe controllers", "Is a drive resetting or dead?")
                .word(1.0, "live", "green")
                .word(0.0, "not live", "red")
                .show(of("disk_nvme_up").min("instance, controller"), "{{instance}} {{controller}}"),
            Chart::lines("NVMe temperature", "Is a drive too warm?", Unit::Celsius).show(
                of("disk_nvme_temperature_celsius").max("instance, controller"),
                "{{instance}} {{controller}}",
            ),
            Chart::lines(
                "Wear",
                "How much of its life and its spare memory has a drive used up?",
                Unit::Ratio,
            )
            .from_zero()
            .show(nvme("disk_nvme_endurance_used_ratio"), "{{instance}} {{controller}} life used")
            .show(
                nvme("disk_nvme_available_spare_ratio")
                    .minus(&nvme("disk_nvme_available_spare_threshold_ratio")),
                "{{instance}} {{controller}} spare above its limit",
            ),
            Chart::states("Warnings", "What does a drive itself warn of?").word(1.0, "yes", "red").show(
                of("disk_nvme_critical_warning").max("instance, controller, warning").above(0.0),
                "{{instance}} {{controller}} {{warning}}",
            ),
            Chart::lines("Errors of NVMe drives", "Which drive lost data, or power?", Unit::Count)
                .bars()
                .from_zero()
                .show(a_day("disk_nvme_media_errors_total"), "{{instance}} {{controller}} media errors a day")
                .show(
                    a_day("disk_nvme_error_log_entries_total"),
                    "{{instance}} {{controller}} entries of its log a day",
                )
                .show(
                    a_day("disk_nvme_unsafe_shutdowns_total"),
                    "{{instance}} {{controller}} unsafe shutdowns a day",
                ),
            Chart::lines(
                "Traffic of NVMe drives",
                "How much do drives read and write?",
                Unit::BytesPerSecond,
            )
            .from_zero()
            .show(
                of("disk_nvme_read_bytes_total").rate().max("instance, controller"),
                "{{instance}} {{controller}} read",
            )
            .show(
                of("disk_nvme_written_bytes_total").rate().max("instance, controller"),
                "{{instance}} {{controller}} written",
            ),
            Chart::table(
                "Drives whose health cannot be read",
                "Of which drive is the health unknown?",
                Unit::Count,
            )
            .facts(nvme("disk_nvme_health_unreadable").above(0.0)),
            Chart::table("NVMe drives", "Which NVMe drives are there, and in which state?", Unit::Count)
                .width(8)
                .facts(of("disk_nvme_info").max("instance, controller, model, firmware, pci, state").top()),
        ],
    )
}
