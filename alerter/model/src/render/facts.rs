//! The text of facts, clauses and sentences.

use core::fmt;

use crate::clause::Clause;
use crate::clause::Fact;
use crate::number::Num;
use crate::sentence::Sentence;

use super::{chain, joined, names};

/// The leading words of the summary after a page became a ticket: only a lesser fault remains.
const LEFT: &str = "what is left: ";

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Decimal(Num(value), digits) => write!(f, "{value:.0$}", usize::from(*digits)),
            Self::Percent(Num(share), digits) => {
                write!(f, "{:.1$}", 100.0 * share, usize::from(*digits))
            }
            Self::Count(n) | Self::Step(n) => n.fmt(f),
            Self::Counts(all) => f.write_str(&joined(all, ", ")),
            Self::Seconds(Num(s)) => f.write_str(&seconds(*s)),
            Self::Hours(Num(s)) => f.write_str(&hours(*s)),
            Self::Span(span) => span.fmt(f),
            Self::Time(at) => at.fmt(f),
            Self::Word(word) => f.write_str(word),
            Self::Text(text) => f.write_str(text),
            Self::Names(names) => f.write_str(&names.join(", ")),
            Self::Nodes(nodes) => f.write_str(&names(nodes)),
            Self::Target(target) => target.fmt(f),
            Self::Targets(targets) => f.write_str(&joined(targets, ", ")),
            Self::Device(target) => f.write_str(&target.name()),
            Self::Observation(observation) => observation.fmt(f),
            Self::Evidence(evidence) => f.write_str(&chain(evidence)),
            Self::Remedy(remedy) => remedy.fmt(f),
            Self::Clause(clause) => clause.fmt(f),
            Self::Clauses(clauses, between) => f.write_str(&joined(clauses, between)),
        }
    }
}

fn seconds(s: f64) -> String {
    match s {
        _ if s < 0.1 => format!("{:.0} ms", 1000.0 * s),
        _ if s < 10.0 => format!("{s:.2} s"),
        _ => format!("{s:.0} s"),
    }
}

fn hours(s: f64) -> String {
    match s {
        _ if s < 120.0 => format!("{s:.0} s"),
        _ if s < 7200.0 => format!("{:.0} minutes", s / 60.0),
        _ => format!("{:.1} hours", s / 3600.0),
    }
}

/// The form with its facts filled in. A stored clause may lack a fact or have an unclosed brace;
/// that part of the form is shown unchanged.
impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.form();
        while let Some((before, brace)) = rest.find(['{', '}']).and_then(|at| rest.split_at_checked(at)) {
            f.write_str(before)?;
            let named = brace.strip_prefix('{').and_then(|open| open.split_once('}'));
            let known = named.and_then(|(name, after)| Some((self.fact(name)?, after)));
            rest = if let Some((doubled, after)) =
                DOUBLED.iter().find_map(|d| Some((d, brace.strip_prefix(d)?)))
            {
                f.write_str(&doubled[..1])?;
                after
            } else if let Some((fact, after)) = known {
                fact.fmt(f)?;
                after
            } else {
                f.write_str(&brace[..1])?;
                &brace[1..]
            };
        }
        f.write_str(rest)
    }
}

/// Escaped braces of a form, which are not placeholders.
const DOUBLED: [&str; 2] = ["{{", "}}"];

impl Sentence {
    /// The statement, without the circumstances.
    pub fn what(&self) -> String {
        let lead = if self.is_left() { LEFT } else { "" };
        format!("{lead}{}", self.statement())
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        self.circumstances().iter().try_for_each(|circumstance| write!(f, "; {circumstance}"))
    }
}

impl PartialEq<&str> for Sentence {
    fn eq(&self, other: &&str) -> bool {
        format!("{self}") == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clause;
    use proptest::prelude::*;

    #[test]
    fn facts_stand_in_their_form() {
        let c = clause!(
            "{{{now}}} is {times}x{lasts}",
            now = 27.345,
            times = Fact::decimal(7.75, 1),
            lasts = None
        );
        assert_eq!(c.to_string(), "{27.34} is 7.8x");
        let lasts = Fact::Seconds(Num(0.0421));
        assert_eq!(clause!("{lasts}", lasts).to_string(), "42 ms");
        assert_eq!(clause!("{lost}", lost = Fact::Hours(Num(8100.0))).to_string(), "2.2 hours");
    }

    fn stored(form: &str) -> Clause {
        let json = serde_json::json!({"form": form, "facts": [["now", {"number": 3.1}]]});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_a_stored_form_lacks_is_shown_as_its_placeholder() {
        for (form, words) in [
            ("loss is {now}, {before} before", "loss is 3.1, {before} before"),
            ("{now} } {", "3.1 } {"),
            ("{now:.1}{{now}}", "{now:.1}{now}"),
            ("{é{now}", "{é3.1"),
        ] {
            assert_eq!(stored(form).to_string(), words);
        }
    }

    proptest! {
        #[test]
        fn any_form_has_words(form in "[{}a-c é]{0,24}", name in "[a-cé]{0,2}", number: f64, digits: u8) {
            let facts = serde_json::json!([
                [name, {"number": 1}], ["a", {"decimal": [number, digits]}], ["a b", {"time": i64::MAX}],
                ["b", {"span": i64::MIN}], ["c", {"clause": {"form": form, "facts": []}}],
            ]);
            let c: Clause = serde_json::from_value(serde_json::json!({"form": form, "facts": facts})).unwrap();
            let s = Sentence::from(c.clone()).and(c);
            prop_assert!(s.to_string().len() >= s.what().len());
        }

        #[test]
        fn a_form_of_ours_is_shown_whole(word in "[a-z]{1,8}", number: f64) {
            let c = clause!("{word} is {number}", word = word.clone(), number);
            prop_assert_eq!(c.to_string(), format!("{word} is {}", crate::number(number)));
        }
    }
}
