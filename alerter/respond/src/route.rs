//! Routes an incident to people, by a tree of routes as in Alertmanager.
//!
//! The first route whose matchers all hold decides, and within it the first of its children. After
//! a route with `continue`, the next routes are evaluated too, so that an incident may take several
//! ways. An incident that no route matches goes to its team, and one without a team to the
//! remaining receivers (`route::rest`), so that every incident has a way.

mod name;
mod unrouted;

pub use name::WayName;
pub(crate) use name::joined;
pub use unrouted::{Rest, STORE};

use crate::config::{Level, ResponderConfig, Route, Team};
use crate::matcher::{Labels, Matcher, Op, all_hold};
use stepwatch_model::{Severity, Span};

/// The deepest nesting of routes.
const MAX_DEPTH: usize = 16;

/// One way of an incident, with its levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    pub name: WayName,
    /// The matchers that chose it, in words.
    pub because: String,
    pub policy: Option<String>,
    pub levels: Vec<Level>,
}

/// A way that an incident may take if only some of its labels are known.
#[derive(Debug, Clone, PartialEq)]
pub struct Possible {
    pub way: Way,
    /// Matchers of other labels that must hold as well.
    pub given: Vec<String>,
    /// The ways after it may be taken too.
    pub goes_on: bool,
}

/// The routing tree, parsed once.
#[derive(Debug, Clone, Default)]
pub struct Router {
    routes: Vec<Node>,
    teams: Vec<(Vec<Matcher>, Team)>,
}

/// A route with what it inherits from its parent.
#[derive(Debug, Clone)]
pub struct Node {
    place: String,
    pub matchers: Vec<Matcher>,
    policy: Option<String>,
    notify: Vec<String>,
    pub children: Vec<Self>,
    /// The next routes are evaluated too.
    pub go_on: bool,
}

impl Router {
    /// Parses routes and teams. `Err` has all errors at once, each with its place.
    pub fn new(routes: &[Route], teams: &[Team]) -> Result<Self, Vec<String>> {
        let mut errors = nested_too_deep("routes", routes);
        if !errors.is_empty() {
            return Err(errors);
        }
        let routes = Node::list("routes", routes, &mut errors);
        let teams = teams
            .iter()
            .enumerate()
            .map(|(i, team)| (matchers(&format!("teams[{i}]"), &team.matchers, &mut errors), team.clone()));
        let teams = teams.collect();
        if errors.is_empty() { Ok(Self { routes, teams }) } else { Err(errors) }
    }

    /// The routes, in order of evaluation.
    pub fn routes(&self) -> &[Node] {
        &self.routes
    }

    /// The teams with their matchers, in the order of the configuration.
    pub fn teams(&self) -> &[(Vec<Matcher>, Team)] {
        &self.teams
    }

    /// The names of the teams of the configuration, then of those that only routes name.
    pub fn team_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.teams.iter().map(|(_, team)| team.name.as_str()).collect();
        for node in &self.routes {
            node.name_teams(&mut names);
        }
        names
    }

    /// The ways that an incident with these labels takes; at least one.
    pub fn ways(&self, config: &ResponderConfig, labels: &Labels) -> Vec<Way> {
        if let Some(rest) = unrouted::of_the_store(config, labels) {
            return vec![rest.way(config)];
        }
        let mut taken = Vec::new();
        Node::descend(&self.routes, labels, &mut taken);
        if !taken.is_empty() {
            return taken.iter().map(|node| node.way(config)).collect();
        }
        vec![self.unrouted(config, labels)]
    }

    /// The ways that incidents with these labels may take. Nothing is known of their other labels,
    /// except that none of these is among `known`. The first way whose `given` holds is taken.
    pub fn possible(&self, config: &ResponderConfig, labels: &Labels, known: &[&str]) -> Vec<Possible> {
        let mut found = Vec::new();
        if !Node::explore(&self.routes, config, labels, known, &Possible::root(), &mut found) {
            found.push(Possible { way: self.unrouted(config, labels), ..Possible::root() });
        }
        found
    }

    /// The way of an incident that no route matches.
    fn unrouted(&self, config: &ResponderConfig, labels: &Labels) -> Way {
        let Some(team) = self.team_of(labels) else { return self.rest(config, labels).way(config) };
        if team.policy.is_some() || !team.notify.is_empty() {
            let because = format!("no route matches, team=\"{}\"", team.name);
            let levels = levels(config, team.policy.as_deref(), &team.notify);
            let name = WayName::Team(team.name.clone());
            return Way { name, because, policy: team.policy.clone(), levels };
        }
        let rest = Rest::of_team(team).unwrap_or_else(|| self.rest(config, labels));
        rest.way(config)
    }

    /// The team of the configuration that it belongs to.
    pub fn team_of(&self, labels: &Labels) -> Option<&Team> {
        let name = labels.get("team")?;
        self.teams.iter().map(|(_, team)| team).find(|team| team.name == *name)
    }
}

