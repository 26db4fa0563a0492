//! The facts of a sentence as members of one JSON object, so that programs need not parse text.

use serde::Serialize;
use serde_json::{Map, Value};
use stepwatch_model::{Clause, Fact, Num};

use super::When;

/// Facts by name.
pub type Facts = Map<String, Value>;

/// The facts of clauses in their order. Spans are in seconds, shares are fractions of one. If facts
/// share a name, the second and later ones get a number: `step`, `step_2`.
pub(crate) fn facts<'a>(clauses: impl IntoIterator<Item = &'a Clause>) -> Facts {
    let mut all = Facts::new();
    for (name, fact) in clauses.into_iter().flat_map(Clause::all_facts) {
        let Some((unit, value)) = member(fact) else { continue };
        let name = if name.ends_with(unit) { name.to_owned() } else { format!("{name}{unit}") };
        let numbered = (2..).map(|n| format!("{name}_{n}"));
        let free = core::iter::once(name.clone()).chain(numbered).find(|name| !all.contains_key(name));
        all.extend(free.map(|name| (name, value)));
    }
    all
}

/// The suffix of a fact's name, and its value. `None` for an empty word.
fn member(fact: &Fact) -> Option<(&'static str, Value)> {
    const SECONDS: &str = "_seconds";
    Some(match fact {
        Fact::Number(n) | Fact::Decimal(n, _) | Fact::Percent(n, _) => ("", json(n)?),
        Fact::Seconds(n) | Fact::Hours(n) => (SECONDS, json(n)?),
        Fact::Span(span) => (SECONDS, json(&Num(span.as_secs_f64()))?),
        Fact::Count(n) | Fact::Step(n) => ("", json(n)?),
        Fact::Counts(all) => ("", json(all)?),
        Fact::Time(at) => ("", json(&When(*at))?),
        Fact::Word(word) if word.is_empty() => return None,
        Fact::Word(word) => ("", json(word)?),
        Fact::Text(text) => ("", json(text)?),
        Fact::Names(names) | Fact::Nodes(names) => ("", json(names)?),
        Fact::Target(target) | Fact::Device(target) => ("", json(&target.to_string())?),
        Fact::Targets(targets) => ("", json(&targets.iter().map(ToString::to_string).collect::<Vec<_>>())?),
        Fact::Observation(observation) => ("", json(observation)?),
        Fact::Evidence(evidence) => ("", json(evidence)?),
        Fact::Remedy(remedy) => ("", json(remedy)?),
        // The facts of the parts are listed instead.
        Fact::Clause(_) | Fact::Clauses(..) => return None,
    })
}

fn json(value: &impl Serialize) -> Option<Value> {
    serde_json::to_value(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stepwatch_model::{Observation, Span, Target, Ts, clause};

    #[test]
    fn facts_are_members_of_their_type() {
        let first = clause!(
            "{now} {usual} {times}x, {cost} % {idle} at {step}, {at}, {rank}{part}{none}",
            now = f64::NAN,
            usual = 0.4,
            times = Fact::decimal(7.75, 0),
            cost = Fact::percent(0.125, 0),
            idle = Span::secs(90),
            step = Fact::Step(40),
            at = Ts(1_795_227_416_980),
            rank = Target::rank(5, Some("n1")),
            part = clause!(" of {stage}", stage = 2),
            none = "",
        );
        let second = clause!(
            "{step} {lost_seconds} {nodes} {seen}",
            step = Fact::Step(41),
            lost_seconds = Fact::Hours(Num(3600.0)),
            nodes = Fact::Nodes(vec!["n1".into(), "n2".into()]),
            seen = &Observation::NoFault { nodes: 2 },
        );
        let expected = json!({
            "now": "NaN", "usual": 0.4, "times": 7.75, "cost": 0.125, "idle_seconds": 90.0, "step": 40,
            "at": "2026-11-21T02:16:56.980Z", "rank": "rank 5 on n1", "stage": 2, "step_2": 41,
            "lost_seconds": 3600.0, "nodes": ["n1", "n2"], "seen": {"no_fault": {"nodes": 2}},
        });
        assert_eq!(Value::Object(facts([&first, &second])), expected);
    }
}
