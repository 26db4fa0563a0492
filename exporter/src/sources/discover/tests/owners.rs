//! Tests of the rights with which files are read. Root starts processes of another user. Any other
//! user has only its own processes, and a file whose mode excludes it.

use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown};
use std::os::unix::process::CommandExt as _;

use super::super::files::MAX_FILES;
use super::*;
use crate::reach::Refusal;
use crate::source::{DROPPED, LAG, NOT_OWNER};
use crate::testing::is_root;

const SECRET: &str = "of nobody else";

/// The uid that trains.
fn other() -> u32 {
    if is_root() { 65_534 } else { rustix::process::geteuid().as_raw() }
}

impl Host {
    /// A host whose directories the other user may enter, with one that it owns.
    fn public() -> Self {
        let host = Self::new();
        for dir in ["", "work", "proc"] {
            fs::set_permissions(host.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
        }
        chown(host.path("work"), Some(other()), None).unwrap();
        host
    }

    /// A file that the other user may not read.
    fn private(&self, path: &str, text: &str) -> PathBuf {
        self.write(path, text);
        let mode = if is_root() { 0o600 } else { 0o000 };
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
        self.path(path)
    }

    /// A process of the other user in a control group that trains; it runs the script and waits.
    /// Its log prevents a search among the processes that run this test.
    fn trainer(&self, script: &str, variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec 2>>err.log; {script}; echo ready; read -r _")])
            .current_dir(self.path("work"));
        command.envs([("RANK", "0"), ("STEPWATCH_RUN", "theirs")]).envs(variables.iter().copied());
        if is_root() {
            command.uid(other()).gid(other());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Child(command.spawn().unwrap());
        let mut ready = [0];
        child.0.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let group = "sys/fs/cgroup/jobs/7/cgroup.procs";
        let before = fs::read_to_string(self.path(group)).unwrap_or_default();
        self.write(group, &format!("{before}{}\n", child.0.id()));
        child
    }

    fn real(&self) -> Discovery {
        self.with(r#"{"cgroups":["jobs/*"]}"#, Roots { procfs: "/proc".into(), ..self.roots() })
    }
}

impl Discovery {
    fn refused(&self, source: &str, kind: &str) -> Option<f64> {
        self.page().get(&DROPPED, &[source, kind, NOT_OWNER])
    }

    fn steps(&self) -> Vec<i64> {
        self.published().into_iter().filter(|e| e.kind == Kind::Step).filter_map(|e| e.step).collect()
    }

    fn publishes_secrets(&self) -> bool {
        self.published().iter().any(|e| format!("{e:?}").contains(SECRET) || e.step == Some(777))
    }
}

#[tokio::test]
async fn what_a_process_names_is_read_as_its_user_reads_it() {
    let host = Host::public();
    let error = format!(r#"{{"message":{{"message":"{SECRET}","extraInfo":{{"timestamp":"1"}}}}}}"#);
    let private = host.private("private/error.json", &error);
    let log = r#"exec 7>>metrics.jsonl; echo '{"step":5,"loss":1.5}' >&7"#;
    let thief = host.trainer(log, &[("TORCHELASTIC_ERROR_FILE", private.to_str().unwrap())]);
    let own = r#"echo '{"message":"it failed"}' > error.json"#;
    let _honest =
        host.trainer(own, &[("TORCHELASTIC_ERROR_FILE", host.path("work/error.json").to_str().unwrap())]);
    let mut d = host.real();
    d.look(Instant::now());
    d.look(Instant::now());
    assert_eq!(d.found(&host), ["work/err.log", "work/error.json", "work/metrics.jsonl"]);
    assert_eq!(d.refused("discover", "discover"), Some(1.0), "once");
    eventually(|| d.steps() == [5]).await;
    eventually(|| d.published().iter().any(|e| format!("{e:?}").contains("it failed"))).await;
    assert!(!d.publishes_secrets());
    let view = View::of_process(&Roots::default(), thief.0.id()).unwrap();
    let why = Refusal::from_error(&view.find(&private).unwrap_err());
    assert_eq!(why, Some(Refusal::NotReadable(other())));
}

#[tokio::test]
async fn a_log_that_is_swapped_for_a_link_is_not_read_behind_it() {
    let host = Host::public();
    let private = host.private("private/metrics.jsonl", "{\"step\":777,\"loss\":1}\n");
    let log = host.path("work/metrics.jsonl");
    let _trainer = host.trainer(r#"exec 7>>metrics.jsonl; echo '{"step":5,"loss":1.5}' >&7"#, &[]);
    let mut d = host.real();
    d.look(Instant::now());
    eventually(|| d.steps() == [5]).await;
    fs::remove_file(&log).unwrap();
    symlink(&private, &log).unwrap();
    lchown(&log, Some(other()), None).unwrap();
    let source = log.to_str().unwrap();
    eventually(|| d.refused(source, "tail") == Some(1.0)).await;
    assert!(!d.publishes_secrets());
    // Nor by a hard link to the file, if the kernel lets them create one.
    fs::remove_file(&log).unwrap();
    fs::hard_link(&private, &log).unwrap();
    d.look(Instant::now());
    fs::remove_file(&log).unwrap();
    fs::write(&log, "{\"step\":6,\"loss\":1.5}\n").unwrap();
    chown(&log, Some(other()), None).unwrap();
    eventually(|| d.steps() == [5, 6]).await;
    assert!(!d.publishes_secrets());
}

/// The process gives the name of the run, and the log belongs to another user.
#[tokio::test]
async fn a_log_that_a_process_shows_is_not_the_word_of_its_owner() {
    if !is_root() {
        return;
    }
    let ann = 4_000_001;
    for owner in [ann, 0] {
        let host = Host::public();
        host.write("old.jsonl", "{\"step\":777,\"loss\":NaN,\"timestamp\":1790000000}\n");
        let (log, link) = (host.path("old.jsonl"), host.path("work/x.jsonl"));
        fs::set_permissions(&log, fs::Permissions::from_mode(0o644)).unwrap();
        chown(&log, Some(owner), None).unwrap();
        symlink(&log, &link).unwrap();
        lchown(&link, Some(other()), None).unwrap();
        let named = [("TORCHELASTIC_ERROR_FILE", link.to_str().unwrap()), ("STEPWATCH_RUN", "of-ann")];
        let _thief = host.trainer("true", &named);
        let mut d = host.real();
        let step = Event::parse(br#"{"v":1,"k":"step","run":"of-ann","rank":0,"step":5,"m":{"loss":1}}"#);
        d.around.hub.publish(Origin::Http(Principal::User(ann)), step.unwrap());
        d.look(Instant::now());
        eventually(|| d.page().get(&LAG, &[link.to_str().unwrap(), "tail"]).is_some()).await;
        assert_eq!(d.steps(), [5], "owned by uid {owner}");
    }
}

/// A process names a file by the path inside its container, where another file has that name than
/// on the host.
#[tokio::test]
async fn an_error_file_of_a_container_is_looked_for_in_it() {
    let host = Host::new();
    host.write("host/error.json", &format!(r#"{{"message":"{SECRET}"}}"#));
    let named = host.path("host/error.json");
    let variable = format!("TORCHELASTIC_ERROR_FILE={}", named.display());
    host.process(100, 1, &["RANK=3", "STEPWATCH_RUN=r", &variable], &[(5, "/dev/nvidia0")]);
    fs::create_dir_all(host.path("proc/100/ns")).unwrap();
    symlink("mnt:[1]", host.path("proc/100/ns/mnt")).unwrap();
    fs::create_dir_all(host.path("proc/100/root")).unwrap();
    let mut d = host.discovery();
    d.look(Instant::now());
    let within = format!("proc/100/root{}", named.display());
    assert_eq!(d.found(&host), std::slice::from_ref(&within));
    host.write(&within, r#"{"message":"of the container"}"#);
    eventually(|| d.published().iter().any(|e| format!("{e:?}").contains("of the container"))).await;
    assert!(!d.publishes_secrets());
}

#[tokio::test]
async fn a_user_with_twenty_thousand_logs_leaves_room_for_another() {
    let host = Host::public();
    fs::create_dir_all(host.path("logs")).unwrap();
    for n in 0..20_000 {
        fs::write(host.path(&format!("work/{n}.jsonl")), "{}\n").unwrap();
    }
    host.process(100, 1, &["RANK=0", "STEPWATCH_RUN=flood"], &[(5, "/dev/nvidia0")]);
    let mut d = host.discovery();
    d.look(Instant::now());
    assert_eq!(d.files.len(), MAX_FILES);
    host.write("logs/metrics.jsonl", "{\"step\":5,\"loss\":1.5}\n");
    host.process(
        200,
        1,
        &["RANK=0", "STEPWATCH_RUN=genuine"],
        &[(5, "/dev/nvidia0"), (6, "logs/metrics.jsonl")],
    );
    let uid = rustix::process::geteuid().as_raw() + 4711;
    let status = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t7\t7\t7\t7\nGroups:\t\n");
    // The program is a copy, because no process may write to the real one.
    fs::remove_file(host.path("proc/200/status")).unwrap();
    fs::write(host.path("proc/200/status"), status).unwrap();
    fs::set_permissions(host.path("logs"), fs::Permissions::from_mode(0o755)).unwrap();
    d.look(Instant::now());
    assert_eq!(d.files.len(), MAX_FILES);
    assert!(d.found(&host).contains(&"logs/metrics.jsonl".to_owned()));
    eventually(|| d.steps() == [5]).await;
    assert!(d.page().get(&DROPPED, &["discover", "discover", "too_many_files"]).unwrap() > 19_000.0);
}