impl Possible {
    /// The state before any route was evaluated.
    fn root() -> Self {
        let name = WayName::Route(String::new());
        let way = Way { name, because: String::new(), policy: None, levels: Vec::new() };
        Self { way, given: Vec::new(), goes_on: false }
    }
}

impl Router {
    /// All who may be notified of an incident with these labels, on any level of any way: each
    /// once, in order. It computes nothing else, because callers need it for thousands of label
    /// sets.
    pub fn reached<'a>(&'a self, config: &'a ResponderConfig, labels: &Labels) -> Vec<&'a str> {
        let severity = severity_of(labels);
        let mut reached = Vec::new();
        if let Some(rest) = unrouted::of_the_store(config, labels) {
            rest.along(config, severity, &mut reached);
            return reached;
        }
        let mut taken = Vec::new();
        Node::descend(&self.routes, labels, &mut taken);
        if taken.is_empty() {
            return self.reached_unrouted(config, labels);
        }
        for node in taken {
            along(config, &node.notify, node.policy.as_deref(), severity, &mut reached);
        }
        reached
    }

    /// All who may be notified of an incident that no route matches.
    pub fn reached_unrouted<'a>(&'a self, config: &'a ResponderConfig, labels: &Labels) -> Vec<&'a str> {
        let severity = severity_of(labels);
        let mut reached = Vec::new();
        match self.team_of(labels) {
            Some(team) if team.policy.is_some() || !team.notify.is_empty() => {
                along(config, &team.notify, team.policy.as_deref(), severity, &mut reached);
            }
            team => {
                let rest = team.and_then(Rest::of_team).unwrap_or_else(|| self.rest(config, labels));
                rest.along(config, severity, &mut reached);
            }
        }
        reached
    }
}

/// Adds all who are on a way and may be notified of this severity, or of any if it is `None`: each
/// once.
fn along<'a>(
    config: &'a ResponderConfig,
    notify: &'a [String],
    policy: Option<&str>,
    severity: Option<Severity>,
    reached: &mut Vec<&'a str>,
) {
    let policy = config.policies.iter().find(|p| Some(p.name.as_str()) == policy);
    let may_hear = |level: &&Level| {
        let asked = level.condition.severity;
        asked.is_none() || severity.is_none() || asked == severity
    };
    let levels = policy.into_iter().flat_map(|p| &p.levels).filter(may_hear);
    // If a page passes over all levels, the last level is notified.
    let nobody_hears = severity == Some(Severity::Page) && notify.is_empty();
    let last = policy.and_then(|p| p.levels.last());
    let last = last.filter(|_| nobody_hears && levels.clone().next().is_none());
    for name in notify.iter().chain(levels.chain(last).flat_map(|level| &level.notify)) {
        if !reached.contains(&name.as_str()) {
            reached.push(name);
        }
    }
}

fn severity_of(labels: &Labels) -> Option<Severity> {
    let value = labels.get("severity")?;
    [Severity::Info, Severity::Ticket, Severity::Page].into_iter().find(|s| s.as_str() == value)
}

impl Node {
    /// All who may be notified by this route, on any level: each once.
    pub fn reached<'a>(&'a self, config: &'a ResponderConfig, severity: Option<Severity>) -> Vec<&'a str> {
        let mut reached = Vec::new();
        along(config, &self.notify, self.policy.as_deref(), severity, &mut reached);
        reached
    }

