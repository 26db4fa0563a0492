//! A real process is killed with SIGKILL before and after a chart is shown: after a restart,
//! readers see one.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use tokio::process::Command;

use super::*;
use crate::store::tests::reopen;

const CHILD: &str = "STEPWATCH_TEST_PICTURES_CHILD";
const POINTS: [&str; 2] = ["pictures.before_show", "pictures.after_show"];
const PATIENCE: Duration = Duration::from_mins(1);
const NOW: Ts = Ts(1_795_227_405_000);

/// The child process; it does nothing unless the test below starts it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(show_everything(Path::new(&dir)));
}

/// Shows a chart for the incident, and another one for its end.
async fn show_everything(dir: &Path) {
    let store = reopen(&dir.join("alerter.db")).await;
    let receivers = receivers(dir, &std::fs::read_to_string(dir.join("slack")).unwrap());
    let curves = Arc::new(Fixed::default());
    let metrics = PictureMetrics::default();
    let charts = Charts::new(store.clone(), Arc::<Fixed>::clone(&curves), metrics);
    let mut shower = gallery::Shower::for_tests(charts, Arc::new(|| NOW));
    for (seq, action, state) in [(1, Action::Trigger, State::Open), (2, Action::Resolve, State::Resolved)] {
        if !store.deliveries(ID).await.unwrap().iter().any(|d| d.seq == seq) {
            commit(&store, incident(ID, state), seq, action, NOW).await;
            deliver(&store, &receivers, NOW).await;
        }
        keeper::take(&store, &*curves, NOW).await.unwrap();
        shower.look(&receivers).await;
    }
}

async fn run_child(dir: &Path, crash_point: Option<&str>) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "pictures::tests::kill::child", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, dir).kill_on_drop(true).stdout(std::process::Stdio::null());
    if let Some(point) = crash_point {
        command.env("STEPWATCH_CRASH_POINT", point);
    }
    tokio::time::timeout(PATIENCE, command.status()).await.expect("the child ends in time").unwrap()
}

#[tokio::test]
async fn killed_anywhere_readers_see_one_picture() {
    for point in POINTS {
        for nth in 1..=2 {
            let dir = tempfile::tempdir().unwrap();
            let fake = Fake::start_with(with_files()).await;
            std::fs::write(dir.path().join("token"), Service::TOKEN).unwrap();
            std::fs::write(dir.path().join("slack"), fake.url()).unwrap();
            let point = format!("{point}:{nth}");
            let status = run_child(dir.path(), Some(&point)).await;
            assert_eq!(status.signal(), Some(9), "{point}: {status}");
            let status = run_child(dir.path(), None).await;
            assert!(status.success(), "{point}: {status}");
            assert_eq!(shown(&fake).len(), 1, "{point}");
            assert_eq!(fake.with(|s| s.shown_files().count()), 1, "{point}: files that are left behind");
        }
    }
}
