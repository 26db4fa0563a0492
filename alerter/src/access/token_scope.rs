//! The runs and teams to which a token is limited.
//!
//! All limits must hold, as with matchers: a token of `runs: [llama-*]` and `teams: [research]` is
//! limited to runs of that name that belong to that team. A token that names runs or teams does not
//! reach what belongs to none.
//!
//! A silence is checked before it is created: its matchers must show that it suppresses nothing
//! beyond the limits. Whether one regular expression lies within another is decided for the forms
//! that people write (names, `a|b`, `prefix.*`) and denied for all other forms.

use core::fmt;

use serde::{Deserialize, Serialize};
use stepwatch_respond::external::LabelSet;
use stepwatch_respond::matcher::{Labels, Matcher, Op};

/// The most characters of a pattern.
const MAX_PATTERN: usize = 256;

/// A name pattern in which `*` matches any characters and `?` one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Glob(String);

/// The limits of a token. A token without limits applies to everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenScope {
    pub runs: Vec<Glob>,
    pub teams: Vec<Glob>,
}

impl Glob {
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut p, mut n) = (0, 0);
        // The position of the last star, and the start of the characters that it leaves over.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
                _ => {
                    let Some((at, taken)) = star else { return false };
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }

    /// The common prefix of all names that the pattern matches.
    pub fn prefix(&self) -> &str {
        &self.0[..self.0.find(['*', '?']).unwrap_or(self.0.len())]
    }

    fn is_everything(&self) -> bool {
        self.0.chars().all(|c| c == '*')
    }

    /// The pattern as a regular expression for the whole name.
    fn regex(&self) -> String {
        let mut out = String::new();
        for c in self.0.chars() {
            match c {
                '*' => out.push_str(".*"),
                '?' => out.push('.'),
                c if c.is_ascii_punctuation() && !"-_/:".contains(c) => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
        out
    }

    /// Whether the pattern matches everything that a part of a regular expression matches.
    fn covers(&self, part: &Part<'_>) -> bool {
        if self.is_everything() || self.regex() == part.text {
            return true;
        }
        match &part.begins {
            (literal, true) => self.matches(literal),
            (literal, false) => self
                .0
                .strip_suffix('*')
                .is_some_and(|prefix| !prefix.contains(['*', '?']) && literal.starts_with(prefix)),
        }
    }
}

impl TryFrom<String> for Glob {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() || text.chars().count() > MAX_PATTERN || text.chars().any(char::is_control) {
            return Err(format!(
                "{text:?} must be a name of 1 to {MAX_PATTERN} characters, in which * stands for any"
            ));
        }
        Ok(Self(text))
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> Self {
        glob.0
    }
}

impl TokenScope {
    pub fn is_everything(&self) -> bool {
        self.limits().into_iter().all(|(_, globs)| unlimited(globs))
    }

    fn limits(&self) -> [(&'static str, &[Glob]); 2] {
        [("run", &self.runs), ("team", &self.teams)]
    }

    /// Whether these labels are within the limits.
    pub fn admits(&self, labels: &Labels) -> bool {
        let value = |label: &str| labels.get(label).map_or("", String::as_str);
        self.limits()
            .into_iter()
            .all(|(label, globs)| unlimited(globs) || globs.iter().any(|g| g.matches(value(label))))
    }

    /// The labels that the token limits, out of `labels`.
    pub fn limits_of(&self, labels: &Labels) -> LabelSet {
        let limited = self.limits().into_iter().filter(|(_, globs)| !unlimited(globs));
        let pairs = limited.filter_map(|(name, _)| Some((name, labels.get(name)?)));
        pairs.map(|(name, value)| (Box::from(name), Box::from(value.as_str()))).collect()
    }

    /// Whether every match of `matchers` is within these limits; otherwise an error that lists the
    /// matchers that are missing.
    pub fn holds(&self, matchers: &[Matcher]) -> Result<(), String> {
        for (label, globs) in self.limits() {
            if unlimited(globs) || matchers.iter().any(|m| m.label() == label && within(m, globs)) {
                continue;
            }
            let regex = globs.iter().map(Glob::regex).collect::<Vec<_>>().join("|");
            return Err(format!(
                "this token is limited to {self}, and that could reach others: add a matcher on {label} within it, as in {label}=~\"{regex}\""
            ));
        }
        Ok(())
    }

    /// A prefix of the name of every run within these limits, one for each pattern; empty if a
    /// pattern has none.
    pub fn run_prefixes(&self) -> Vec<String> {
        let prefixes: Vec<_> = self.runs.iter().map(|glob| glob.prefix().to_owned()).collect();
        if prefixes.iter().any(String::is_empty) { Vec::new() } else { prefixes }
    }
}

impl fmt::Display for TokenScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for (label, globs) in self.limits().into_iter().filter(|(_, globs)| !unlimited(globs)) {
            let names = globs.iter().map(|g| g.0.as_str()).collect::<Vec<_>>().join(", ");
            words.push(format!("{label}s {names}"));
        }
        f.write_str(&if words.is_empty() { "nothing".to_owned() } else { words.join(" of ") })
    }
}