    fn name_teams<'a>(&'a self, names: &mut Vec<&'a str>) {
        for m in self.matchers.iter().filter(|m| m.label() == "team" && m.op() == Op::Equal) {
            if !m.value().is_empty() && !names.contains(&m.value()) {
                names.push(m.value());
            }
        }
        self.children.iter().for_each(|child| child.name_teams(names));
    }

    fn list(at: &str, routes: &[Route], errors: &mut Vec<String>) -> Vec<Self> {
        let node = |(i, route): (usize, &Route)| {
            let place = format!("{at}[{i}]");
            let mut children = Self::list(&format!("{place}.routes"), &route.routes, errors);
            for child in &mut children {
                child.inherit(route);
            }
            Self {
                matchers: matchers(&place, &route.matchers, errors),
                place,
                policy: route.policy.clone(),
                notify: route.notify.clone(),
                children,
                go_on: route.go_on,
            }
        };
        routes.iter().enumerate().map(node).collect()
    }

    /// Inherits the policy and receivers of the parent if the route has neither.
    fn inherit(&mut self, parent: &Route) {
        if self.policy.is_none() && self.notify.is_empty() {
            self.policy.clone_from(&parent.policy);
            self.notify.clone_from(&parent.notify);
            self.children.iter_mut().for_each(|child| child.inherit(parent));
        }
    }

    /// Adds the routes that match to `taken`; true if one matched.
    fn descend<'a>(nodes: &'a [Self], labels: &Labels, taken: &mut Vec<&'a Self>) -> bool {
        let mut any = false;
        for node in nodes.iter().filter(|node| all_hold(&node.matchers, labels)) {
            if !Self::descend(&node.children, labels, taken) {
                taken.push(node);
            }
            any = true;
            if !node.go_on {
                break;
            }
        }
        any
    }

    /// As `descend`, for labels of which only some are known. `above` has what the parent requires.
    /// True if a route matches for sure.
    fn explore(
        nodes: &[Self],
        config: &ResponderConfig,
        labels: &Labels,
        known: &[&str],
        above: &Possible,
        found: &mut Vec<Possible>,
    ) -> bool {
        let mut sure = false;
        for node in nodes {
            let (settled, open): (Vec<_>, Vec<_>) =
                node.matchers.iter().partition(|m| known.contains(&m.label()));
            if !settled.iter().all(|m| m.holds(labels)) {
                continue;
            }
            let mut here = above.clone();
            for matcher in open.iter().map(ToString::to_string) {
                if !here.given.contains(&matcher) {
                    here.given.push(matcher);
                }
            }
            here.goes_on |= node.go_on;
            if !Self::explore(&node.children, config, labels, known, &here, found) {
                found.push(Possible { way: node.way(config), ..here });
            }
            sure |= open.is_empty();
            if open.is_empty() && !node.go_on {
                break;
            }
        }
        sure
    }

    fn way(&self, config: &ResponderConfig) -> Way {
        let words: Vec<String> = self.matchers.iter().map(ToString::to_string).collect();
        let because = if words.is_empty() { "everything".into() } else { words.join(" and ") };
        let levels = levels(config, self.policy.as_deref(), &self.notify);
        Way { name: WayName::Route(self.place.clone()), because, policy: self.policy.clone(), levels }
    }
}

/// The places of routes that are nested too deep, each with the error.
pub fn nested_too_deep(at: &str, routes: &[Route]) -> Vec<String> {
    fn search(at: &str, routes: &[Route], depth: usize, found: &mut Vec<String>) {
        if depth == MAX_DEPTH && !routes.is_empty() {
            found.push(format!("{at}: routes are nested more than {MAX_DEPTH} deep"));
            return;
        }
        for (i, route) in routes.iter().enumerate() {
            search(&format!("{at}[{i}].routes"), &route.routes, depth + 1, found);
        }
    }
    let mut found = Vec::new();
    search(at, routes, 0, &mut found);
    found
}

fn matchers(place: &str, texts: &[String], errors: &mut Vec<String>) -> Vec<Matcher> {
    let mut parsed = Vec::new();
    for text in texts {
        match Matcher::parse(text) {
            Ok(matcher) => parsed.push(matcher),
            Err(e) => errors.push(format!("{place}: {e}")),
        }
    }
    parsed
}

fn levels(config: &ResponderConfig, policy: Option<&str>, notify: &[String]) -> Vec<Level> {
    let mut levels = Vec::new();
    if !notify.is_empty() {
        levels.push(at_once(notify.to_vec()));
    }
    if let Some(policy) = config.policies.iter().find(|p| Some(p.name.as_str()) == policy) {
        levels.extend(policy.levels.iter().cloned());
    }
    levels
}

