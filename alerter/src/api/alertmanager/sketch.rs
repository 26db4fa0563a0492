//! Our routes in Alertmanager's language, for programs that read it: `amtool config routes test`
//! asks this which receivers a set of labels reaches.
//!
//! A route there has one receiver, here it may lead to many, and by levels. So a receiver of the
//! sketch is everybody who stands along one of our ways, by their names between commas: just as
//! amtool prints several. The tree is ours, node by node. What follows it is what happens where no
//! route matches: the team is told, or everybody.

use std::fmt::Write as _;

use serde_json::Value;
use stepwatch_engine::matcher::{Labels, Matcher, Op};
use stepwatch_engine::route::Node;
use stepwatch_engine::verdict::Severity;

use crate::board::Routing;

/// Whom a way without anybody on it reaches.
const NOBODY: &str = "nobody";
/// Ways in which routes that go on may all fail to match, at most: they multiply.
const MAX_LISTS: usize = 64;
/// What the receiver is called for those who may not see the routes.
const NOT_SHOWN: &str = "routes-are-shown-to-tokens-without-limits";

/// `whole`: also the routes, whose matchers tell of runs and teams.
pub(super) fn of(routing: &Routing, whole: bool) -> String {
    let config = &routing.config;
    let everybody = name(&routing.router.reached_unrouted(config, &Labels::new()));
    let mut tree = Tree { routing, receivers: config.receivers.clone(), text: String::new() };
    let root = if whole { everybody.as_str() } else { NOT_SHOWN };
    tree.receiver("", root);
    if whole {
        tree.routes();
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

impl Tree<'_> {
    fn routes(&mut self) {
        let routing = self.routing;
        let (config, router) = (&routing.config, &routing.router);
        let mut rest = Vec::new();
        for (_, team) in router.teams() {
            rest.push((vec![equal("team", &team.name)], team));
        }
        // An incident has the team whose matchers hold of it, the first of several, unless it brings one.
        for (matchers, team) in router.teams() {
            let own = matchers.iter().map(ToString::to_string).collect();
            rest.push(([vec![equal("team", "")], own].concat(), team));
        }
        if router.routes().is_empty() && rest.is_empty() {
            return;
        }
        self.text.push_str("  routes:\n");
        // What is only to be known is told to nobody, whatever the routes say.
        self.node("  ", &[equal("severity", Severity::Info.as_str())], NOBODY, false);
        self.list("  ", router.routes());
        let unwanted = unwanted(router.routes());
        for (matchers, team) in rest {
            let labels = Labels::from([("team".to_owned(), team.name.clone())]);
            let receiver = name(&router.reached_unrouted(config, &labels));
            for unwanted in &unwanted {
                self.node("  ", &[unwanted.as_slice(), &matchers].concat(), &receiver, false);
            }
        }
    }

    fn list(&mut self, indent: &str, nodes: &[Node]) {
        for node in nodes {
            let matchers: Vec<String> = node.matchers.iter().map(Matcher::to_string).collect();
            self.node(indent, &matchers, &name(&node.reached(&self.routing.config)), node.go_on);
            if !node.children.is_empty() {
                let inner = format!("{indent}  ");
                let _ = writeln!(self.text, "{inner}routes:");
                self.list(&inner, &node.children);
            }
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
        // One of its matchers does not hold: the first, or the second while the first does, and so on.
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
