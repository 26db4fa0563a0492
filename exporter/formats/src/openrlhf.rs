//! OpenRLHF: `✨ Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07, 'reward': 0.5, …}`, one Python dict a step.

use stepwatch_wire::Value;
use stepwatch_wire::names::metric;

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, python, tags};

const KEYS: &[(&str, &str)] = &[
    ("policy_loss", metric::LOSS),
    ("actor_lr", metric::LR),
    ("actor_grad_norm", metric::GRAD_NORM),
    ("timing/step_total", metric::STEP_TIME),
];

#[derive(Debug, Default)]
pub(crate) struct OpenRlhf;

impl Format for OpenRlhf {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let read = || {
            let (_, rest) = line.text.split_once("Global step ")?;
            let (step, rest) = number::integer(rest)?;
            let at = rest.find(": {")?;
            // Some trainers name the part of the step between the number and the colon: `12 [rollout-partial]`.
            let named = rest[..at].trim();
            let fits = named.is_empty() || (named.starts_with('[') && named.ends_with(']'));
            let (dict, _) = python::dict(&rest[at + 2..])?;
            fits.then_some((step, dict))
        };
        let Some((step, dict)) = read() else { return Outcome::Unmatched };
        let mut e = line.step(step);
        for (key, v) in &dict {
            let number = match v {
                Value::Number(n) => Some(*n),
                Value::Text(t) => number::lex(t).filter(|n| n.rest.is_empty()).map(|n| n.value),
                _ => None,
            };
            let Some(n) = number else { continue };
            let ours = KEYS.iter().find(|(k, _)| k == key).map(|(_, name)| (*name, 1.0));
            let (name, divisor) = ours.or_else(|| tags::canonical(key)).unwrap_or((key, 1.0));
            out.resolution(name, n / divisor);
            out.value(&mut e, name, n / divisor);
        }
        if e.m.is_empty() {
            return Outcome::Unmatched;
        }
        out.push(e);
        Outcome::Matched
    }
}

#[cfg(test)]
mod tests {
    use crate::Reader;
    use stepwatch_wire::{Event, Kind};

    fn read(line: &str) -> Vec<Event> {
        let mut out = Vec::new();
        Reader::new(Some("openrlhf")).unwrap().line(line, &mut out);
        out
    }

    #[test]
    fn steps() {
        let e = read(concat!(
            "(PPOTrainer pid=1234) ✨ Global step 12: {'policy_loss': 0.0123, 'actor_lr': 5e-07, 'actor_grad_norm': nan, 'reward': 0.5,",
            " 'response_length': 512.0, 'timing/step_total': 31.5, 'note': 'x'}"
        ));
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(12)));
        let m = &e[0].m;
        assert_eq!(
            (m.get("loss"), m.get("lr"), m.get("reward"), m.get("step_time"), m.get("response_length")),
            (Some(0.0123), Some(5e-7), Some(0.5), Some(31.5), Some(512.0))
        );
        assert!(m.get("grad_norm").unwrap().is_nan() && m.get("note").is_none());
        assert_eq!(read("✨ Global step 3 [rollout-partial]: {'policy_loss': 0.5}")[0].step, Some(3));
    }

    #[test]
    fn what_is_no_step() {
        for text in
            ["Global step 3", "Global step 3: {}", "Global step x: {'a': 1}", "Global step 3 and: {'a': 1}"]
        {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}
