//! Tests of logs whose writer has exited.

use std::process::{Child, Command, Stdio};

use super::watch::LOOK_EVERY;
use super::*;

mod launchers;

impl Bench {
    /// A bench in the present, because the files' own times are real.
    fn today(path: &str) -> Self {
        Self { unix: crate::clock::unix_now(), ..Self::new(path) }
    }

    /// A process that has the file open, and writes what the test sends it.
    fn writer(&self, name: &str) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        Command::new("cat").stdin(Stdio::piped()).stdout(log).spawn().unwrap()
    }

    /// Starts a script, whose run the rule names after the script and its start time.
    fn script(&self, name: &str, job: Option<&str>) -> Child {
        use std::os::unix::process::CommandExt as _;
        fs::write(self.dir.path().join("train.py"), "while IFS= read -r l; do echo \"$l\"; done").unwrap();
        let log = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        let mut command = Command::new("sh");
        command.arg0("python3").arg("train.py").current_dir(self.dir.path());
        command.env_clear().envs(job.map(|id| ("SLURM_JOB_ID", id)));
        command.stdin(Stdio::piped()).stdout(log).spawn().unwrap()
    }

    /// The run, kind and step of the events that are published next.
    fn runs(&mut self) -> Vec<(String, Kind, Option<i64>)> {
        self.poll().into_iter().map(|e| (e.run.unwrap_or_default(), e.kind, e.step)).collect()
    }

    /// Runs a script that writes two steps until its end is published. Returns its run.
    fn start(&mut self, name: &str, job: Option<&str>) -> String {
        let before = fs::metadata(self.path(name)).map_or(0, |m| m.len()) as usize;
        let mut script = self.script(name, job);
        write(&mut script, &(step(1) + &step(2)));
        written(self, name, before + 2 * step(1).len());
        let published = self.runs();
        let run = published[0].0.clone();
        assert_eq!(published, [(run.clone(), Kind::Step, Some(1)), (run.clone(), Kind::Step, Some(2))]);
        self.look();
        end(script);
        assert_eq!(self.byes().len(), 1);
        for _ in 0..3 {
            assert_eq!(self.look(), []);
        }
        run
    }

    /// Waits for the next check of writers. Returns the events published until then.
    fn look(&mut self) -> Vec<Event> {
        self.wait(LOOK_EVERY);
        self.poll()
    }

    fn byes(&mut self) -> Vec<(Option<i64>, Option<String>)> {
        let events = self.look();
        events.into_iter().filter(|e| e.kind == Kind::Bye).map(|e| (e.code, e.text)).collect()
    }
}

