//! Enough of PromQL to ask which metrics an expression names. Whether it parses is Prometheus's to
//! say.

use std::collections::BTreeSet;

/// Words that stand where a metric could and are none.
const KEYWORDS: &[&str] = &[
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "bool",
    "inf",
    "nan",
    "start",
    "end",
];

/// What a histogram's samples carry beyond the name of its family.
const SAMPLE_SUFFIXES: &[&str] = &["_bucket", "_sum", "_count"];

/// The metrics that an expression reads. Names of functions, labels and durations are left out.
pub fn metrics(expr: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    // Label lists stand in braces, or in parentheses after by, on and their like.
    let (mut braces, mut labels_at) = (0_u32, None);
    let mut depth = 0_u32;
    let mut tokens = Tokens(expr).peekable();
    while let Some(token) = tokens.next() {
        match token {
            "{" | "[" => braces += 1,
            "}" | "]" => braces = braces.saturating_sub(1),
            "(" => depth += 1,
            ")" => {
                if labels_at == Some(depth) {
                    labels_at = None;
                }
                depth = depth.saturating_sub(1);
            }
            "by" | "without" | "on" | "ignoring" | "group_left" | "group_right"
                if tokens.peek() == Some(&"(") =>
            {
                labels_at = Some(depth + 1);
            }
            word if braces == 0
                && labels_at.is_none()
                && is_name(word)
                && !is_keyword(word)
                && !is_function(tokens.peek().copied()) =>
            {
                found.insert(word);
            }
            _ => {}
        }
    }
    found
}

/// The family of a sample name, if the sample is one of a histogram's.
pub fn family(sample: &str) -> &str {
    SAMPLE_SUFFIXES.iter().find_map(|suffix| sample.strip_suffix(suffix)).unwrap_or(sample)
}

/// Names of the variables that stand for what a reader picks.
const CHOICES: &[&str] = &["$cluster", "$job", "$instance", "$run", "$gpu", "$device", "$scheduled"];

/// The expression with Grafana's variables replaced by something that parses.
pub fn without_variables(expr: &str) -> String {
    replaced(expr, "5m", "a")
}

/// The expression as Grafana asks it with every choice set to `All`, over windows of this length.
pub fn of_everything(expr: &str, window: &str) -> String {
    replaced(expr, window, ".*")
}

fn replaced(expr: &str, window: &str, choice: &str) -> String {
    let expr = expr.replace("$__rate_interval", window).replace("$__interval", window);
    CHOICES.iter().fold(expr, |expr, name| expr.replace(name, choice))
}

fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word.to_ascii_lowercase().as_str())
}

/// An aggregation may have its labels before its argument: `sum by (run) (x)`.
fn is_function(next: Option<&str>) -> bool {
    matches!(next, Some("(" | "by" | "without"))
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':')
}

/// Words, and everything else a character at a time; strings are skipped.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let text = self.0.trim_start();
            let first = text.chars().next()?;
            if matches!(first, '"' | '\'') {
                let end = text[1..].find(first).map_or(text.len(), |at| at + 2);
                self.0 = &text[end..];
                continue;
            }
            let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '$');
            let end = match text.find(|c| !is_word(c)) {
                Some(0) => first.len_utf8(),
                Some(end) => end,
                None => text.len(),
            };
            let (token, rest) = text.split_at(end);
            self.0 = rest;
            return Some(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_from_everything_else() {
        for (expr, want) in [
            ("up", &["up"][..]),
            (r#"max by (run) (train_loss{run="$run"})"#, &["train_loss"]),
            ("sum(rate(a_total[5m])) by (le, run) / on (run) group_left (job) b", &["a_total", "b"]),
            ("histogram_quantile(0.5, sum by (le) (rate(x_bucket[$__rate_interval])))", &["x_bucket"]),
            ("time() - run:a:max5m offset 5m > bool 3e5", &["run:a:max5m"]),
            (r#"a{b=~"c d{}"} and on (instance) (e > 0) unless f"#, &["a", "e", "f"]),
            ("vector(1)", &[]),
            ("topk(5, a) or absent(b{job='x'}) + Inf", &["a", "b"]),
        ] {
            assert_eq!(metrics(expr).into_iter().collect::<Vec<_>>(), want, "{expr}");
        }
    }

    #[test]
    fn histogram_samples_belong_to_their_family() {
        assert_eq!(family("train_step_duration_seconds_bucket"), "train_step_duration_seconds");
        assert_eq!(family("train_loss"), "train_loss");
    }
}
