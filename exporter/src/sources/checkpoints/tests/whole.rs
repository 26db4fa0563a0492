//! When checkpoints of Ray and of Lightning are complete.

use super::*;

#[test]
fn a_checkpoint_of_ray_is_whole_once_its_tracker_names_it() {
    let mut b = Bench::new();
    let (first, second) = ("checkpoint_2026-11-22_22-35-42.000001", "checkpoint_2026-11-22_22-45-42.000001");
    let track = |b: &Bench, names: &[&str]| {
        let result = |name: &str| format!(r#"{{"version":0,"checkpoint_dir_name":"{name}","metrics":{{}}}}"#);
        let all: Vec<String> = names.iter().map(|name| result(name)).collect();
        let last = all.last().unwrap();
        let text = format!(
            r#"{{"version":0,"checkpoint_results":[{}],"latest_checkpoint_result":{last}}}"#,
            all.join(",")
        );
        fs::write(b.dir.path().join("checkpoint_manager_snapshot.json"), text).unwrap();
    };
    let published = |b: &Bench| {
        let events = std::mem::take(&mut *b.list.events.lock().unwrap());
        let name = |e: &Event| e.extra["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        events.iter().map(|e| (e.ckpt.unwrap(), e.step, name(e))).collect::<Vec<_>>()
    };
    b.write(&format!("{first}/.metadata"), 10);
    b.poll();
    track(&b, &[first]);
    b.poll();
    assert_eq!(published(&b), [(End, None, first.to_owned())], "no tracker, and the sign of torch");
    b.write(&format!("{second}/.metadata"), 10);
    b.pass(5 * MINUTE);
    assert_eq!(published(&b), [(Start, None, second.to_owned())], "not every rank has reported");
    track(&b, &[first, second]);
    b.poll();
    assert_eq!(published(&b), [(End, None, second.to_owned())]);
}

#[test]
fn a_sharded_checkpoint_of_lightning_is_whole_with_what_follows_the_shards() {
    let mut b = Bench::new();
    b.write("epoch=0-step=100.ckpt/__0_0.distcp", 1000);
    b.write("epoch=0-step=100.ckpt/.metadata", 24);
    b.poll();
    assert_eq!(b.published(), [(Start, 100)]);
    b.write("epoch=0-step=100.ckpt/meta.pt", 24);
    b.poll();
    assert_eq!(b.published(), [(End, 100)]);
}
