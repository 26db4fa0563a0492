//! A series selector in the syntax of PromQL: `nfs_read_seconds{job="node"}`,
//! `{__name__=~"nfs_.*"}`.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use stepwatch_respond::matcher::{Matcher, Op};

/// The label that holds the name of a metric.
pub(crate) const NAME: &str = "__name__";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Selector {
    text: String,
    matchers: Vec<Matcher>,
}

impl Selector {
    /// Whether the selector matches a series. The labels are sorted by name.
    pub fn selects(&self, labels: &[(&str, &str)]) -> bool {
        self.matchers.iter().all(|m| m.holds_of(value_of(labels, m.label())))
    }
}

/// The value of a label; empty if the label is absent.
pub(crate) fn value_of<'a>(labels: &[(&str, &'a str)], name: &str) -> &'a str {
    let at = labels.binary_search_by_key(&name, |(name, _)| name).ok();
    at.and_then(|at| labels.get(at)).map_or("", |(_, value)| value)
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let (metric, rest) = trimmed.split_at(trimmed.find('{').unwrap_or(trimmed.len()));
        let metric = metric.trim();
        let bad =
            |why: &str| format!("selector {text:?}: {why}; expected one like metric{{label=\"value\"}}");
        if !metric.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':')) {
            return Err(bad("the name of the metric has other characters than letters, digits, _ and :"));
        }
        if !rest.is_empty() && !rest.ends_with('}') {
            return Err(bad("the brace does not close"));
        }
        let mut matchers = Matcher::parse_list(rest).map_err(|e| bad(&e))?;
        if !metric.is_empty() {
            matchers.push(Matcher::new(NAME, Op::Equal, metric)?);
        }
        if matchers.iter().all(Matcher::holds_of_nothing) {
            return Err(bad("it selects every series; at least one matcher must ask for a value"));
        }
        Ok(Self { text: trimmed.to_owned(), matchers })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Selector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Selector> for String {
    fn from(selector: Selector) -> Self {
        selector.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: &[(&str, &str)] = &[(NAME, "nfs_read_seconds"), ("instance", "a:9100"), ("job", "node")];

    #[test]
    fn what_it_selects() {
        let selects = |text: &str| text.parse::<Selector>().unwrap().selects(LABELS);
        for yes in [
            "nfs_read_seconds",
            "nfs_read_seconds{}",
            r#"nfs_read_seconds{job="node"}"#,
            r#"{__name__=~"nfs_.*"}"#,
            r#" {job="node", instance=~".*:9100"} "#,
            r#"nfs_read_seconds{cluster=""}"#,
        ] {
            assert!(selects(yes), "{yes}");
        }
        for no in ["nfs_read", r#"nfs_read_seconds{job="other"}"#, r#"{__name__=~"nfs"}"#, r#"{cluster!=""}"#]
        {
            assert!(!selects(no), "{no}");
        }
    }

    #[test]
    fn a_mistake_says_what_is_wrong() {
        let mistake = |text: &str| text.parse::<Selector>().unwrap_err();
        assert!(mistake("").contains("selects every series"));
        assert!(mistake(r#"{job!="a"}"#).contains("selects every series"));
        assert!(mistake("a{").contains("does not close"));
        assert!(mistake("a-b").contains("letters, digits"));
        assert!(mistake(r#"a{job=~"("}"#).contains("regular expression"));
        assert!(mistake("a{job}").contains("one of = != =~ !~"));
    }
}
