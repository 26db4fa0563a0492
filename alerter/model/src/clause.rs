//! A clause: facts in a form.

mod fact;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use fact::Fact;

/// A form with named placeholders, and the facts that stand in them. [`clause!`](crate::clause!)
/// makes one, and `render` puts it into words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Clause {
    form: Cow<'static, str>,
    facts: Vec<(Cow<'static, str>, Fact)>,
}

impl Clause {
    pub fn new<const N: usize>(form: &'static str, facts: [(&'static str, Fact); N]) -> Self {
        let facts = facts.into_iter().map(|(name, fact)| (name.into(), fact)).collect();
        Self { form: form.into(), facts }
    }

    /// A clause of another program's words, when nothing else is known.
    pub fn words(words: impl Into<String>) -> Self {
        Self::new("{words}", [("words", Fact::text(words))])
    }

    pub(crate) fn form(&self) -> &str {
        &self.form
    }

    pub fn is_empty(&self) -> bool {
        self.form.is_empty()
    }

    /// The facts by name, in the order of the form.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts.iter().map(|(name, fact)| (&**name, fact))
    }

    /// Like [`Self::facts`], but each part is replaced with its own facts.
    pub fn all_facts(&self) -> Vec<(&str, &Fact)> {
        let of_parts = self.facts().map(|(name, fact)| match fact {
            Fact::Clause(part) => part.all_facts(),
            Fact::Clauses(parts, _) => parts.iter().flat_map(Self::all_facts).collect(),
            fact => vec![(name, fact)],
        });
        of_parts.flatten().collect()
    }

    /// The fact of a placeholder. `None` if the clause lacks that fact.
    pub(crate) fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts().find(|(known, _)| *known == name).map(|(_, fact)| fact)
    }

    /// Whether every placeholder of a form is a plain name, because the fact decides how it is
    /// shown.
    pub const fn is_form(form: &str) -> bool {
        let bytes = form.as_bytes();
        let (mut at, mut open) = (0, false);
        while at < bytes.len() {
            match bytes[at] {
                b'{' | b'}' if !open && at + 1 < bytes.len() && bytes[at + 1] == bytes[at] => at += 1,
                b'{' if !open => open = true,
                b'}' if open => open = false,
                b'{' | b'}' => return false,
                byte if open && byte != b'_' && !byte.is_ascii_alphanumeric() => return false,
                _ => {}
            }
            at += 1;
        }
        !open
    }
}

/// A [`Clause`]: `clause!("loss is {now}, {before} before", now = value, before = expected)`. A
/// value whose variable has the name of the placeholder can be left out.
///
/// ```
/// let usual = 2.5;
/// let clause = stepwatch_model::clause!("loss is {now}, {usual} before", now = 3.0, usual);
/// assert_eq!(clause.to_string(), "loss is 3, 2.5 before");
/// ```
///
/// The compiler refuses a placeholder without a value, also where a variable has its name:
///
/// ```compile_fail
/// let now = 3.0;
/// stepwatch_model::clause!("loss is {now}");
/// ```
///
/// a value without a placeholder:
///
/// ```compile_fail
/// stepwatch_model::clause!("loss is {now}", now = 3.0, usual = 2.5);
/// ```
///
/// and a placeholder with a format specification, because the fact decides how it is shown:
///
/// ```compile_fail
/// stepwatch_model::clause!("loss is {now:.1}", now = 3.0);
/// ```
#[macro_export]
macro_rules! clause {
    ($form:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {
        $crate::Clause::new(
            {
                // The result of `concat!` captures no variables: each placeholder must be named.
                let _ = || {
                    let _ = ::core::format_args!(::core::concat!($form) $(, $name = "")*);
                };
                const { ::core::assert!($crate::Clause::is_form($form), "a placeholder is no more than a name") };
                $form
            },
            [$((::core::stringify!($name), $crate::Fact::from($crate::clause!(@ $name $(= $value)?)))),*],
        )
    };
    (@ $name:ident = $value:expr) => { $value };
    (@ $name:ident) => { $name };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_placeholders_that_are_names() {
        for good in ["", "loss is {now}", "{a}{b_2}", "{{a}} is {a}", "100 %"] {
            assert!(Clause::is_form(good), "{good}");
        }
        for bad in ["{a", "a}", "{a:.1}", "{a b}", "{ a}", "{{a}"] {
            assert!(!Clause::is_form(bad), "{bad}");
        }
    }

    #[test]
    fn facts_are_found_by_name() {
        let times = 7.5;
        let c = clause!("{now} is {times}x {usual}", now = 3.0, times, usual = 0.4);
        assert_eq!(c.fact("times"), Some(&Fact::from(7.5)));
        assert_eq!(c.fact("before"), None);
        assert_eq!(c.facts().map(|(name, _)| name).collect::<Vec<_>>(), ["now", "times", "usual"]);
    }
}
