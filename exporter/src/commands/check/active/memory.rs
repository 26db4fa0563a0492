//! The bandwidth of host memory: threads of this process copy buffers of their own, and the bytes
//! that they copied in a second are added up. It is no STREAM: each byte is read and written once,
//! and the value is good for comparing nodes of one kind only.

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use super::reading::Reading;
use crate::roots::{self, Roots};

/// Each thread copies from one buffer of this size to another. All together do not fit into the
/// caches of a processor.
const BUFFER: usize = 16 << 20;
const MAX_THREADS: usize = 32;
/// The threads need this long to fill their buffers.
const WARM_UP: Duration = Duration::from_millis(400);
const MEASURED: Duration = Duration::from_millis(300);
/// The best round counts, because anything else that runs can only slow one down.
const ROUNDS: usize = 3;
/// This many times the buffers must be free.
const ROOM: u64 = 2;

pub(super) fn test(roots: &Roots) -> Reading {
    let mine = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = mine.min(MAX_THREADS);
    // Fewer threads copy less, which is no fault of the memory.
    if let Some(all) = online(roots).filter(|all| threads < MAX_THREADS.min(*all)) {
        return Reading::not_run(format!("only {mine} of {all} processors may be used"));
    }
    let needed = ROOM * (threads * 2 * BUFFER) as u64;
    if let Some(free) = free(roots).filter(|free| *free < needed) {
        let (needed, free) = (needed >> 20, free >> 20);
        return Reading::not_run(format!("{needed} MiB of free memory are needed, and there are {free} MiB"));
    }
    let best = (0..ROUNDS).filter_map(|_| copied(threads, BUFFER, MEASURED)).reduce(f64::max);
    let mut reading = Reading::default();
    match best {
        Some(best) => reading.measure("memory_copy", "", best),
        None => return Reading::unknown("no thread could be started"),
    }
    reading
}

/// The number of processors, from ranges such as `0-95,112`.
fn online(roots: &Roots) -> Option<usize> {
    let text = roots::read(&roots.sys("devices/system/cpu/online"))?;
    let count = |range: &str| -> Option<usize> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.trim().parse::<usize>().ok()?.checked_sub(first.trim().parse().ok()?)?.checked_add(1)
    };
    text.split(',').map(count).sum()
}

/// The bytes that this process may still use: those of the node, or of its control group.
fn free(roots: &Roots) -> Option<u64> {
    let meminfo = roots::read(&roots.proc("meminfo")).unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let number = |name: &str| roots::read(&roots.sys("fs/cgroup").join(name))?.parse::<u64>().ok();
    // Only within a container is this the group of the process; there is none at the top.
    let group = number("memory.max").map(|most| most.saturating_sub(number("memory.current").unwrap_or(0)));
    available.map(|kib| kib.saturating_mul(1024)).into_iter().chain(group).min()
}

/// The bytes that `threads` copy in a second; `None` if one cannot be started.
fn copied(threads: usize, bytes: usize, time: Duration) -> Option<f64> {
    let start = Instant::now() + WARM_UP;
    std::thread::scope(|scope| {
        let worker = || {
            std::thread::Builder::new()
                .name("copy".into())
                .spawn_scoped(scope, move || copy(bytes, start, time))
                .ok()
        };
        let workers: Vec<_> = (0..threads).map_while(|_| worker()).collect();
        let complete = workers.len() == threads;
        let rate: f64 = workers.into_iter().filter_map(|worker| worker.join().ok()).sum();
        (complete && rate > 0.0).then_some(rate)
    })
}

fn copy(bytes: usize, start: Instant, time: Duration) -> f64 {
    // The thread that copies fills its buffers, so that they are near its processor.
    let source = vec![1_u8; bytes];
    let mut target = vec![2_u8; bytes];
    while Instant::now() < start {
        spin_loop();
    }
    let began = Instant::now();
    let mut copies = 0_u32;
    while began.elapsed() < time {
        target.copy_from_slice(black_box(&source));
        let _ = black_box(&mut target);
        copies += 1;
    }
    f64::from(copies) * bytes as f64 / began.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_copies() {
        let rate = copied(1, 1 << 20, Duration::from_millis(20)).unwrap();
        assert!(rate > 1e8 && rate < 1e13, "{rate}");
    }

    #[test]
    fn a_part_of_the_processors_says_nothing_of_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), procfs: dir.path().into(), ..Roots::default() };
        assert_eq!(online(&roots), None);
        std::fs::create_dir_all(dir.path().join("devices/system/cpu")).unwrap();
        let file = dir.path().join("devices/system/cpu/online");
        for (text, count) in
            [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-95,112,120-121\n", Some(99)), ("3-1\n", None)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(online(&roots), count, "{text}");
        }
        std::fs::write(&file, "0-1048575\n").unwrap();
        let mine = std::thread::available_parallelism().unwrap().get();
        let reading = test(&roots);
        assert_eq!(reading.measurements.is_empty(), mine < MAX_THREADS);
    }

    #[test]
    fn a_node_without_free_memory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), procfs: dir.path().into(), ..Roots::default() };
        assert_eq!(free(&roots), None);
        std::fs::write(dir.path().join("meminfo"), "MemTotal: 9 kB\nMemAvailable:   2048 kB\n").unwrap();
        assert_eq!(free(&roots), Some(2 << 20));
        let group = dir.path().join("fs/cgroup");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(free(&roots), Some(2 << 20));
        std::fs::write(group.join("memory.max"), "1048576\n").unwrap();
        std::fs::write(group.join("memory.current"), "48576\n").unwrap();
        assert_eq!(free(&roots), Some(1_000_000));
        let mut reading = test(&roots);
        reading.judge(&crate::node_tests::ActiveConfig::default());
        assert_eq!(reading.verdict(), super::super::Verdict::NotRun);
        assert!(reading.measurements.is_empty());
    }
}
