//! Our routes in Alertmanager's format, for programs that parse it: `amtool config routes test`
//! uses it to find the receivers for a set of labels.
//!
//! In Alertmanager a route has one receiver; here a route may have many, also by level. So a
//! receiver of the sketch is the list of all receivers of a route, separated by commas, as amtool
//! prints several. The tree of routes is ours. After it come routes for alerts that match none:
//! they go to the team or to every receiver, and to pagers only if they are pages.

use std::fmt::Write as _;

use serde_json::Value;
use stepwatch_model::Severity;
use stepwatch_respond::matcher::{Labels, Matcher, Op};
use stepwatch_respond::route::Node;

use crate::read_model::Routing;

/// The receiver of a route without receivers.
const NOBODY: &str = "nobody";
/// The receiver of a ticket that is only listed, on a route where a page does notify people.
const WAITS: &str = "nobody (it waits in the list of incidents)";
/// The most combinations in which routes with `continue` all fail to match, because they multiply.
const MAX_LISTS: usize = 64;
/// The receiver's name for callers that must not see the routes.
const NOT_SHOWN: &str = "routes-are-shown-to-tokens-without-limits";

/// Renders the sketch. `whole`: with the routes, whose matchers name runs and teams.
pub(super) fn render(routing: &Routing, whole: bool) -> String {
    let mut tree = Tree { routing, receivers: routing.config.receivers.clone(), text: String::new() };
    if whole {
        tree.receiver("", &name(&tree.unrouted(None, None)));
        tree.routes();
    } else {
        tree.receiver("", NOT_SHOWN);
    }
    let receivers: Vec<String> =
        tree.receivers.iter().map(|name| format!("- name: {}\n", quoted(name))).collect();
    format!("route:\n{}receivers:\n{}", tree.text, receivers.concat())
}

struct Tree<'a> {
    routing: &'a Routing,
    /// All named receivers.
    receivers: Vec<String>,
    text: String,
}

/// The receivers that a route reaches.
struct Reached {
    /// The receivers of a ticket, which exclude the pagers of the route.
    ticket: String,
    any: String,
}

impl Reached {
    fn by_severity<'n>(reached: impl Fn(Option<Severity>) -> Vec<&'n str>) -> Self {
        let (ticket, any) = (reached(Some(Severity::Ticket)), reached(None));
        let waits = ticket.is_empty() && !any.is_empty();
        Self { ticket: if waits { WAITS.to_owned() } else { name(&ticket) }, any: name(&any) }
    }

    /// The additional matchers by severity, and the receivers of each.
    fn parts(&self) -> Vec<(Option<String>, &str)> {
        if self.ticket == self.any {
            return vec![(None, &self.any)];
        }
        let ticket = equal("severity", Severity::Ticket.as_str());
        let other = format!("severity!={}", quoted(Severity::Ticket.as_str()));
        vec![(Some(ticket), &self.ticket), (Some(other), &self.any)]
    }
}

