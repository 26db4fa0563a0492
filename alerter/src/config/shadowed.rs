//! Finds routes and teams that are never used, because earlier ones take everything that they
//! match.
//!
//! Only certain cases are reported: an expression is checked against a value or a list of values,
//! but not against another expression.

use std::collections::BTreeSet;

use stepwatch_model::Severity;
use stepwatch_respond::config::Route;
use stepwatch_respond::matcher::{Matcher, Op};

use super::file::File;
use super::incidents;
use super::matchers::{plain_values, values_of};

/// The severities that notify people. Routes have no other purpose.
const NOTIFIED: &[&str] = &[Severity::Page.as_str(), Severity::Ticket.as_str()];
/// All severities, because every incident has a team.
const ALL: &[&str] = &[Severity::Page.as_str(), Severity::Ticket.as_str(), Severity::Info.as_str()];

/// A route or a team, and its matchers.
struct Entry {
    asks: Vec<Matcher>,
    /// Whether later entries are tried too.
    goes_on: bool,
}

/// Entries that are tried in this order, under the matchers of their parents.
struct List<'a> {
    at: &'a str,
    /// The verb for an entry that is chosen.
    used: &'a str,
    above: &'a [Matcher],
    severities: &'a [&'a str],
}

pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    let entries = file.teams.iter().map(|team| Entry { asks: parsed(&team.matchers), goes_on: false });
    let teams = List { at: "teams", used: "given", above: &[], severities: ALL };
    teams.warn(&entries.collect::<Vec<_>>(), warnings);
    of_routes("routes", &file.routes, &[], warnings);
    incidents::each_route("routes", &file.routes, &mut |at, route| {
        let asks = parsed(&route.matchers);
        if !NOTIFIED.iter().any(|severity| admits(&asks, "severity", severity)) {
            warnings.push(format!("{at}: is about severity=\"info\", of which nobody is notified"));
        }
    });
}

fn of_routes(at: &str, routes: &[Route], above: &[Matcher], warnings: &mut Vec<String>) {
    let entries = routes.iter().map(|r| Entry { asks: parsed(&r.matchers), goes_on: r.go_on });
    let entries: Vec<Entry> = entries.collect();
    List { at, used: "used", above, severities: NOTIFIED }.warn(&entries, warnings);
    for (i, (route, entry)) in routes.iter().zip(&entries).enumerate() {
        of_routes(&format!("{at}[{i}].routes"), &route.routes, &[above, &entry.asks].concat(), warnings);
    }
}

/// The valid matchers; an invalid one is already reported.
fn parsed(matchers: &[String]) -> Vec<Matcher> {
    matchers.iter().filter_map(|text| text.parse().ok()).collect()
}

impl List<'_> {
    fn warn(&self, entries: &[Entry], warnings: &mut Vec<String>) {
        let Self { at, used, .. } = self;
        let what = at.rsplit('.').next().unwrap_or(at).trim_end_matches('s');
        for (i, entry) in entries.iter().enumerate() {
            if let Some(by) = self.taken_by(&entries[..i], entry) {
                let take = if by.len() == 1 { "takes" } else { "together take" };
                let by = by.iter().map(|j| format!("{at}[{j}]")).collect::<Vec<_>>().join(" and ");
                warnings.push(format!("{at}[{i}]: is never {used}, because {by} {take} all that it matches"));
            }
            let takes_all = !entry.goes_on && self.severities.iter().all(|s| self.takes(entry, &[], s));
            if takes_all && i + 1 < entries.len() {
                warnings.push(format!(
                    "{at}[{i}]: matches everything, so that no {what} after it is ever {used}"
                ));
                return;
            }
        }
    }

    /// The earlier entries that together take everything of an entry: for each severity, the first
    /// that takes it.
    fn taken_by(&self, earlier: &[Entry], entry: &Entry) -> Option<BTreeSet<usize>> {
        let asked = || self.above.iter().chain(&entry.asks);
        let own = self.severities.iter().filter(|s| admits(asked(), "severity", s));
        let by = own.map(|s| earlier.iter().position(|e| !e.goes_on && self.takes(e, &entry.asks, s)));
        by.collect::<Option<BTreeSet<usize>>>().filter(|by| !by.is_empty())
    }

    /// Whether an entry takes every incident of this severity that `given` matches.
    fn takes(&self, entry: &Entry, given: &[Matcher], severity: &str) -> bool {
        let given: Vec<&Matcher> = self.above.iter().chain(given).collect();
        entry.asks.iter().all(|asked| match asked.label() {
            "severity" => asked.holds_of(severity),
            _ => is_implied(asked, &given),
        })
    }
}

