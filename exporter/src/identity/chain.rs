//! A process and its ancestors, as `/proc` shows them.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use stepwatch_wire::run_name::{self, By, Named, Process};

use crate::processes;
use crate::roots::{self, Roots};

/// The most processes of a chain; the Python client looks at as many.
const MAX_GENERATIONS: usize = 8;
/// The most words of a command line.
const MAX_WORDS: usize = 256;
/// The most variables of an environment that are looked at.
const MAX_VARIABLES: usize = 4096;
/// The most bytes of a variable that are kept. The rule ignores values of more than 1,024
/// characters.
const MAX_VALUE_BYTES: usize = 8192;
/// The helper in which `torch._inductor` compiles. It writes to its trainer's output.
const COMPILER: &str = "_inductor/compile_worker";
/// Clock ticks of `/proc/PID/stat` in a second. It is a constant of the kernel's interface on every
/// architecture that trains.
const TICKS_PER_SECOND: f64 = 100.0;

/// The process, its parent and so on; empty if the process may not be inspected.
pub(crate) fn chain(roots: &Roots, pid: u32) -> Vec<Process> {
    chain_until(roots, pid, None)
}

/// As [`chain`]; empty too if it is not read before the deadline.
pub(crate) fn chain_until(roots: &Roots, pid: u32, deadline: Option<Instant>) -> Vec<Process> {
    let Ok(own) = processes::environ(roots, pid) else { return Vec::new() };
    let boot = roots::read(&roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
    let booted = booted(roots).unwrap_or_default();
    let mut environ = Some(own);
    let (mut found, mut at) = (Vec::new(), pid);
    while at > 0 && found.len() < MAX_GENERATIONS {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Vec::new();
        }
        let Some((parent, ticks)) = parent_and_start(roots, at) else { break };
        let dir = roots.proc(at.to_string());
        let namespace = fs::read_link(dir.join("ns/pid")).unwrap_or_default();
        let Some(bytes) = environ.take().or_else(|| in_time(processes::environ(roots, at))) else {
            return Vec::new();
        };
        let Some(cmdline) = in_time(processes::cmdline(roots, at)) else { return Vec::new() };
        found.push(Process {
            env: variables(&bytes),
            argv: words(&cmdline),
            started: booted + ticks as f64 / TICKS_PER_SECOND,
            mark: format!("{boot}/{}/{}/{ticks}", namespace.display(), inner_pid(roots, at)),
        });
        at = parent;
    }
    found
}

/// Returns what was read, nothing if it may not be read, and `None` if reading takes too long: a
/// part of a chain would name another run.
fn in_time(read: std::io::Result<Vec<u8>>) -> Option<Vec<u8>> {
    match read {
        Err(err) if err.kind() == std::io::ErrorKind::TimedOut => None,
        read => Some(read.unwrap_or_default()),
    }
}

/// The rule's answer for a process; `None` if it may not be inspected.
pub(crate) fn named(roots: &Roots, pid: u32) -> Option<Named> {
    let chain = chain(roots, pid);
    (!chain.is_empty()).then(|| run_name::name(&chain))
}

/// As [`named`], but `None` if the run is known only from a program that runs no script: a shell,
/// or a collector of logs or metrics.
pub(crate) fn script_named(roots: &Roots, pid: u32) -> Option<Named> {
    let chain = chain(roots, pid);
    let runs_script = |p: &Process| {
        run_name::is_wrapper(&p.argv)
            || run_name::is_python(&p.argv) && run_name::script_of(&p.argv).is_some()
    };
    let compiles = |p: &Process| p.argv.iter().any(|word| word.contains(COMPILER));
    // A compiler belongs to the worker that started it.
    let workers = chain.iter().rposition(compiles).map_or(0, |at| at + 1);
    // Some trainers write through a helper program, which is their child.
    let first = (workers..chain.len().min(workers + 2)).find(|at| runs_script(&chain[*at]));
    let named = run_name::name(chain.first().map(|_| &chain[first.unwrap_or(0)..])?);
    (named.by != By::Script || first.is_some()).then_some(named)
}

/// The pids of the parent, its parent and so on.
pub(crate) fn ancestors(roots: &Roots, pid: u32) -> Vec<u32> {
    let parent = |at: &u32| parent_and_start(roots, *at).map(|(parent, _)| parent).filter(|p| *p > 0);
    std::iter::successors(parent(&pid), parent).take(MAX_GENERATIONS).collect()
}

/// The Unix time in seconds when the process started.
pub(crate) fn started(roots: &Roots, pid: u32) -> Option<f64> {
    let (_, ticks) = parent_and_start(roots, pid)?;
    Some(booted(roots)? + ticks as f64 / TICKS_PER_SECOND)
}

fn variables(environ: &[u8]) -> BTreeMap<String, String> {
    let lines = environ.split(|b| *b == 0).take(MAX_VARIABLES);
    let pairs = lines.filter_map(|v| core::str::from_utf8(v).ok()?.split_once('='));
    let asked = pairs.filter(|(key, value)| value.len() <= MAX_VALUE_BYTES && run_name::is_asked(key));
    asked.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn words(cmdline: &[u8]) -> Vec<String> {
    let cmdline = cmdline.strip_suffix(&[0]).unwrap_or(cmdline);
    if cmdline.is_empty() {
        return Vec::new();
    }
    let words = cmdline.split(|b| *b == 0).take(MAX_WORDS);
    words.map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

/// The parent and the start time in ticks: fields 4 and 22 of `/proc/PID/stat`. The command before
/// them may contain anything, brackets too.
fn parent_and_start(roots: &Roots, pid: u32) -> Option<(u32, u64)> {
    let stat = roots::read(&roots.proc(pid.to_string()).join("stat"))?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

/// The pid of the process in its own namespace, which differs from `pid` in a container.
fn inner_pid(roots: &Roots, pid: u32) -> u32 {
    let status = roots::read(&roots.proc(pid.to_string()).join("status")).unwrap_or_default();
    let pids = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
    pids.and_then(|p| p.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

fn booted(roots: &Roots) -> Option<f64> {
    let stat = roots::read(&roots.proc("stat"))?;
    stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_script_or_none() {
        let roots = Roots::default();
        let chain = chain(&roots, std::process::id());
        assert!(chain[0].started > 1.0e9 && !chain[0].argv.is_empty() && chain.len() > 1, "{chain:?}");
        let named = named(&roots, std::process::id()).unwrap();
        assert_eq!(Some(named), self::named(&roots, std::process::id()), "the same whenever it is asked");
        assert_eq!(super::named(&roots, u32::MAX), None);
        let asked = |p: &Process| p.env.keys().all(|k| run_name::is_asked(k));
        assert!(chain.iter().all(asked), "nothing else of an environment is kept");
    }

    #[test]
    fn an_environment_without_end_takes_little() {
        let environ = [b"WANDB_NAME=".as_slice(), &vec![b'x'; 1 << 20], b"\0RANK=7\0"].concat();
        assert_eq!(variables(&environ), [("RANK".to_owned(), "7".to_owned())].into());
        let environ = [b"a=\0".repeat(MAX_VARIABLES), b"RANK=7\0".to_vec()].concat();
        assert_eq!(variables(&environ), BTreeMap::new());
    }

    #[test]
    fn words_of_a_command_line() {
        assert_eq!(words(b"python\0train.py\0\0"), ["python", "train.py", ""]);
        assert_eq!(words(b""), [""; 0]);
    }
}
