//! The table of a start.

use std::collections::BTreeMap;

use stepwatch_wire::Edge;

use super::{LONGEST, StartPart, StartPhase, StartUp, Starting};
use stepwatch_model::time::{Span, Ts};

impl Starting {
    /// The first step was made at `at`, and took `step_time` seconds if it says so.
    pub(crate) fn finish(mut self, now: Ts, at: Ts, step_time: Option<f64>) -> StartUp {
        // When a phase without an end was over is unknown.
        self.declared.retain(|phase, one| *phase == StartPhase::FirstStep || one.ended.is_some());
        let took = step_time.filter(|secs| secs.is_finite() && *secs > 0.0).map(Span::from_secs_f64);
        let began = took.map(|took| at.earlier(took)).filter(|began| *began >= self.first_at);
        if let Some(began) = began.filter(|_| !self.declared.contains_key(&StartPhase::FirstStep)) {
            self.goes_through(StartPhase::FirstStep, Edge::Begin, began, None);
        }
        StartUp {
            parts: self.parts(at),
            greeted_ms: (now - self.since).max(at - self.first_at).0.clamp(0, LONGEST.0),
            ranks: u32::try_from(self.ranks.len()).unwrap_or(u32::MAX),
        }
    }

    /// What is known of the time until `until`.
    pub fn parts(&self, until: Ts) -> Vec<StartPart> {
        let process = self.ranks.values().filter_map(|one| one.process).max();
        let hello = self.ranks.values().map(|one| one.at).max();
        // A container beside the ranks may have begun again since: it had not held them up.
        let containers = self.containers.map(|at| process.map_or(at, |process| at.min(process)));
        let known = [
            (StartPhase::Queue, self.submitted, self.allocated),
            (StartPhase::Image, self.allocated, containers),
            (StartPhase::Launch, self.allocated, process),
            (StartPhase::UntilHello, process, hello),
        ];
        let known = known.into_iter().filter(|(.., ended)| ended.is_some());
        let declared = self.declared.iter().map(|(phase, one)| (*phase, Some(one.began), one.ended));
        let stretches: Vec<(StartPhase, Ts, Ts)> = known
            .chain(declared)
            .filter_map(|(phase, began, ended)| Some((phase, began?, ended.unwrap_or(until).min(until))))
            .collect();
        let first = [self.submitted, self.allocated, process].into_iter().flatten();
        let from = first.chain([self.first_at]).min().unwrap_or(until).min(until);
        let ends = stretches.iter().flat_map(|(_, began, ended)| [*began, *ended]).chain([from, until]);
        let mut edges: Vec<Ts> = ends.filter(|at| (from..=until).contains(at)).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut parts: BTreeMap<StartPhase, StartPart> = BTreeMap::new();
        for (began, ended) in edges.iter().copied().zip(edges.iter().copied().skip(1)) {
            let here = stretches.iter().filter(|(_, first, last)| *first <= began && ended <= *last);
            let phase = here.map(|(phase, ..)| *phase).min().unwrap_or(StartPhase::Unknown);
            let part = parts.entry(phase).or_insert(StartPart { phase, began, ended, ms: 0 });
            part.ended = ended;
            part.ms += (ended - began).0;
        }
        let mut parts: Vec<StartPart> = parts.into_values().collect();
        parts.sort_by_key(|part| (part.began, part.phase));
        parts
    }
}

impl StartUp {
    /// Milliseconds of a phase; `None` if it has no such part.
    pub fn ms_of(&self, phase: StartPhase) -> Option<i64> {
        self.parts.iter().find(|part| part.phase == phase).map(|part| part.ms)
    }
}
