//! Tests of logs that several processes have open, one of which started another.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;

use super::*;

/// A trainer that writes its pid to a file and repeats its input.
const TRAINER: &str = "echo $$ > pid; while IFS= read -r l; do echo \"$l\"; done";

impl Bench {
    /// Starts `main.py`. The `python3` beside it is a link to `sh`.
    fn starts(&self, main: &str, others: &[(&str, &str)], log: Stdio) -> Child {
        let dir = self.dir.path();
        drop(symlink("/bin/sh", dir.join("python3")));
        for (name, text) in others.iter().chain(&[("main.py", main)]) {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for file in ["pid", "go"] {
            drop(fs::remove_file(dir.join(file)));
        }
        let mut command = Command::new("sh");
        command.arg0("python3").arg("main.py").current_dir(dir).env_clear();
        command.stdin(Stdio::piped()).stdout(log).spawn().unwrap()
    }

    fn log(&self) -> Stdio {
        OpenOptions::new().create(true).append(true).open(self.path("llama.log")).unwrap().into()
    }

    /// The line that one of these processes writes into a file, once it exists.
    fn told(&self, file: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let text = fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
            if let Some(line) = text.strip_suffix('\n') {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    /// The rule's name for the run of the process that wrote its pid.
    fn trainers_run(&self) -> String {
        let pid = self.told("pid").parse().unwrap();
        crate::identity::script_named(&Roots::default(), pid).unwrap().run
    }

    fn steps_of(&mut self, trainer: &mut Child, at: i64) -> Vec<(String, Kind, Option<i64>)> {
        let len = fs::metadata(self.path("llama.log")).unwrap().len() as usize + step(at).len();
        write(trainer, &step(at));
        written(self, "llama.log", len);
        self.runs()
    }
}

/// accelerate, and the command lines of many trainers, start them like this.
#[test]
fn a_launcher_gives_way_to_the_trainer_that_it_started() {
    let mut b = Bench::today("llama.log");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut child = b.starts("./python3 train.py; echo over", &[("train.py", TRAINER)], b.log());
        let run = b.trainers_run();
        for at in 3..5 {
            assert_eq!(b.steps_of(&mut child, at), [(run.clone(), Kind::Step, Some(at))]);
            assert!(b.look().is_empty());
        }
        end(child);
        assert_eq!(b.byes().len(), 1);
        seen.push(run);
    }
    assert!(seen[0].starts_with("train-") && seen[0] != seen[1], "{seen:?}: two trainings are two runs");
}

/// The launcher is seen before it starts the trainer, directly and through a pipe.
#[test]
fn a_launcher_that_was_seen_alone_gives_way_too() {
    for pipe in [false, true] {
        let mut b = Bench::today("llama.log");
        let mut tee =
            pipe.then(|| Command::new("cat").stdin(Stdio::piped()).stdout(b.log()).spawn().unwrap());
        let log = tee.as_mut().map_or_else(|| b.log(), |tee| tee.stdin.take().unwrap().into());
        let launch = "while [ -e main.py ] && ! [ -e go ]; do /bin/sleep 0.05; done; ./python3 train.py";
        let mut child = b.starts(launch, &[("train.py", TRAINER)], log);
        assert!(b.look().is_empty() && b.look().is_empty());
        fs::write(b.dir.path().join("go"), "").unwrap();
        let run = b.trainers_run();
        b.look();
        assert_eq!(b.steps_of(&mut child, 3), [(run, Kind::Step, Some(3))], "pipe {pipe}");
        end(child);
        if let Some(tee) = tee {
            end(tee);
        }
    }
}

#[test]
fn what_a_trainer_starts_does_not_take_its_log_over() {
    let worker = "torch/_inductor/compile_worker/__main__.py";
    for (first, then) in [("", "eval.py"), (worker, "eval.py")] {
        let mut b = Bench::today("llama.log");
        let wait = "while [ -e main.py ] && ! [ -e done ]; do /bin/sleep 0.05; done";
        // A worker starts the compiler of the device like this.
        let compiles = format!("/bin/sh -c 'echo > compiles; {wait}'; echo over");
        let start = if first.is_empty() { String::new() } else { format!("./python3 {first} & ") };
        let main = format!(
            "echo $$ > pid; {start} IFS= read -r l; echo \"$l\"; IFS= read -r l; ./python3 {then} & echo \"$l\"; \
             while IFS= read -r l; do echo \"$l\"; done"
        );
        let mut child = b.starts(&main, &[(worker, &compiles), (then, wait)], b.log());
        let run = b.trainers_run();
        if !first.is_empty() {
            b.told("compiles");
        }
        for at in 3..6 {
            assert_eq!(b.steps_of(&mut child, at), [(run.clone(), Kind::Step, Some(at))], "{first}");
            assert!(b.look().is_empty());
        }
        fs::write(b.dir.path().join("done"), "").unwrap();
        end(child);
    }
}

#[test]
fn who_writes_next_does_not_go_on_with_the_run_of_several_others() {
    let mut b = Bench::today("llama.log");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut one = b.starts(TRAINER, &[], b.log());
        // The process has read its script before the test rewrites it.
        b.told("pid");
        let two = b.starts(TRAINER, &[], b.log());
        for at in 3..5 {
            seen.push(b.steps_of(&mut one, at).pop().unwrap().0);
            b.look();
        }
        end(one);
        end(two);
        b.look();
    }
    assert!(seen.iter().all(|run| run.starts_with("llama.")), "{seen:?}");
    assert_eq!((&seen[0], &seen[2]), (&seen[1], &seen[3]));
    assert_ne!(seen[0], seen[2]);
}