fn at_once(notify: Vec<String>) -> Level {
    Level { after: Span::ZERO, notify, ..Level::default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route(matcher: &str, notify: &str, go_on: bool, routes: Vec<Route>) -> Route {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Route { matchers: list(matcher), policy: None, notify: list(notify), routes, go_on }
    }

    fn config(routes: Vec<Route>) -> ResponderConfig {
        let team = |name: &str, notify: &[&str]| Team {
            name: name.into(),
            matchers: vec![format!("run=~\"{name}-.*\"")],
            notify: notify.iter().map(|n| (*n).to_owned()).collect(),
            ..Team::default()
        };
        ResponderConfig {
            receivers: vec!["a".into(), "b".into()],
            teams: vec![team("infra", &["b"]), team("idle", &[])],
            routes,
            ..ResponderConfig::default()
        }
    }

    /// Each way: the route, and who is notified at once.
    fn ways(config: &ResponderConfig, labels: &[(&str, &str)]) -> Vec<(String, String)> {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let router = Router::new(&config.routes, &config.teams).unwrap();
        let mut along = Vec::new();
        let severity = severity_of(&labels);
        let may_hear = |level: &Level| {
            severity.is_none() || level.condition.severity.is_none_or(|s| Some(s) == severity)
        };
        let levels = router.ways(config, &labels).into_iter().flat_map(|w| w.levels).filter(may_hear);
        for name in levels.flat_map(|l| l.notify) {
            if !along.contains(&name) {
                along.push(name);
            }
        }
        assert_eq!(router.reached(config, &labels), along);
        let first =
            |way: Way| (way.name.to_string(), way.levels.iter().flat_map(|l| l.notify.clone()).collect());
        router.ways(config, &labels).into_iter().map(first).collect()
    }

    #[test]
    fn the_tree_is_descended_as_alertmanager_does() {
        let tree = vec![
            route("audit=\"yes\"", "log", true, vec![]),
            route(
                "severity=\"page\"",
                "phone",
                false,
                vec![
                    route("cause=\"hardware\"", "dc", true, vec![]),
                    route("node=~\"gpu.*\"", "", false, vec![]),
                    route("node=~\".+\"", "other", false, vec![]),
                ],
            ),
            route("", "chat", false, vec![]),
        ];
        let c = config(tree);
        let is = |labels: &[(&str, &str)], want: &[(&str, &str)]| {
            let want: Vec<_> = want.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            assert_eq!(ways(&c, labels), want, "{labels:?}");
        };
        is(&[("severity", "ticket")], &[("routes[2]", "chat")]);
        is(&[("severity", "page")], &[("routes[1]", "phone")]);
        is(&[("severity", "page"), ("node", "gpu-1")], &[("routes[1].routes[1]", "phone")]);
        is(
            &[("severity", "page"), ("node", "cpu-1"), ("cause", "hardware")],
            &[("routes[1].routes[0]", "dc"), ("routes[1].routes[2]", "other")],
        );
        is(&[("audit", "yes"), ("severity", "page")], &[("routes[0]", "log"), ("routes[1]", "phone")]);
    }

    #[test]
    fn what_no_route_wants_belongs_to_its_team_or_to_whoever_is_left() {
        let mut c = config(vec![route("severity=\"page\"", "a", false, vec![])]);
        let to = |route: &str, who: &str| vec![(route.to_owned(), who.to_owned())];
        assert_eq!(ways(&c, &[("team", "infra")]), to("team infra", "b"));
        // An incident of no team goes to everybody.
        for labels in [&[("team", "unheard of")][..], &[]] {
            assert_eq!(ways(&c, labels), to("every receiver", "ab"));
        }
        assert_eq!(ways(&c, &[("team", "idle")]), to("nobody of team idle", ""));
        c.teams[1].fallback = vec!["a".into()];
        assert_eq!(ways(&c, &[("team", "idle")]), to("fallback of team idle", "a"));
        c.fallback = vec!["a".into()];
        assert_eq!(ways(&c, &[]), to("fallback", "a"));
        // If no team has receivers, everybody belongs to one team.
        c = config(vec![]);
        c.teams.remove(0);
        assert_eq!(ways(&c, &[("team", "idle")]), to("every receiver", "ab"));
    }

    /// Less than a page never goes to a receiver that wakes, unless a route names that receiver.
    #[test]
    fn what_is_not_a_page_never_goes_to_a_receiver_that_wakes() {
        let mut c = ResponderConfig { waking: vec!["b".into()], teams: vec![], ..config(vec![]) };
        let reached = |c: &ResponderConfig, severity: &str| {
            ways(c, &[("severity", severity)]);
            let labels = Labels::from([("severity".to_owned(), severity.to_owned())]);
            let router = Router::new(&c.routes, &c.teams).unwrap();
            router.reached(c, &labels).join(" ")
        };
        for routes in [vec![], vec![route("kind=\"hang\"", "b", false, vec![])]] {
            c.routes = routes;
            assert_eq!((reached(&c, "ticket"), reached(&c, "page")), ("a".into(), "a b".into()));
        }
        // If all receivers wake, it waits in the list of incidents.
        c.receivers = vec!["b".into()];
        assert_eq!((reached(&c, "ticket"), reached(&c, "page")), (String::new(), "b".into()));
        // A receiver that a route names is notified of what the route matches.
        c.routes = vec![route("severity=\"ticket\"", "b", false, vec![])];
        assert_eq!(reached(&c, "ticket"), "b");
    }

    #[test]
    fn what_may_become_of_an_incident_that_is_partly_known() {
        let c = config(vec![
            route("audit=\"yes\"", "log", true, vec![]),
            route(
                "severity=\"page\" team=\"infra\"",
                "phone",
                false,
                vec![route("kind=\"hang\"", "dc", false, vec![])],
            ),
            route("severity=\"ticket\"", "chat", false, vec![]),
            route("kind=\"hang\"", "late", false, vec![]),
        ]);
        let router = Router::new(&c.routes, &c.teams).unwrap();
        let of = |team: &str, severity: &str| {
            let labels = [("team", team), ("severity", severity)].map(|(k, v)| (k.to_owned(), v.to_owned()));
            let found = router.possible(&c, &Labels::from(labels), &["team", "severity"]);
            let line = |p: Possible| {
                let notified: Vec<_> = p.way.levels.into_iter().flat_map(|l| l.notify).collect();
                format!(
                    "{}{}: {}",
                    p.given.join(" "),
                    if p.goes_on { " ..." } else { "" },
                    notified.join(" ")
                )
            };
            found.into_iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(of("infra", "page"), ["audit=\"yes\" ...: log", "kind=\"hang\": dc", ": phone"]);
        assert_eq!(of("idle", "ticket"), ["audit=\"yes\" ...: log", ": chat"]);
        assert_eq!(of("", "page"), ["audit=\"yes\" ...: log", "kind=\"hang\": late", ": a b"]);
    }

    proptest! {
        /// Whatever the other labels are, the way taken is the first possible way whose `given`
        /// holds.
        #[test]
        fn what_happens_was_possible(
            texts in prop::collection::vec(("[kt]=[xy]|[kt]!=[xy]", "[kt]=[xy]|k=~[xy]", any::<bool>()), 0..5),
            kind in "[xyz]", team in "[xy]?",
        ) {
            let routes = texts.iter().enumerate().map(|(i, (outer, inner, go_on))| {
                let child = route(inner, &format!("c{i}"), false, vec![]);
                route(outer, &format!("r{i}"), *go_on, vec![child])
            });
            let c = config(routes.collect());
            let router = Router::new(&c.routes, &c.teams).unwrap();
            let mut labels = Labels::from([("t".to_owned(), team)]);
            let possible = router.possible(&c, &labels, &["t"]);
            labels.insert("k".into(), kind);
            let holds = |p: &&Possible| p.given.iter().all(|m| Matcher::parse(m).unwrap().holds(&labels));
            let taken = router.ways(&c, &labels);
            let first = possible.iter().find(holds).map(|p| &p.way);
            prop_assert_eq!(first, taken.first(), "{:?}", possible);
            for way in &taken {
                prop_assert!(possible.iter().any(|p| p.way == *way), "{:?}", way);
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = [route("kind kind=~\"(\"", "", false, vec![route("x!", "", false, vec![])])];
        let errors = Router::new(&wrong, &[]).unwrap_err();
        let begins: Vec<_> = errors.iter().map(|e| e.split(':').next().unwrap()).collect();
        assert_eq!(begins, ["routes[0].routes[0]", "routes[0]", "routes[0]"], "{errors:?}");
    }
}