fn write(child: &mut Child, text: &str) {
    child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Waits until the child has written that much.
fn written(b: &Bench, name: &str, len: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::metadata(b.path(name)).unwrap().len() < len as u64 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn a_log_that_simply_stops_has_ended_when_its_writer_is_gone() {
    let mut b = Bench::today("llama.log");
    let mut writer = b.writer("llama.log");
    write(&mut writer, &step(1));
    written(&b, "llama.log", step(1).len());
    assert_eq!(b.poll_steps(), [1]);
    assert_eq!(b.look(), [], "it is there, and silent: that may be a hang");
    b.wait(Duration::from_hours(2));
    assert_eq!(b.look(), []);
    end(writer);
    let events = b.look();
    assert_eq!(events.len(), 1);
    let bye = &events[0];
    assert_eq!((bye.kind, bye.run.as_deref(), bye.rank, bye.code), (Kind::Bye, Some("llama"), None, None));
    assert_eq!(bye.ts, Some(b.unix));
    assert_eq!(b.look(), [], "once");
    // Another process continues in the same file.
    let writer = b.writer("llama.log");
    b.steps("llama.log", 2..3);
    assert_eq!(b.poll_steps(), [2]);
    assert_eq!(b.byes(), []);
    end(writer);
    assert_eq!(b.byes(), [(None, None)]);
}

#[test]
fn a_second_start_into_a_log_that_has_ended_is_another_run() {
    for truncates in [false, true] {
        let mut b = Bench::today("llama.log");
        let first = b.start("llama.log", None);
        if truncates {
            fs::write(b.path("llama.log"), "").unwrap();
            b.poll();
        }
        let second = b.start("llama.log", None);
        assert_ne!(first, second);
        assert!(first.starts_with("train-2") && second.starts_with("train-2"), "{first} {second}");
    }
}

#[test]
fn a_second_start_that_is_over_before_it_is_seen_is_named_by_the_path() {
    let mut b = Bench::today("llama.log");
    let first = b.start("llama.log", None);
    b.steps("llama.log", 0..2);
    let published = b.runs();
    assert!(
        published.iter().all(|(run, kind, _)| run == "llama" && *kind == Kind::Step),
        "{first}: {published:?}"
    );
    assert_eq!(published.len(), 2);
}

#[test]
fn a_second_start_of_the_same_job_is_the_same_run() {
    let mut b = Bench::today("llama.log");
    let first = b.start("llama.log", Some("601"));
    assert_eq!(b.start("llama.log", Some("601")), first);
    assert_ne!(b.start("llama.log", Some("602")), first);
}

#[test]
fn a_second_start_between_two_looks_ends_the_first() {
    let mut b = Bench::today("llama.log");
    let mut first = b.script("llama.log", None);
    write(&mut first, &step(7));
    written(&b, "llama.log", step(7).len());
    let run = b.runs()[0].0.clone();
    end(first);
    let mut second = b.script("llama.log", None);
    write(&mut second, &step(0));
    written(&b, "llama.log", 2 * step(7).len());
    b.wait(owner::LOOK_EVERY);
    let mut published = b.runs();
    published.extend(b.runs());
    assert_eq!(published[0], (run.clone(), Kind::Bye, None));
    assert_eq!((published.len(), published[1].1, published[1].2), (2, Kind::Step, Some(0)));
    assert_ne!(published[1].0, run);
    end(second);
}

/// With the run that the file was found with, as discovery sets it.
#[test]
fn a_job_that_appends_to_the_log_of_one_that_was_killed_is_a_run_of_its_own() {
    for (job, gap) in [("602", false), ("602", true), ("601", false), ("601", true)] {
        let mut b = Bench::today("llama.log");
        let mut first = b.script("llama.log", Some("601"));
        let roots = Roots { procfs: "/proc".into(), ..Roots::default() };
        let run = crate::identity::script_named(&roots, first.id()).unwrap().run;
        b.config.found = Some(run.clone());
        write(&mut first, &step(7));
        written(&b, "llama.log", step(7).len());
        assert_eq!(b.runs(), [(run.clone(), Kind::Step, Some(7))]);
        write(&mut first, &step(8));
        written(&b, "llama.log", 2 * step(7).len());
        end(first);
        let mut told = if gap { b.runs() } else { Vec::new() };
        let mut second = b.script("llama.log", Some(job));
        write(&mut second, &(step(5) + &step(6)));
        written(&b, "llama.log", 4 * step(7).len());
        b.wait(owner::LOOK_EVERY);
        told.extend(b.runs());
        assert_eq!(told.remove(0), (run.clone(), Kind::Step, Some(8)), "job {job}, {gap}");
        if job == "601" {
            assert!(told.iter().all(|(of, kind, _)| *of == run && *kind == Kind::Step), "{told:?}");
        } else {
            assert_eq!(told.remove(0), (run.clone(), Kind::Bye, None), "{gap}");
            assert!(told[0].0 != run && told[0].0 == told[1].0, "{told:?}");
        }
        assert_eq!(told.iter().map(|(.., step)| *step).collect::<Vec<_>>(), [Some(5), Some(6)]);
        assert!(b.list.joined.lock().unwrap().is_empty(), "neither goes on under the name of the other");
        end(second);
    }
}

/// Text that the same process appends after its last step belongs to it.
#[test]
fn lines_behind_the_end_are_of_who_wrote_it() {
    let mut b = Bench::today("llama.log");
    let mut script = b.script("llama.log", None);
    let done = "[after training is done] datetime: 2026-11-21 06:00:00\n";
    write(&mut script, &(step(1) + done));
    written(&b, "llama.log", step(1).len() + done.len());
    let run = b.runs()[0].0.clone();
    b.look();
    write(&mut script, &step(2));
    written(&b, "llama.log", 2 * step(1).len() + done.len());
    end(script);
    assert_eq!(b.runs(), [(run, Kind::Step, Some(2))]);
}

#[test]
fn last_words_are_passed_on() {
    let mut b = Bench::today("llama.log");
    let writer = b.writer("llama.log");
    b.steps("llama.log", 1..2);
    b.append(
        "llama.log",
        "Traceback (most recent call last):\n  File \"t.py\", line 1\nRuntimeError: NCCL error: x",
    );
    assert_eq!(b.poll_steps(), [1]);
    assert_eq!(b.byes(), []);
    end(writer);
    assert_eq!(b.byes(), [(Some(1), Some("RuntimeError: NCCL error: x".into()))]);
}

#[test]
fn an_end_that_the_log_contains_is_the_end() {
    let mut b = Bench::today("llama.log");
    let writer = b.writer("llama.log");
    b.steps("llama.log", 1..2);
    b.append("llama.log", "[after training is done] datetime: 2026-11-21 06:00:00\n");
    let codes: Vec<_> = b.poll().into_iter().filter(|e| e.kind == Kind::Bye).map(|e| e.code).collect();
    assert_eq!(codes, [Some(0)]);
    b.look();
    end(writer);
    assert_eq!(b.byes(), []);
}

#[test]
fn nothing_is_said_of_writers_that_were_never_seen() {
    let mut b = Bench::today("llama.log");
    b.steps("llama.log", 1..3);
    b.poll();
    for _ in 0..50 {
        assert_eq!(b.byes(), []);
    }
}

#[test]
fn one_of_several_writers_is_not_all() {
    let mut b = Bench::today("*.log");
    let (first, second, third) = (b.writer("a.log"), b.writer("a.log"), b.writer("b.log"));
    b.config.run = Some("r".into());
    b.steps("a.log", 1..2);
    b.steps("b.log", 1..2);
    b.poll();
    b.look();
    end(first);
    assert_eq!(b.byes(), [], "another process has it open");
    end(second);
    assert_eq!(b.byes(), [], "another file of the run is being written");
    end(third);
    assert_eq!(b.byes().len(), 2);
}

#[test]
fn an_exporter_that_was_down_when_the_writer_went() {
    let mut b = Bench::today("llama.log");
    let writer = b.writer("llama.log");
    b.steps("llama.log", 1..3);
    b.poll();
    b.look();
    b.wait(Duration::from_secs(5));
    b.poll();
    b.kill();
    end(writer);
    assert_eq!(b.byes(), [(None, None)]);
    b.wait(Duration::from_secs(5));
    b.poll();
    b.kill();
    assert_eq!(b.byes(), [], "and said once");
}

#[test]
fn a_renamed_log_is_still_written() {
    let mut b = Bench::today("llama.log");
    let writer = b.writer("llama.log");
    b.steps("llama.log", 1..2);
    b.poll();
    b.look();
    fs::rename(b.path("llama.log"), b.path("llama.log.1")).unwrap();
    b.append("llama.log", "");
    assert_eq!(b.byes(), []);
    end(writer);
    assert_eq!(b.byes(), [(None, None)]);
}
