//! A sentence that keeps its parts, so that no code has to parse it.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::evidence::Observation;
use crate::target::Target;

/// A statement, followed by its circumstances, as people read them; and the targets that it names.
///
/// It derefs to its text. [`what`](Self::what) and [`names`](Self::names) give its parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sentence {
    text: String,
    /// Bytes of a leading text such as [`LEFT`], which is no part of the statement.
    lead: u32,
    /// Bytes up to the circumstances.
    what: u32,
    names: Vec<Target>,
}

/// Leading text of the summary of a page that fell to a ticket: only a lesser fault is left.
const LEFT: &str = "what is left: ";

impl Sentence {
    /// The statement, without the circumstances.
    pub fn what(&self) -> &str {
        self.text.get(..self.what as usize).unwrap_or(&self.text)
    }

    /// Adds a circumstance.
    pub fn add(&mut self, circumstance: impl fmt::Display) {
        self.text = format!("{}; {circumstance}", self.text);
    }

    /// The same with a circumstance.
    pub fn and(mut self, circumstance: impl fmt::Display) -> Self {
        self.add(circumstance);
        self
    }

    /// The same with a circumstance, if there is one.
    pub fn and_perhaps(self, circumstance: Option<impl fmt::Display>) -> Self {
        match circumstance {
            Some(circumstance) => self.and(circumstance),
            None => self,
        }
    }

    /// Takes note that it names a target.
    pub fn naming(mut self, target: Target) -> Self {
        self.name(target);
        self
    }

    pub fn name(&mut self, target: Target) {
        if !self.names(&target) {
            self.names.push(target);
        }
    }

    /// Whether it names the target at least as precisely as the target itself.
    pub fn names(&self, target: &Target) -> bool {
        let local = |t: &Target| matches!(t, Target::Rank { rank: Some(_), local_rank: Some(_), .. });
        let says_less = |named: &Target| local(target) && !local(named);
        self.names.iter().any(|named| named.is_same_device(target) && !says_less(named))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same, marked as what is left of a page.
    pub fn left(&self) -> Self {
        Self { lead: LEFT.len() as u32, ..self.after(LEFT) }
    }

    /// The sentence without that mark; `None` if it has none.
    pub fn what_is_left(&self) -> Option<Self> {
        let text = self.text.get(self.lead as usize..).filter(|_| self.lead > 0)?;
        let what = self.what.saturating_sub(self.lead);
        Some(Self { text: text.to_owned(), lead: 0, what, names: self.names.clone() })
    }

    /// The same after a leading text, which becomes part of the statement.
    pub fn after(&self, words: &str) -> Self {
        Self {
            text: format!("{words}{}", self.text),
            lead: 0,
            what: self.what + words.len() as u32,
            names: self.names.clone(),
        }
    }
}

impl From<String> for Sentence {
    fn from(text: String) -> Self {
        Self { what: text.len() as u32, text, lead: 0, names: Vec::new() }
    }
}

impl From<&str> for Sentence {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// The first part of the text of an observation, and then the rest of it.
impl From<&Observation> for Sentence {
    fn from(observation: &Observation) -> Self {
        let (what, rest) = observation.parts();
        Self::from(what).and_perhaps(rest)
    }
}

impl Deref for Sentence {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq<str> for Sentence {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for Sentence {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl PartialEq<String> for Sentence {
    fn eq(&self, other: &String) -> bool {
        self.text == *other
    }
}

impl From<Sentence> for String {
    fn from(sentence: Sentence) -> Self {
        sentence.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_its_parts_whatever_stands_before_it() {
        let s = Sentence::from("link p1 of n1 is down: a; b").and("no run uses the node");
        assert_eq!(s, "link p1 of n1 is down: a; b; no run uses the node");
        assert_eq!(s.what(), "link p1 of n1 is down: a; b");
        let left = s.left();
        assert_eq!(left.what(), "what is left: link p1 of n1 is down: a; b");
        let again = left.what_is_left().unwrap_or_default();
        assert_eq!((&again, s.what_is_left()), (&s, None));
        assert_eq!(again.after("of x: ").what(), "of x: link p1 of n1 is down: a; b");
    }

    #[test]
    fn it_knows_whom_it_names() {
        let gpu = |index| Target::Gpu { node: "n1".into(), index, uuid: "GPU-2f".into(), pci: String::new() };
        let s = Sentence::from("x").naming(gpu(Some(3)));
        assert!(s.names(&gpu(None)) && !s.names(&Target::node("n1")));
    }
}
