//! Checks the `reports` section.

use std::collections::BTreeSet;

use super::Every;
use super::file::File;
use super::names::{known, unique};

pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let receivers: BTreeSet<&str> = file.receivers.iter().map(|r| r.name.as_str()).collect();
    unique("reports", file.reports.iter().map(|s| s.name.as_str()), errors);
    for (i, s) in file.reports.iter().enumerate() {
        let at = format!("reports[{i}]");
        if s.notify.is_empty() {
            errors.push(format!("{at}.notify: is empty, expected at least one receiver"));
        }
        let used = s.notify.iter().map(String::as_str);
        known(&format!("{at}.notify[]"), "receiver", used, &receivers, errors);
        for (j, name) in s.notify.iter().enumerate() {
            let receiver = file.receivers.iter().find(|r| r.name == *name);
            if let Some(why) = receiver.and_then(|receiver| receiver.shows_no_reports()) {
                errors.push(format!(
                    "{at}.notify[{j}]: {name:?} gets no reports: {why}; slack, email, webhook and stdout get them"
                ));
            }
        }
        if s.on.is_some() && s.every != Every::Week {
            errors.push(format!("{at}.on: is a day of the week, which only `every: week` has"));
        }
        if s.run.as_ref().is_some_and(|run| run.trim().is_empty()) {
            errors.push(format!("{at}.run: is empty, leave it out for all runs"));
        }
    }
}
