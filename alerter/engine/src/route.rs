//! Which people an incident is for: the first route whose matchers all hold.

use regex_lite::Regex;

use crate::config::{EngineConfig, Level, Route};
use crate::incident::IncidentRecord;
use crate::time::Span;

/// What a matcher may look at.
pub const LABELS: &[&str] = &["severity", "kind", "run", "node", "signal", "cause"];

/// One matcher in Prometheus' syntax: `label="value"`, `!=`, `=~`, `!~`; regular expressions match the whole value.
#[derive(Debug, Clone)]
pub struct Matcher {
    label: &'static str,
    negated: bool,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Equal(String),
    Regex(Regex),
}

impl Matcher {
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("matcher {text:?}: {why}");
        let at =
            text.find(['=', '!']).ok_or_else(|| bad("expected label=\"value\" with one of = != =~ !~"))?;
        let (label, rest) = (text[..at].trim(), &text[at..]);
        let label = LABELS
            .iter()
            .find(|l| **l == label)
            .ok_or_else(|| bad(&format!("unknown label {label:?}, expected one of {}", LABELS.join(" "))))?;
        let (negated, regex, value) =
            [("=~", false, true), ("!~", true, true), ("!=", true, false), ("=", false, false)]
                .into_iter()
                .find_map(|(op, negated, regex)| Some((negated, regex, rest.strip_prefix(op)?)))
                .ok_or_else(|| bad("expected one of = != =~ !~"))?;
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        let test = if regex {
            Test::Regex(Regex::new(&format!("^(?:{value})$")).map_err(|e| bad(&e.to_string()))?)
        } else {
            Test::Equal(value.to_owned())
        };
        Ok(Self { label, negated, test })
    }

    fn matches(&self, r: &IncidentRecord) -> bool {
        let value = match self.label {
            "severity" => r.severity.as_str(),
            "kind" => r.kind.as_str(),
            "run" => &r.run,
            "node" => r.nodes.first().map_or("", String::as_str),
            "signal" => &r.signal,
            _ => r.cause.as_str(),
        };
        let holds = match &self.test {
            Test::Equal(want) => want == value,
            Test::Regex(re) => re.is_match(value),
        };
        holds != self.negated
    }
}

/// The routing table, parsed once.
#[derive(Debug, Clone, Default)]
pub struct Router {
    routes: Vec<(Vec<Matcher>, Route)>,
}

impl Router {
    /// All mistakes of all routes at once, each naming the route by its place.
    pub fn new(routes: &[Route]) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let mut parsed = Vec::new();
        for (i, route) in routes.iter().enumerate() {
            let mut matchers = Vec::new();
            for m in &route.matchers {
                match Matcher::parse(m) {
                    Ok(m) => matchers.push(m),
                    Err(e) => errors.push(format!("routes[{i}]: {e}")),
                }
            }
            parsed.push((matchers, route.clone()));
        }
        if errors.is_empty() { Ok(Self { routes: parsed }) } else { Err(errors) }
    }

    /// The place of the route that an incident takes; `None` if none wants it.
    pub fn route(&self, r: &IncidentRecord) -> Option<usize> {
        self.routes.iter().position(|(matchers, _)| matchers.iter().all(|m| m.matches(r)))
    }

    /// The levels an incident climbs. An incident that no route wants goes to every receiver: a page must not fall through.
    pub fn levels(&self, config: &EngineConfig, r: &IncidentRecord) -> Vec<Level> {
        let Some((_, route)) = self.route(r).and_then(|i| self.routes.get(i)) else {
            return vec![at_once(config.receivers.clone())];
        };
        let mut levels = Vec::new();
        if !route.notify.is_empty() {
            levels.push(at_once(route.notify.clone()));
        }
        if let Some(policy) = config.policies.iter().find(|p| Some(&p.name) == route.policy.as_ref()) {
            levels.extend(policy.levels.iter().cloned());
        }
        levels
    }
}

fn at_once(notify: Vec<String>) -> Level {
    Level { after: Span::ZERO, notify, repeat: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("severity", "expected label"),
            ("colour=\"red\"", "unknown label \"colour\", expected one of severity kind"),
            ("kind=~\"(\"", "matcher"),
            ("kind!\"x\"", "expected one of"),
        ] {
            assert!(Matcher::parse(text).unwrap_err().contains(part), "{text}");
        }
        let routes = [Route { matchers: vec!["x=1".into(), "kind".into()], policy: None, notify: vec![] }];
        assert_eq!(Router::new(&routes).unwrap_err().len(), 2);
    }
}
