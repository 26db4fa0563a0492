//! Our routes in Alertmanager's language, for programs that read it: `amtool config routes test`
//! asks this which receivers a set of labels reaches.
//!
//! A route there has one receiver; here it may lead to many, and by levels. So a receiver of the
//! sketch is all receivers along one of our ways, joined by commas: amtool prints several in the
//! same form. The tree is ours, node by node. After it comes what happens where no route matches:
//! the team is notified, or every receiver: those that wake, of pages only.

use std::fmt::Write as _;

use serde_json::Value;
use stepwatch_model::Severity;
use stepwatch_respond::matcher::{Labels, Matcher, Op};
use stepwatch_respond::route::Node;

use crate::read_model::Routing;

/// The receiver of a route without receivers.
const NOBODY: &str = "nobody";
/// That of a ticket of which nobody is notified, where somebody is of a page.
const WAITS: &str = "nobody (it waits in the list of incidents)";
/// Ways in which routes that go on may all fail to match, at most: they multiply.
const MAX_LISTS: usize = 64;
/// The receiver's name for callers that may not see the routes.
const NOT_SHOWN: &str = "routes-are-shown-to-tokens-without-limits";

/// `whole`: with the routes, whose matchers name runs and teams.
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
    /// All that are named.
    receivers: Vec<String>,
    text: String,
}

/// The receivers that a route reaches.
struct Reached {
    /// Of a ticket: fewer receivers than of a page where the route has pagers.
    ticket: String,
    any: String,
}

impl Reached {
    fn by_severity<'n>(reached: impl Fn(Option<Severity>) -> Vec<&'n str>) -> Self {
        let (ticket, any) = (reached(Some(Severity::Ticket)), reached(None));
        let waits = ticket.is_empty() && !any.is_empty();
        Self { ticket: if waits { WAITS.to_owned() } else { name(&ticket) }, any: name(&any) }
    }

    /// The matchers it needs besides its own, and the receivers that it then reaches.
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
    /// The receivers of an alert of this team that no route matches.
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
        // An incident has the team whose matchers hold of it, the first of several, unless it
        // brings one.
        for (matchers, team) in router.teams() {
            let own = matchers.iter().map(ToString::to_string).collect();
            rest.push(([vec![equal("team", "")], own].concat(), team));
        }
        let nobodys = Reached::by_severity(|severity| self.unrouted(None, severity));
        if router.routes().is_empty() && rest.is_empty() && nobodys.parts().len() == 1 {
            return;
        }
        self.text.push_str("  routes:\n");
        // `info` notifies nobody, whatever the routes say.
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

/// What is left for the teams by routes that let the next ones be asked: matchers of which one list
/// must hold. Alertmanager would go on to the teams; here whatever a route has taken is none of the
/// rest.
fn unwanted(routes: &[Node]) -> Vec<Vec<String>> {
    let mut lists = vec![Vec::new()];
    for route in routes.iter().filter(|route| route.go_on) {
        // One of its matchers does not hold: the first, or the second while the first does, and so
        // on.
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

/// Between double quotes, as YAML and matchers have them.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
