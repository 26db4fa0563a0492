//! A sentence as data, so that no code has to parse it: a statement, its circumstances, and the
//! targets that it names. Statement and circumstances are facts in a form.

use serde::{Deserialize, Serialize};

use crate::clause;
use crate::clause::Clause;
use crate::evidence::Observation;
use crate::target::Target;

/// A statement with its circumstances, and the targets that it names. `render` puts it into words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sentence {
    statement: Clause,
    circumstances: Vec<Clause>,
    names: Vec<Target>,
    /// Whether only this lesser fault remains of a page that became a ticket.
    left: bool,
}

impl Sentence {
    pub fn statement(&self) -> &Clause {
        &self.statement
    }

    pub fn circumstances(&self) -> &[Clause] {
        &self.circumstances
    }

    pub fn is_empty(&self) -> bool {
        self.statement.is_empty() && self.circumstances.is_empty()
    }

    /// Whether the sentence is marked as the remainder of a page.
    pub fn is_left(&self) -> bool {
        self.left
    }

    /// The statement, and then the circumstances.
    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        core::iter::once(&self.statement).chain(&self.circumstances)
    }

    /// Adds a circumstance.
    pub fn add(&mut self, circumstance: Clause) {
        self.circumstances.push(circumstance);
    }

    /// Adds a circumstance, and returns the sentence.
    pub fn and(mut self, circumstance: Clause) -> Self {
        self.add(circumstance);
        self
    }

    /// Adds a circumstance if there is one, and returns the sentence.
    pub fn and_perhaps(mut self, circumstance: Option<Clause>) -> Self {
        self.circumstances.extend(circumstance);
        self
    }

    /// Notes that the sentence names a target.
    pub fn naming(mut self, target: Target) -> Self {
        self.name(target);
        self
    }

    pub fn name(&mut self, target: Target) {
        if !self.names(&target) {
            self.names.push(target);
        }
    }

    /// Whether the sentence names the target at least as precisely as the target itself.
    pub fn names(&self, target: &Target) -> bool {
        let local = |t: &Target| matches!(t, Target::Rank { rank: Some(_), local_rank: Some(_), .. });
        let says_less = |named: &Target| local(target) && !local(named);
        self.names.iter().any(|named| named.is_same_device(target) && !says_less(named))
    }

    /// Marks the sentence as the remainder of a page.
    pub fn left(&self) -> Self {
        Self { left: true, ..self.clone() }
    }

    /// The sentence without that mark; `None` if it is not marked.
    pub fn what_is_left(&self) -> Option<Self> {
        self.left.then(|| Self { left: false, ..self.clone() })
    }

    /// A sentence that begins with an observation about several of its kind, followed by this one.
    pub fn under(&self, observation: &Observation) -> Self {
        let (statement, _) = observation.parts();
        Self { statement, circumstances: self.clauses().cloned().collect(), ..Self::default() }
    }

    /// Puts leading words before the statement, of which they become a part.
    pub fn after(&self, before: Clause) -> Self {
        let what = self.statement.clone();
        let statement = if self.left {
            clause!("{before}what is left: {what}", before, what)
        } else {
            clause!("{before}{what}", before, what)
        };
        Self { statement, left: false, ..self.clone() }
    }
}

impl From<Clause> for Sentence {
    fn from(statement: Clause) -> Self {
        Self { statement, ..Self::default() }
    }
}

/// The first part of an observation is the statement, the rest a circumstance.
impl From<&Observation> for Sentence {
    fn from(observation: &Observation) -> Self {
        let (what, rest) = observation.parts();
        Self::from(what).and_perhaps(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::{decode, encode};
    use crate::{Fact, Num, Span, Ts};

    #[test]
    fn it_knows_its_parts_whatever_stands_before_it() {
        let down = clause!("link {link} of {node} is down: a; b", link = "p1", node = "n1");
        let s = Sentence::from(down).and(clause!("no run uses the node"));
        assert_eq!(s, "link p1 of n1 is down: a; b; no run uses the node");
        assert_eq!(s.what(), "link p1 of n1 is down: a; b");
        let left = s.left();
        assert_eq!(left.what(), "what is left: link p1 of n1 is down: a; b");
        let again = left.what_is_left().unwrap_or_default();
        assert_eq!((&again, s.what_is_left()), (&s, None));
        assert_eq!(again.after(clause!("of x: ")).what(), "of x: link p1 of n1 is down: a; b");
        assert_eq!(left.after(clause!("of x: ")).what(), "of x: what is left: link p1 of n1 is down: a; b");
    }

    #[test]
    fn it_knows_whom_it_names() {
        let gpu = |index| Target::Gpu { node: "n1".into(), index, uuid: "GPU-2f".into(), pci: String::new() };
        let s = Sentence::from(clause!("x")).naming(gpu(Some(3)));
        assert!(s.names(&gpu(None)) && !s.names(&Target::node("n1")));
    }

    fn of_all_facts() -> Sentence {
        let gpu =
            Target::Gpu { node: "n1".into(), index: Some(3), uuid: "GPU-2f".into(), pci: String::new() };
        let lost = Observation::NoFault { nodes: 8 };
        Sentence::from(clause!(
            "{now} {inf} {rest} {share} {n} {step} {since} {at} {word} {text}",
            now = f64::NAN,
            inf = Num(f64::INFINITY),
            rest = Fact::decimal(1.25, 1),
            share = Fact::percent(0.125, 1),
            n = 3_usize,
            step = Fact::Step(40),
            since = Span::secs(-5),
            at = Ts(1_795_227_416_980),
            word = "steps",
            text = "a {text}".to_owned(),
        ))
        .and(clause!(
            "{names} {gpu} {device} {seen}{part}{none}",
            names = vec!["a".to_owned(), "b".to_owned()],
            gpu = gpu.clone(),
            device = Fact::Device(gpu.clone()),
            seen = &lost,
            part = clause!(" of {stage}", stage = 2),
            none = None,
        ))
        .naming(gpu)
        .left()
    }

    #[test]
    fn it_survives_being_stored_and_sent() {
        let s = of_all_facts();
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<Sentence>(&json).unwrap(), s, "{json}");
        assert_eq!(decode::<Sentence>(&encode(&s).unwrap()).unwrap(), s);
        assert_eq!(
            s,
            "what is left: NaN infinity 1.2 12.5 3 40 0s 2026-11-21T02:16:56Z steps a {text}; a, b node n1, \
             GPU 3 (GPU-2f) GPU 3 (GPU-2f) none of 8 nodes reported a fault in the ten minutes before of 2"
        );
    }

    #[test]
    fn its_facts_are_those_of_its_parts() {
        let s = of_all_facts();
        let names: Vec<&str> = s.clauses().flat_map(Clause::all_facts).map(|(name, _)| name).collect();
        let all = "now inf rest share n step since at word text names gpu device seen stage";
        assert_eq!(names.join(" "), all);
    }
}
