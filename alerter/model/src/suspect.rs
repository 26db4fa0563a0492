//! Suspects: where to look first, and the evidence.

use serde::{Deserialize, Serialize, Serializer};

use crate::evidence::{Evidence, Observation};
use crate::number::Num;
use crate::target::Target;
use crate::time::Ts;

/// A target to look at first, with the evidence against it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Suspect {
    pub target: Target,
    pub evidence: Vec<Evidence>,
}

impl Suspect {
    pub fn new(target: Target, observation: Observation) -> Self {
        Self { target, evidence: vec![observation.into()] }
    }

    /// Whether this suspect has all evidence of `other`, in the same order and without a gap.
    pub fn says(&self, other: &Self) -> bool {
        let (had, new) = (&self.evidence, &other.evidence);
        let [first, .., last] = new.as_slice() else {
            return new.first().is_none_or(|one| had.iter().any(|had| one.is_known_from(had)));
        };
        had.windows(new.len()).any(|window| {
            let middle = 1..new.len() - 1;
            let same = |(a, b): (&Evidence, &Evidence)| a.is_like(b);
            window.iter().zip(new).enumerate().all(|(i, (had, one))| match i {
                0 => first.is_known_from(had) && one.score.is_none() == had.score.is_none(),
                i if middle.contains(&i) => same((one, had)),
                _ => last.is_known_from(had) && last.of == had.of,
            })
        })
    }

    /// Sets the onset and the strength of all evidence.
    pub fn weighed(mut self, since: Option<Ts>, strength: Option<Num>) -> Self {
        for e in &mut self.evidence {
            (e.since, e.strength) = (since, strength);
        }
        self
    }

    /// Sets the score on the last piece of evidence.
    pub fn scored(mut self, score: f64) -> Self {
        if let Some(last) = self.evidence.last_mut() {
            last.score = Some(Num(score));
        }
        self
    }

    /// Adds the evidence against another target of the same place, unless it is already known.
    pub fn join(&mut self, other: Self) {
        let Self { target, evidence } = other;
        let own = |had: &&Evidence| had.of.is_none();
        let known = |e: &Evidence| self.evidence.iter().filter(own).any(|had| e.is_known_from(had));
        if evidence.iter().all(known) {
            return;
        }
        let of = (target != self.target).then_some(target);
        self.evidence.extend(evidence.into_iter().map(|e| Evidence { of: e.of.or_else(|| of.clone()), ..e }));
    }

    /// The observations of its evidence, without their weights.
    pub fn observations(&self) -> impl Iterator<Item = &Observation> {
        self.evidence.iter().map(|e| &e.observation)
    }
}

/// The human-readable form has the words; the engine's state has only the fields.
impl Serialize for Suspect {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            target: &'a Target,
            what: String,
            why: String,
            evidence: &'a [Evidence],
        }
        #[derive(Serialize)]
        struct Stored<'a> {
            target: &'a Target,
            evidence: &'a [Evidence],
        }
        let Self { target, evidence } = self;
        if s.is_human_readable() {
            Shown { target, what: self.what(), why: self.why(), evidence }.serialize(s)
        } else {
            Stored { target, evidence }.serialize(s)
        }
    }
}
