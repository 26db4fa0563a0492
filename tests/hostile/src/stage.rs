//! Starts both programs as they are shipped and a genuine trainer, and measures them during an
//! attack.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use stepwatch_tests::daemon::{Daemon, command};
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{FakeLibc, Machine, Stack, StackOptions, exposition, http, poll_until};

use crate::attack::{Attack, Private, Target};
use crate::newcomer;
use crate::ways::Way;

pub(crate) const GENUINE: &str = "genuine";

/// Bounds of docs/security.md.
const ALERTER_MAX_KIB: u64 = 128 << 10;
const AGE_MAX: Duration = Duration::from_secs(2);
const NEWCOMER_MAX: Duration = Duration::from_secs(5);
const PAGE_MAX: Duration = Duration::from_secs(2);
/// The bound if nothing can be recorded: ten seconds until the alerter sends from memory, and a
/// loop that checks every second.
const UNRECORDED_PAGE_MAX: Duration = Duration::from_secs(14);

/// The number of steps before the attack, and the seconds by which the alerter's clock is then
/// advanced, so that the run is known for more than ten minutes.
const WARM: i64 = 300;
const KNOWN: i64 = 11 * 60;
/// The duration of the attack before the genuine run breaks.
const LASTS: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_mins(1);
/// The time limit for the alerter to read what an attack sends.
const READ_WITHIN: Duration = Duration::from_mins(5);
/// A loss that only the unreadable log has; it must not appear on a page.
const PRIVATE_LOSS: f64 = 321.098_765;
const NOBODY: u32 = 65_534;

#[derive(Debug)]
pub(crate) struct Measured {
    exporter_kib: u64,
    /// The share of a core during the attack.
    exporter_cpu: f64,
    alerter_kib: u64,
    /// The worst age of a genuine step when it was on the page.
    age: Duration,
    /// The time from the genuine NaN to the page that names its run.
    page_after: Duration,
    /// The time from the start of a third user's trainer until the alerter knows its run and its
    /// steps are on the page.
    newcomer_after: Duration,
    /// The time until its steps are on the page.
    newcomer_on_page_after: Duration,
    /// The number of records of the attacker's own exporter.
    records: u64,
    /// The number of other incidents that paged.
    others: usize,
    probes: u32,
    probes_failed: u32,
}

impl Measured {
    pub(crate) const HEADER: &str = "attack           exporter          alerter    oldest step  NaN to page  newcomer  other pages  probes failed";

    pub(crate) fn row(&self, attack: &Attack) -> String {
        format!(
            "{:<16} {:>4.1} MiB {:>3.0} % {:>6.1} MiB {:>10.2} s {:>10.2} s {:>7.2} s {:>12} {:>7} of {}",
            attack.name,
            self.exporter_kib as f64 / 1024.0,
            self.exporter_cpu * 100.0,
            self.alerter_kib as f64 / 1024.0,
            self.age.as_secs_f64(),
            self.page_after.as_secs_f64(),
            self.newcomer_after.as_secs_f64(),
            self.others,
            self.probes_failed,
            self.probes
        )
    }