/// Whether a matcher matches everything that all of `given` match.
fn is_implied(asked: &Matcher, given: &[&Matcher]) -> bool {
    if asked.op() == Op::Regex && asked.value() == ".*" {
        return true;
    }
    let of_label = || given.iter().copied().filter(|m| m.label() == asked.label());
    if let Some(all) = values_of(asked.label()) {
        let mut admitted = all.into_iter().filter(|value| of_label().all(|m| m.holds_of(value))).peekable();
        return admitted.peek().is_some() && admitted.all(|value| asked.holds_of(value));
    }
    of_label().any(|m| {
        let values = if m.op() == Op::Equal { Some(vec![m.value()]) } else { plain_values(m) };
        m.to_string() == asked.to_string() || values.is_some_and(|v| v.into_iter().all(|v| asked.holds_of(v)))
    })
}

/// Whether all matchers on this label match the value.
fn admits<'a>(matchers: impl IntoIterator<Item = &'a Matcher>, label: &str, value: &str) -> bool {
    matchers.into_iter().filter(|m| m.label() == label).all(|m| m.holds_of(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(yaml: &str) -> Vec<String> {
        let file: File = stepwatch_kit::config::parse("alerter.yml", yaml).unwrap();
        let mut found = Vec::new();
        warnings(&file, &mut found);
        found
    }

    fn routes(all: &[&str]) -> Vec<String> {
        let all: Vec<String> = all.iter().map(|route| format!("- {{{route}}}")).collect();
        found(&format!("routes:\n{}\n", all.join("\n")))
    }

    #[test]
    fn what_earlier_entries_take_is_never_used() {
        let is_never = "routes[1]: is never used, because routes[0] takes all that it matches";
        for (earlier, later) in [
            ("match: ['run=\"a\"']", "match: ['severity=page', 'run=\"a\"']"),
            ("match: ['run=~\"a.*\"']", "match: ['run=\"abc\"']"),
            ("match: ['run=~\"a.*\"']", "match: ['run=~\"a1|a2\"']"),
            ("match: ['run!=\"b\"']", "match: ['run=\"a\"']"),
            ("match: ['run!~\"b.*\"']", "match: ['run=\"a\"', 'severity=page']"),
            ("match: ['run=\"a\"', 'severity=~\"page|ticket\"']", "match: ['run=\"a\"']"),
            ("match: ['run=\"a\"', 'severity!=\"info\"']", "match: ['run=\"a\"']"),
            ("match: ['kind=~\"grad_.*\"']", "match: ['kind=\"grad_spike\"']"),
            ("match: ['cause!=\"numerics\"']", "match: ['cause=~\"hardware|node\"']"),
        ] {
            assert_eq!(routes(&[earlier, later]), [is_never], "{earlier} {later}");
        }
        for (earlier, later) in [
            ("match: ['run=\"a\"', 'severity=page']", "match: ['run=\"a\"']"),
            ("match: ['run=~\"a.*\"']", "match: ['run=~\"a1|b2\"']"),
            ("match: ['run=~\"a.*\"']", "match: ['run=~\"ab.*\"']"),
            ("match: ['run!=\"b\"']", "match: ['run=\"b\"']"),
            ("continue: true, match: ['run=\"a\"']", "match: ['run=\"a\"']"),
            ("match: ['kind=~\"grad_.*\"']", "match: ['kind=\"hang\"']"),
            ("match: ['team=\"\"']", "match: ['run=\"a\"']"),
        ] {
            assert_eq!(routes(&[earlier, later]), [""; 0], "{earlier} {later}");
        }
    }

    #[test]
    fn several_entries_together_may_take_everything() {
        let all = ["match: ['severity=page']", "match: ['severity=ticket']", "match: ['run=\"a\"']"];
        let words =
            "routes[2]: is never used, because routes[0] and routes[1] together take all that it matches";
        assert_eq!(routes(&all), [words]);
        let everything = "routes[0]: matches everything, so that no route after it is ever used";
        for all in ["match: ['severity=~\"page|ticket\"']", "match: ['severity!=\"info\"']", "match: []"] {
            assert_eq!(routes(&[all, "match: ['run=\"a\"']", "match: ['run=\"b\"']"]), [everything], "{all}");
        }
        let info = "routes[0]: is about severity=\"info\", of which nobody is notified";
        for of_info in ["match: ['severity=info']", "match: ['severity!~\"page|ticket\"']"] {
            assert_eq!(routes(&[of_info]), [info], "{of_info}");
        }
    }

    #[test]
    fn a_child_is_asked_only_of_what_its_parent_takes() {
        let children =
            "match: ['run=\"a\"'], routes: [{match: ['run=~\"a|b\"']}, {match: ['severity=page']}]";
        assert_eq!(
            routes(&[children]),
            ["routes[0].routes[0]: matches everything, so that no route after it is ever used"]
        );
    }

    #[test]
    fn a_team_behind_a_wider_one_is_never_given() {
        let teams = |first: &str| {
            found(&format!("teams: [{{name: a, match: [{first}]}}, {{name: b, match: ['run=\"b\"']}}]"))
        };
        let words = "teams[1]: is never given, because teams[0] takes all that it matches";
        assert_eq!(teams("'run=~\"a|b\"'"), [words]);
        assert_eq!(teams("'run=\"b\"', 'severity=~\"page|ticket\"'"), [""; 0]);
    }
}
