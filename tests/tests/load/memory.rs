//! What a process has resident.

pub(crate) fn resident(pid: u32) -> f64 {
    field(pid, "VmRSS:")
}

/// In MiB.
fn field(pid: u32, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}