fn unlimited(globs: &[Glob]) -> bool {
    globs.is_empty() || globs.iter().any(Glob::is_everything)
}

fn within(matcher: &Matcher, globs: &[Glob]) -> bool {
    match matcher.op() {
        Op::Equal => globs.iter().any(|g| g.matches(matcher.value())),
        Op::Regex => parts(matcher.value())
            .is_some_and(|parts| parts.iter().all(|part| globs.iter().any(|g| g.covers(part)))),
        Op::NotEqual | Op::NotRegex => false,
    }
}

/// One alternative of a regular expression.
#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    text: &'a str,
    /// The literal prefix of all matches, and whether the prefix is the only match.
    begins: (String, bool),
}

/// The alternatives of a pattern. `None` if it has groups or classes, which may hide alternatives.
fn parts(pattern: &str) -> Option<Vec<Part<'_>>> {
    if pattern.contains(['(', ')', '[', ']']) {
        return None;
    }
    let (mut parts, mut from, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '|' => {
                parts.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&pattern[from..]);
    Some(parts.into_iter().map(|text| Part { text, begins: begins(text) }).collect())
}

fn begins(text: &str) -> (String, bool) {
    let mut literal = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // The last character may be repeated or absent, so it is not part of the prefix.
            '*' | '?' | '{' => {
                literal.pop();
                return (literal, false);
            }
            '\\' => match chars.next() {
                Some(c) if c.is_ascii_punctuation() => literal.push(c),
                _ => return (literal, false),
            },
            '.' | '+' | '^' | '$' => return (literal, false),
            c => literal.push(c),
        }
    }
    (literal, true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        Glob::try_from(text.to_owned()).unwrap()
    }

    fn token_scope(runs: &[&str], teams: &[&str]) -> TokenScope {
        let globs = |list: &[&str]| list.iter().map(|t| glob(t)).collect();
        TokenScope { runs: globs(runs), teams: globs(teams) }
    }

    fn holds(token_scope: &TokenScope, matchers: &[&str]) -> bool {
        let matchers: Vec<_> = matchers.iter().map(|m| Matcher::parse(m).unwrap()).collect();
        token_scope.holds(&matchers).is_ok()
    }

    #[test]
    fn globs() {
        for (pattern, name, want) in [
            ("llama-*", "llama-70b", true),
            ("llama-*", "llama-", true),
            ("llama-*", "llama", false),
            ("llama-*", "xllama-70b", false),
            ("*-prod", "a-prod", true),
            ("*-prod", "a-prod-b", false),
            ("a*b*c", "axxbyybzc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("llama.70b", "llama-70b", false),
            ("Llama", "llama", false),
        ] {
            assert_eq!(glob(pattern).matches(name), want, "{pattern} {name}");
        }
        for bad in ["", "a\nb"] {
            assert!(Glob::try_from(bad.to_owned()).is_err());
        }
    }

    #[test]
    fn all_limits_must_hold() {
        let of = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let both = token_scope(&["llama-*"], &["research"]);
        assert!(both.admits(&of(&[("run", "llama-1"), ("team", "research")])));
        assert!(!both.admits(&of(&[("run", "llama-1"), ("team", "infra")])));
        assert!(!both.admits(&of(&[("run", "llama-1")])), "nobody's");
        assert!(!both.admits(&of(&[("team", "research")])), "of no run");
        assert!(token_scope(&[], &[]).admits(&of(&[])) && token_scope(&["*"], &[]).admits(&of(&[])));
        assert_eq!(both.to_string(), "runs llama-* of teams research");
    }

    #[test]
    fn a_silence_must_plainly_stay_within_the_limits() {
        let llama = token_scope(&["llama-*", "gpt"], &[]);
        for good in [
            vec!["run=llama-70b"],
            vec!["run=gpt", "kind=hang"],
            vec!["run=~\"llama-.*\""],
            vec!["run=~\"llama-7.*|llama-8[b]\"", "run=llama-7"],
            vec!["run=~\"llama-70b|gpt\""],
            vec!["run=~\"llama-7+\""],
            vec!["run=~\"llama\\-x\""],
        ] {
            assert!(holds(&llama, &good), "{good:?}");
        }
        for bad in [
            vec![],
            vec!["kind=hang"],
            vec!["run=mistral"],
            vec!["run!=mistral"],
            vec!["run=~\".*\""],
            vec!["run=~\"llama.*\""],
            vec!["run=~\"llama-*\""],
            vec!["run=~\"llama-?\""],
            vec!["run=~\"llama-{0,1}x\""],
            vec!["run=~\"llama-.*|mistral\""],
            vec!["run=~\"llama-.*|.*\""],
            vec!["run=~\"llama-(a|b)\""],
            vec!["run=~\"(?i)llama-.*\""],
            vec!["run=~\"gpt.*\""],
            vec!["run!~\"mistral\""],
            vec!["run=\"\""],
            vec!["run=~\"\""],
            vec!["team=~\"llama-.*\""],
        ] {
            assert!(!holds(&llama, &bad), "{bad:?}");
        }
        let odd = token_scope(&["*-prod", "a*z"], &[]);
        assert!(holds(&odd, &["run=~\".*-prod|a.*z\""]), "what the error suggests");
        assert!(!holds(&odd, &["run=~\".*prod\""]));
        let team = token_scope(&["llama-*"], &["research", "infra"]);
        assert!(holds(&team, &["run=llama-1", "team=~\"research|infra\""]));
        assert!(!holds(&team, &["run=llama-1"]));
        let refusal = token_scope(&["llama-*"], &[]).holds(&[]).unwrap_err();
        assert!(refusal.contains("runs llama-*") && refusal.ends_with(r#"run=~"llama-.*""#), "{refusal}");
    }

    proptest! {
        /// Accepted matchers match nothing beyond the limits.
        #[test]
        fn nothing_beyond_the_limits_is_reached(
            patterns in prop::collection::vec("[ab*?]{1,4}", 1..3),
            regex in "[ab.|+*?\\\\{}0,1^$-]{0,8}",
            name in "[ab]{0,5}",
        ) {
            let globs: Vec<_> = patterns.iter().map(|p| glob(p)).collect();
            if let Ok(matcher) = Matcher::new("run", Op::Regex, regex)
                && within(&matcher, &globs) && matcher.holds_of(&name)
            {
                prop_assert!(globs.iter().any(|g| g.matches(&name)), "{matcher} {patterns:?} {name}");
            }
        }

        /// The matcher that an error suggests is accepted, and is equivalent.
        #[test]
        fn what_is_suggested_is_right(patterns in prop::collection::vec("[ab.*?|]{1,4}", 1..3), name in "[ab.|]{0,5}") {
            let globs: Vec<_> = patterns.iter().map(|p| glob(p)).collect();
            let regex = globs.iter().map(Glob::regex).collect::<Vec<_>>().join("|");
            let matcher = Matcher::new("run", Op::Regex, regex).unwrap();
            prop_assert!(within(&matcher, &globs), "{matcher}");
            prop_assert_eq!(matcher.holds_of(&name), globs.iter().any(|g| g.matches(&name)));
        }
    }
}