impl<'a> Tree<'a> {
    /// The receivers of a team's alert that no route matches.
    fn unrouted(&self, team: Option<&str>, severity: Option<Severity>) -> Vec<&'a str> {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = [team.map(|team| label("team", team)), severity.map(|s| label("severity", s.as_str()))];
        let labels: Labels = labels.into_iter().flatten().collect();
        self.routing.router.reached_unrouted(&self.routing.config, &labels)
    }

    fn routes(&mut self) {
        let router = &self.routing.router;
        let mut rest = Vec::new();
        for (_, team) in router.teams() {
            rest.push((vec![equal("team", &team.name)], team));
        }
        // An incident without a team label belongs to the first team whose matchers match it.
        for (matchers, team) in router.teams() {
            let own = matchers.iter().map(ToString::to_string).collect();
            rest.push(([vec![equal("team", "")], own].concat(), team));
        }
        let nobodys = Reached::by_severity(|severity| self.unrouted(None, severity));
        if router.routes().is_empty() && rest.is_empty() && nobodys.parts().len() == 1 {
            return;
        }
        self.text.push_str("  routes:\n");
        // An `info` incident notifies nobody, whatever the routes are.
        self.node("  ", &[equal("severity", Severity::Info.as_str())], NOBODY, false);
        self.list("  ", router.routes());
        let unwanted = unwanted(router.routes());
        for (matchers, team) in rest {
            let reached = Reached::by_severity(|severity| self.unrouted(Some(&team.name), severity));
            for unwanted in &unwanted {
                self.ways("  ", &[unwanted.as_slice(), &matchers].concat(), &reached);
            }
        }
        if let [(Some(ticket), receiver), _] = nobodys.parts().as_slice() {
            for unwanted in &unwanted {
                let matchers = [unwanted.as_slice(), core::slice::from_ref(ticket)].concat();
                self.node("  ", &matchers, receiver, false);
            }
        }
    }

    fn list(&mut self, indent: &str, nodes: &[Node]) {
        for node in nodes {
            let matchers: Vec<String> = node.matchers.iter().map(Matcher::to_string).collect();
            let reached = Reached::by_severity(|severity| node.reached(&self.routing.config, severity));
            for (more, receiver) in reached.parts() {
                let matchers: Vec<String> = matchers.iter().cloned().chain(more).collect();
                self.node(indent, &matchers, receiver, node.go_on);
                if !node.children.is_empty() {
                    let inner = format!("{indent}  ");
                    let _ = writeln!(self.text, "{inner}routes:");
                    self.list(&inner, &node.children);
                }
            }
        }
    }

    fn ways(&mut self, indent: &str, matchers: &[String], reached: &Reached) {
        for (more, receiver) in reached.parts() {
            let matchers: Vec<String> = matchers.iter().cloned().chain(more).collect();
            self.node(indent, &matchers, receiver, false);
        }
    }

    fn node(&mut self, indent: &str, matchers: &[String], receiver: &str, go_on: bool) {
        let list: Vec<String> = matchers.iter().map(|m| quoted(m)).collect();
        let _ = writeln!(self.text, "{indent}- matchers: [{}]", list.join(", "));
        self.receiver(indent, receiver);
        if go_on {
            let _ = writeln!(self.text, "{indent}  continue: true");
        }
    }

    fn receiver(&mut self, indent: &str, receiver: &str) {
        let _ = writeln!(self.text, "{indent}  receiver: {}", quoted(receiver));
        if !self.receivers.iter().any(|known| known == receiver) {
            self.receivers.push(receiver.to_owned());
        }
    }
}

/// The conditions under which no route took an alert, which is then left for the teams: one of
/// these lists of matchers must match. Alertmanager would continue with the teams' routes, but here
/// a route with `continue` also takes the alert.
fn unwanted(routes: &[Node]) -> Vec<Vec<String>> {
    let mut lists = vec![Vec::new()];
    for route in routes.iter().filter(|route| route.go_on) {
        // One of the route's matchers fails: the first, or the second while the first matches, and
        // so on.
        let fails = |list: &Vec<String>| {
            let failing = route.matchers.iter().enumerate().filter_map(|(i, matcher)| {
                let holding = route.matchers[..i].iter().map(ToString::to_string);
                Some(holding.chain([negation(matcher)?]).collect::<Vec<_>>())
            });
            failing.map(|more| [list.as_slice(), &more].concat()).collect::<Vec<_>>()
        };
        lists = lists.iter().flat_map(fails).take(MAX_LISTS).collect();
    }
    lists
}

fn negation(matcher: &Matcher) -> Option<String> {
    let op = Op::of(matcher.op().is_regex(), !matcher.op().is_positive());
    Matcher::new(matcher.label(), op, matcher.value()).ok().map(|m| m.to_string())
}

fn name(reached: &[&str]) -> String {
    if reached.is_empty() { NOBODY.to_owned() } else { reached.join(",") }
}

fn equal(label: &str, value: &str) -> String {
    format!("{label}={}", quoted(value))
}

/// The text in double quotes, in the syntax of YAML and matchers.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
