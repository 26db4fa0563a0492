//! `kill -9` of the alerter, at every place where it matters and at any moment: no page lost, none
//! doubled.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod ledger;
mod points;
mod rounds;

use std::collections::BTreeSet;
use std::path::Path;

use stepwatch_tests::bins;

/// The names of all crash points in the alerter's source.
fn crash_points() -> BTreeSet<String> {
    fn scan(dir: &Path, found: &mut BTreeSet<String>) {
        for path in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                scan(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.split("crash::point(\"").skip(1);
                found.extend(calls.filter_map(|c| c.split('"').next()).map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    scan(&bins::root().join("alerter/src"), &mut found);
    found
}