    /// The bounds that do not hold.
    pub(crate) fn wrong(&self, attack: &Attack) -> Vec<String> {
        let page_max = if attack.unrecorded { UNRECORDED_PAGE_MAX } else { PAGE_MAX };
        let bounds = [
            (
                self.exporter_kib > attack.exporter_max_kib,
                format!("the exporter took {} KiB of {}", self.exporter_kib, attack.exporter_max_kib),
            ),
            (
                self.alerter_kib > ALERTER_MAX_KIB,
                format!("the alerter took {} KiB of {ALERTER_MAX_KIB}", self.alerter_kib),
            ),
            (
                self.exporter_cpu > attack.exporter_max_cpu,
                format!(
                    "the exporter took {:.2} of a core of {:.2}",
                    self.exporter_cpu, attack.exporter_max_cpu
                ),
            ),
            (self.age > AGE_MAX, format!("a genuine step was {:?} old, {AGE_MAX:?} at most", self.age)),
            (
                self.page_after > page_max,
                format!("a genuine page took {:?}, {page_max:?} at most", self.page_after),
            ),
            (
                self.newcomer_after > NEWCOMER_MAX,
                format!(
                    "a run that began was on the page after {:?} and at the alerter after {:?}, {NEWCOMER_MAX:?} at most",
                    self.newcomer_on_page_after, self.newcomer_after
                ),
            ),
            (
                self.records < attack.records,
                format!("the alerter read {} records of {}", self.records, attack.records),
            ),
            (
                self.others > attack.pages,
                format!("{} other incidents paged, {} at most", self.others, attack.pages),
            ),
            (self.probes_failed > 0, format!("{} of {} probes failed", self.probes_failed, self.probes)),
        ];
        bounds.into_iter().filter_map(|(broken, words)| broken.then_some(words)).collect()
    }
}

struct Stage {
    stack: Stack,
    genuine: Rank,
    step: i64,
    age: Duration,
    newcomer_after: Duration,
    newcomer_on_page_after: Duration,
    probes: u32,
    probes_failed: u32,
}

pub(crate) async fn measure(attack: &Attack) -> anyhow::Result<Measured> {
    let home = tempfile::Builder::new().prefix("hostile").tempdir()?;
    let dir = |name: &str, mode| -> anyhow::Result<_> {
        let dir = home.path().join(name);
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, Permissions::from_mode(mode))?;
        Ok(dir)
    };
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o755))?;
    let (theirs, targets) = (dir("theirs", 0o777)?, dir("targets", 0o777)?);
    let private =
        Private { log: dir("private", 0o700)?.join("private.jsonl"), loss: PRIVATE_LOSS.to_string() };
    std::fs::write(&private.log, format!("{{\"step\": 1, \"loss\": {PRIVATE_LOSS}}}\n").repeat(64))?;
    let machine = FakeLibc::new(home.path())?;
    let options = StackOptions {
        exporter: (attack.exporter)(&theirs),
        machine: Machine { args: (attack.args)(&theirs), ..Machine::default() },
        alerter: format!("sources:\n  - exporters: {{file_sd: [\"{}/*.json\"]}}\n", targets.display()),
        blind: true,
        libc: Some(machine.clone()),
        ..StackOptions::default()
    };
    let stack = Stack::start_with(options).await?;
    std::fs::set_permissions(stack.dir.path(), Permissions::from_mode(0o755))?;
    std::fs::write(
        targets.join("genuine.json"),
        json!([{"targets": [stack.exporter.addr.to_string()]}]).to_string(),
    )?;
    let genuine = stack.warm_run(GENUINE, WARM)?;
    let alerter = stack.alerter.url();
    let knows_it = async || knows(&alerter, GENUINE).await;
    poll_until("the alerter to know the genuine run", PATIENCE, knows_it).await?;
    machine.set_clock(KNOWN)?;

    let target = Target {
        exporter: stack.exporter.addr,
        ingest: stack.ingest(),
        alerter: stack.alerter.addr,
        database: stack.dir.path().join("alerter/alerter.db"),
        targets,
        dir: theirs,
        private,
        ahead: KNOWN,
    };
    let mut stage = Stage {
        stack,
        genuine,
        step: WARM,
        age: Duration::ZERO,
        newcomer_after: Duration::ZERO,
        newcomer_on_page_after: Duration::ZERO,
        probes: 0,
        probes_failed: 0,
    };
    let start = |name: &str, args: &[&str], user| act_as(home.path(), name, args, &target, user);
    let mut attacker = start(attack.name, &["act", attack.name], attack.neighbour.then_some(NOBODY))?;
    let newcomer = || start(newcomer::RUN, &["train"], Some(newcomer::USER));
    let (exporter_cpu, mut newcomer) = stage.endure(newcomer).await?;
    let page_after = stage.break_genuine().await?;
    stage.read_all(attack).await?;
    let measured = stage.measured(exporter_cpu, page_after).await?;
    if let Some(status) = attacker.ended().filter(|status| !status.success()) {
        anyhow::bail!("{} did not attack: {status}\n{}", attack.name, attacker.log().join("\n"));
    }
    let _ = attacker.kill().await;
    let _ = newcomer.kill().await;
    Ok(measured)
}

