//! The bandwidth of each RDMA port to itself, by `ib_write_bw` of perftest: it covers the adapter
//! and its PCIe link, and no cable. Pairs of nodes are measured by
//! `deploy/slurm/stepwatch-pairs.sh` and judged by `stepwatch-alerter fabric report`.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::time::Duration;

use tokio::time::sleep;

use super::bench::{Bench, ended};
use super::reading::{Reading, number};
use super::runner::{Output, Running};
use crate::roots::{self, Roots};

const TOOL: &str = "ib_write_bw";
/// The most ports that are tested.
const MAX_PORTS: usize = 32;
/// The client has no way to wait for its server, so it tries again.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// The size and the number of messages: ten gigabytes.
const SIZE: &str = "1048576";
const COUNT: &str = "10000";

/// A port that is up: the names of its device and of itself.
type Port = (String, String);

pub(super) async fn test(bench: &mut Bench<'_>) -> Reading {
    let ports = ports(bench.roots);
    if ports.is_empty() {
        return Reading::not_run("no port of InfiniBand or RoCE is active");
    }
    if let Err(why) = bench.runner.find(TOOL) {
        return Reading::not_run(why);
    }
    let mut all = Reading::default();
    for port in ports {
        match loopback(bench, &port).await {
            Ok(output) => all.absorb(read(&output, &format!("{}/{}", port.0, port.1))),
            Err(reading) => all.absorb(reading),
        }
    }
    all
}

/// The active ports that know writes of perftest, which EFA does not.
fn ports(roots: &Roots) -> Vec<Port> {
    let devices = roots.sys("class/infiniband");
    let mut found = Vec::new();
    for device in roots::list(&devices).unwrap_or_default() {
        let dir = devices.join(&device).join("ports");
        for port in roots::list(&dir).unwrap_or_default() {
            let value = |name: &str| roots::read(&dir.join(&port).join(name)).unwrap_or_default();
            let known = ["InfiniBand", "Ethernet"].contains(&value("link_layer").as_str());
            if known && value("state").starts_with("4:") {
                found.push((device.clone(), port));
            }
        }
    }
    found.truncate(MAX_PORTS);
    found
}

async fn loopback(bench: &mut Bench<'_>, (device, port): &Port) -> Result<Output, Reading> {
    let program = bench.runner.find(TOOL).map_err(Reading::not_run)?;
    // The kernel chooses a port that is free.
    let tcp = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let tcp = tcp.map_err(|error| Reading::unknown(format!("{TOOL}: {error}")))?.port().to_string();
    let (device, port, tcp) = (device.as_str(), port.as_str(), tcp.as_str());
    let server = ["-d", device, "-i", port, "-p", tcp, "-s", SIZE, "-n", COUNT, "-F", "--report_gbits"];
    let server: Vec<&OsStr> = server.into_iter().map(OsStr::new).collect();
    let client: Vec<&OsStr> = server.iter().copied().chain([OsStr::new("localhost")]).collect();
    let running: Running = bench
        .runner
        .start(&program, &server, None)
        .map_err(|error| Reading::unknown(format!("{TOOL} does not start: {error}")))?;
    let mut last = Ok(Output::default());
    for _ in 0..TRIES {
        last = ended(TOOL, bench.runner.run(&program, &client, None).await);
        if !last.as_ref().is_ok_and(|output| output.failure.is_some()) {
            break;
        }
        sleep(PAUSE).await;
    }
    bench.runner.stop(running).await;
    last
}

/// Reads the table: the unit stands in its heading, and the mean in the fourth column.
fn read(output: &Output, port: &str) -> Reading {
    let mut unit = None;
    let mut mean = None;
    for line in output.stdout.lines() {
        if line.trim_start().starts_with("#bytes") {
            unit = unit_of(line);
            continue;
        }
        let Some(unit) = unit else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [bytes, count, _peak, average, _rate] = words[..]
            && bytes.parse::<u64>().is_ok()
            && count.parse::<u64>().is_ok()
        {
            mean = number(average, unit);
        }
    }
    let mut reading = Reading::default();
    match mean.filter(|_| output.failure.is_none()) {
        Some(mean) => reading.measure("rdma_loopback", port, mean),
        None => return Reading::unknown(format!("{TOOL} gave no result of {port}: {}", output.why())),
    }
    reading
}

/// Bytes of one unit of the heading. What perftest calls MB are MiB.
fn unit_of(heading: &str) -> Option<f64> {
    let (_, rest) = heading.split_once("BW average[")?;
    match rest.split_once(']')?.0 {
        "Gb/sec" => Some(1e9 / 8.0),
        "MB/sec" | "MiB/sec" => Some(1_048_576.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::says;
    use super::*;

    const CAPTURED: &str = include_str!("../../../../tests/data/active/ib_write_bw_loopback.txt");

    fn said(stdout: &str, failure: Option<&str>) -> String {
        let failure = failure.map(str::to_owned);
        says(read(&Output { stdout: stdout.to_owned(), failure, ..Output::default() }, "mlx5_0/1"))
    }

    #[test]
    fn captured_results_and_damaged_ones() {
        let output = Output { stdout: CAPTURED.to_owned(), ..Output::default() };
        let value = read(&output, "mlx5_0/1").measurements[0].bytes_per_second;
        assert!((value - 24_056.72 * 1_048_576.0).abs() < 1.0, "{value}");
        assert_eq!(said(CAPTURED, None), "measured rdma_loopback is 25.2 GB/s\n");
        let gigabits = CAPTURED.replace("[MB/sec]", "[Gb/sec]").replace("24056.72", "392.80");
        assert_eq!(said(&gigabits, None), "measured rdma_loopback is 49.1 GB/s\n");
        for text in [
            CAPTURED.replace("24056.72", "24056,72"),
            CAPTURED.replace("[MB/sec]", "[furlongs]"),
            CAPTURED.replace("24056.72", "0.00"),
            CAPTURED.replace("\t\t   0.003007", ""),
            String::new(),
        ] {
            assert!(
                said(&text, None).starts_with("unknown ib_write_bw gave no result of mlx5_0/1"),
                "{text}"
            );
        }
        assert_eq!(
            said("Couldn't connect to localhost:18515\n", Some("exit status: 1")),
            "unknown ib_write_bw gave no result of mlx5_0/1: exit status: 1: Couldn't connect to localhost:18515\n"
        );
    }

    #[test]
    fn ports_that_can_be_tested() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        assert!(ports(&roots).is_empty());
        for (device, port, layer, state) in [
            ("mlx5_0", "1", "InfiniBand", "4: ACTIVE"),
            ("mlx5_1", "1", "Ethernet", "4: ACTIVE"),
            ("mlx5_2", "1", "InfiniBand", "1: DOWN"),
            ("efa_0", "1", "Unspecified", "4: ACTIVE"),
        ] {
            let at = dir.path().join("class/infiniband").join(device).join("ports").join(port);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("link_layer"), format!("{layer}\n")).unwrap();
            std::fs::write(at.join("state"), format!("{state}\n")).unwrap();
        }
        let names: Vec<String> = ports(&roots).into_iter().map(|(device, _)| device).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1"]);
    }
}
