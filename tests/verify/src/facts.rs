//! Findings are data: no number becomes a word where it is found. What detectors and the ranking of
//! causes say is made of clauses, and no fact of a clause is a text that was formatted.

use std::path::Path;

use crate::house::sources;
use crate::rust_source::without_tests;

/// Where nothing is formatted at all, because all that is made there is a finding.
const ROOMS: [&str; 5] = [
    "alerter/detect/src/detectors",
    "alerter/detect/src/detectors.rs",
    "alerter/detect/src/cause",
    "alerter/detect/src/cause.rs",
    "alerter/detect/src/node/words.rs",
];
/// Crates that make clauses.
const CRATES: [&str; 4] =
    ["alerter/model/src", "alerter/detect/src", "alerter/respond/src", "alerter/engine/src"];
/// How a number, or anything else, becomes a text.
const FORMATS: [&str; 5] = ["format!", "format_args!", "write!", "number(", "to_string("];
/// How a clause and its facts are made.
const MADE: [&str; 5] = ["clause!", "Clause::words", "Fact::text", "Fact::Text", "Sentence::from"];

/// How many clauses there are, and what is formatted in one.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>), String> {
    let (mut clauses, mut wrong) = (0, Vec::new());
    for dir in CRATES {
        let mut files = Vec::new();
        sources(&root.join(dir), &mut files);
        for path in files.iter().filter(|path| !is_of_tests(path)) {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let (code, shown) = (without_tests(&text), path.strip_prefix(root).unwrap_or(path));
            clauses += code.matches("clause!(").count();
            let of_room = ROOMS.iter().any(|room| shown.starts_with(room));
            let found = if of_room { formatted(&code, 0) } else { formatted_in_clauses(&code) };
            wrong.extend(found.into_iter().map(|(at, what)| {
                format!("{}:{at}: {what} makes text of what is a fact of a clause", shown.display())
            }));
        }
    }
    Ok((clauses, wrong))
}

/// Files that are modules of tests, by their names.
fn is_of_tests(path: &Path) -> bool {
    path.iter().any(|part| part == "tests" || part == "tests.rs" || part == "testing.rs")
}

/// The lines in which something is formatted, of code that begins at this line less one.
fn formatted(code: &str, from: usize) -> Vec<(usize, &'static str)> {
    let lines = code.lines().enumerate();
    let found = lines.flat_map(|(at, line)| {
        let is_call = |name: &&str| {
            let words = line.match_indices(name).map(|(at, _)| &line[..at]);
            words.into_iter().any(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        FORMATS.into_iter().filter(is_call).map(move |name| (from + at + 1, name.trim_end_matches('(')))
    });
    found.collect()
}

fn formatted_in_clauses(code: &str) -> Vec<(usize, &'static str)> {
    let made = MADE.into_iter().flat_map(|name| code.match_indices(name));
    let mut found: Vec<_> = made
        .flat_map(|(at, _)| formatted(arguments(&code[at..]), code[..at].matches('\n').count()))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A call up to the end of its arguments.
fn arguments(call: &str) -> &str {
    let mut depth = 0;
    let end = call.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        *c == ')' && depth == 0
    });
    end.map_or(call, |(at, _)| &call[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_formatted_in_a_clause_is_found() {
        let good = "let key = format!(x);\nwhy.and(clause!(form, now = r.norm, by = f(a)));\nnumber(v)";
        assert_eq!(formatted_in_clauses(&without_tests(good)), []);
        let bad =
            "a\nlet why = clause!(\n    form,\n    now = number(r.norm),\n);\nClause::words(format!(f))";
        assert_eq!(formatted_in_clauses(&without_tests(bad)), [(4, "number"), (6, "format!")]);
    }

    #[test]
    fn a_name_that_ends_alike_formats_nothing() {
        assert_eq!(formatted("if self.is_number(r) { step_number(1) }\nwrite!(f)", 0), [(2, "write!")]);
    }
}