/// Starts this program again, possibly as another user.
fn act_as(
    home: &Path,
    name: &str,
    args: &[&str],
    target: &Target,
    user: Option<u32>,
) -> anyhow::Result<Daemon> {
    // A copy for other users, who may not be able to read the directory of this program.
    let program = home.join("hostile");
    if !program.exists() {
        std::fs::copy(std::env::current_exe()?, &program)?;
    }
    let mut act = command(&program);
    act.args(args).arg(serde_json::to_string(target)?);
    if let Some(user) = user {
        // The exporter's own user is trusted, so the attack would prove nothing.
        anyhow::ensure!(rustix::process::geteuid().is_root(), "{name} needs root: it acts as another user");
        act.uid(user).gid(user);
    }
    Daemon::spawn(name, &mut act)
}

impl Stage {
    /// Makes genuine steps during the attack, and starts a newcomer in the middle. Returns the
    /// exporter's share of a core, and the newcomer.
    async fn endure(&mut self, start: impl Fn() -> anyhow::Result<Daemon>) -> anyhow::Result<(f64, Daemon)> {
        let (began, used) = (Instant::now(), processor_time(&self.stack.exporter.daemon)?);
        self.steps_until(began + LASTS / 2).await?;
        let newcomer = start()?;
        let known = newcomer_is_known(self.stack.exporter.url(), self.stack.alerter.url());
        let (known, steps) = tokio::join!(known, self.steps_until(began + LASTS));
        steps?;
        (self.newcomer_on_page_after, self.newcomer_after) = known;
        let used = processor_time(&self.stack.exporter.daemon)?.saturating_sub(used);
        let exporter_cpu = used.as_secs_f64() / began.elapsed().as_secs_f64();
        Ok((exporter_cpu, newcomer))
    }

