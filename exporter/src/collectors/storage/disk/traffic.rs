//! Publishes what the busiest disks write, and how long they were busy: the alerter looks at both
//! while a run saves its checkpoints.

use stepwatch_wire::{Event, Kind, Value};

use super::devices;
use crate::collector::Context;
use crate::origin::Origin;
use crate::roots::{self, Roots};

/// Seconds between two events of a disk.
const SECONDS: f64 = 30.0;
/// The most disks, those that were busy for longest.
const MAX_DISKS: usize = 8;
/// The places of the two counters in a line of `/sys/block/DISK/stat`, whose sectors are of 512
/// bytes whatever the disk's own are.
const SECTORS_WRITTEN: usize = 6;
const BUSY_MILLISECONDS: usize = 9;
const SECTOR: u64 = 512;

#[derive(Debug)]
pub(super) struct Traffic {
    published_at: f64,
}

/// The counters of a disk.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    disk: String,
    written: u64,
    busy_ms: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { published_at: f64::NEG_INFINITY }
    }
}

impl Traffic {
    pub(super) fn pass(&mut self, now: f64, cx: &Context<'_>) {
        if (0.0..SECONDS).contains(&(now - self.published_at)) {
            return;
        }
        self.published_at = now;
        for counted in busiest(cx.roots) {
            cx.hub.publish(Origin::Node, counted.event(now));
        }
    }
}

fn busiest(roots: &Roots) -> Vec<Counted> {
    let counted = |(disk, path): (String, std::path::PathBuf)| {
        let line = roots::read(&path.join("stat"))?;
        let number = |at: usize| line.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
        let written = number(SECTORS_WRITTEN)?.saturating_mul(SECTOR);
        Some(Counted { disk, written, busy_ms: number(BUSY_MILLISECONDS)? })
    };
    let mut all: Vec<Counted> = devices::drives(roots).filter_map(counted).collect();
    all.sort_by(|a, b| b.busy_ms.cmp(&a.busy_ms).then_with(|| a.disk.cmp(&b.disk)));
    all.truncate(MAX_DISKS);
    all
}

impl Counted {
    fn event(self, now: f64) -> Event {
        let mut event = Event { ts: Some(now), name: Some("disk".into()), ..Event::new(Kind::Health) };
        event.extra.insert("device".into(), Value::Text(self.disk));
        event.m.set("written_bytes", self.written as f64);
        event.m.set("busy_seconds", self.busy_ms as f64 / 1000.0);
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disks_that_were_busy_for_longest() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        let mut stats: Vec<(String, String)> = (0..12)
            .map(|n| (format!("nvme{n}n1"), format!("  10 0 80 5 20 0 {} 7 0 {} 9", 8 * n, 1000 * n)))
            .collect();
        stats.push(("loop0".into(), "1 1 1 1 1 1 1 1 1 99999999 1".into()));
        stats.push(("sda".into(), "1 2 3".into()));
        for (disk, line) in stats {
            let path = dir.path().join("block").join(disk);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("stat"), format!("{line}\n")).unwrap();
        }
        let found = busiest(&roots);
        assert_eq!(found.len(), MAX_DISKS);
        let first = Counted { disk: "nvme11n1".into(), written: 45_056, busy_ms: 11_000 };
        assert_eq!(found.first(), Some(&first));
        let event = found.into_iter().next().unwrap().event(5.0);
        assert_eq!((event.kind, event.name.as_deref()), (Kind::Health, Some("disk")));
        let mut values: Vec<_> = event.m.iter().collect();
        values.sort_by_key(|(name, _)| *name);
        assert_eq!(values, [("busy_seconds", 11.0), ("written_bytes", 45_056.0)]);
    }
}