    /// Waits until the alerter has read the records of the attack.
    async fn read_all(&mut self, attack: &Attack) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.records().await < attack.records && began.elapsed() < READ_WITHIN {
            self.steps_until(Instant::now() + Duration::from_secs(1)).await?;
        }
        Ok(())
    }

    async fn steps_until(&mut self, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end {
            self.healthy_step().await?;
            self.probe().await;
        }
        Ok(())
    }

    /// Makes another step of the genuine runs, one per way of reporting, and waits until all are on
    /// the page.
    async fn healthy_step(&mut self) -> anyhow::Result<()> {
        self.step += 1;
        let (loss, grad_norm) = healthy(self.step);
        let sent = Instant::now();
        self.genuine.step(self.step, &[("loss", loss), ("grad_norm", grad_norm), ("lr", 3e-4)])?;
        let (exporter, step) = (&self.stack.exporter, self.step as f64);
        let url = exporter.url();
        let [events, telemetry] = Way::ALL.map(|way| way.report(&url, self.step, loss));
        tokio::try_join!(events, telemetry)?;
        poll_until("genuine steps on the page", PATIENCE, async || {
            let page = exporter.metrics().await.ok()?;
            let at = |run: &str| exposition::value(&page, "train_step", &[("run", run)]);
            let runs = [GENUINE].into_iter().chain(Way::ALL.map(Way::run));
            runs.map(at).all(|at| at.is_some_and(|at| at >= step)).then_some(())
        })
        .await?;
        self.age = self.age.max(sent.elapsed());
        Ok(())
    }

    /// Probes both programs, as a supervisor does.
    async fn probe(&mut self) {
        for url in [self.stack.exporter.url(), self.stack.alerter.url()] {
            self.probes += 1;
            if let Err(why) = http::probe(&format!("{url}/-/healthy")).await {
                self.probes_failed += 1;
                println!("    a probe failed: {why:#}");
            }
        }
    }

    /// The number of records that the alerter has read from the attacker's exporter.
    async fn records(&self) -> u64 {
        let Stack { exporter, alerter, .. } = &self.stack;
        let Ok(list) = http::get_json(&format!("{}/api/v1/sources", alerter.url())).await else { return 0 };
        let others = list["sources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|s| s["source"] != exporter.addr.to_string());
        others.filter_map(|source| source["records"].as_u64()).sum()
    }

    /// Makes the loss of the genuine run NaN; returns the time until a page names the run.
    async fn break_genuine(&mut self) -> anyhow::Result<Duration> {
        let names_it = |page: &stepwatch_fakes::Page| page.summary.contains(GENUINE);
        anyhow::ensure!(
            !self.stack.pagerduty.with(|pd| pd.pages.iter().any(names_it)),
            "the genuine run rang before it broke"
        );
        self.step += 1;
        let sent = Instant::now();
        self.genuine.step(self.step, &[("loss", f64::NAN), ("grad_norm", f64::NAN)])?;
        let waited = self.stack.pagerduty.wait_for(|pd| pd.pages.iter().any(names_it), PATIENCE).await;
        waited.map_err(|_| anyhow::anyhow!("no page names the genuine run {PATIENCE:?} after its NaN"))?;
        Ok(sent.elapsed())
    }

    async fn measured(&self, exporter_cpu: f64, page_after: Duration) -> anyhow::Result<Measured> {
        let Stack { exporter, alerter, pagerduty, .. } = &self.stack;
        let others = pagerduty.with(|pd| pd.pages.iter().filter(|p| !p.summary.contains(GENUINE)).count());
        Ok(Measured {
            exporter_kib: peak_kib(&exporter.daemon)?,
            exporter_cpu,
            alerter_kib: peak_kib(&alerter.daemon)?,
            age: self.age,
            page_after,
            newcomer_after: self.newcomer_after,
            newcomer_on_page_after: self.newcomer_on_page_after,
            records: self.records().await,
            others,
            probes: self.probes,
            probes_failed: self.probes_failed,
        })
    }
}

/// The time until the steps of a new run are on the page, and until the alerter knows the run; each
/// at most the patience.
async fn newcomer_is_known(exporter: String, alerter: String) -> (Duration, Duration) {
    let began = Instant::now();
    let stepped = async || {
        let page = http::get(&format!("{exporter}/metrics")).await.ok()?;
        exposition::value(&page, "train_step", &[("run", newcomer::RUN)])
    };
    let _ = poll_until("steps of a new run on the page", PATIENCE, stepped).await;
    let on_page = began.elapsed();
    let known = async || knows(&alerter, newcomer::RUN).await;
    let _ = poll_until("the new run at the alerter", PATIENCE, known).await;
    (on_page, began.elapsed())
}

async fn knows(alerter: &str, run: &str) -> Option<()> {
    let known = http::get_json(&format!("{alerter}/api/v1/runs")).await.ok()?;
    known["runs"].as_array()?.iter().any(|known| known["run"] == run).then_some(())
}

/// The peak memory of a program in KiB.
fn peak_kib(program: &Daemon) -> anyhow::Result<u64> {
    let pid = program.pid().context("it has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn processor_time(program: &Daemon) -> anyhow::Result<Duration> {
    let pid = program.pid().context("it has ended")?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name, which may contain anything, the state is the first field; user and system
    // time are the 12th and 13th.
    let fields = stat.rsplit_once(')').context("no name in stat")?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
