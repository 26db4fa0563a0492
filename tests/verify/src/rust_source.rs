//! As much of Rust's syntax as it takes to measure functions and to find imports: comments,
//! strings, braces, `fn`, `#[cfg(test)]`.

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of the `fn`, from 1.
    pub(crate) at: usize,
    /// Lines of the body that hold code.
    pub(crate) lines: usize,
    /// Under `#[cfg(test)]` or `#[test]`.
    pub(crate) in_test: bool,
}

pub(crate) fn functions(source: &str) -> Vec<Function> {
    let code = blank(source);
    let bytes = code.as_bytes();
    let test_ranges = test_items(&code);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("fn ").map(|i| from + i) {
        from = at + 3;
        let word_before = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let name: String =
            code[from..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if word_before || name.is_empty() {
            continue;
        }
        let Some((open, close)) = body(bytes, from) else { continue };
        let inside = &code[open + 1..close];
        found.push(Function {
            name,
            at: code[..at].matches('\n').count() + 1,
            lines: inside.lines().filter(|l| !l.trim().is_empty()).count(),
            in_test: test_ranges.iter().any(|(a, b)| (*a..*b).contains(&at)),
        });
    }
    found
}

/// The braces of the first body after `from`; none for a declaration that ends with a semicolon.
fn body(code: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut depth = 0_i32;
    for (i, b) in code.iter().enumerate().skip(from) {
        match b {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => return Some((i, matching(code, i)?)),
            _ => {}
        }
    }
    None
}

fn matching(code: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (i, b) in code.iter().enumerate().skip(open) {
        match b {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// The byte ranges of items that exist only in tests.
fn test_items(code: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test", "#[test]", "#[tokio::test"] {
        for (at, _) in code.match_indices(attribute) {
            let after = at + code[at..].find(']').unwrap_or(0) + 1;
            ranges.push((at, item_end(code.as_bytes(), after)));
        }
    }
    ranges
}

/// Where the item ends that begins at `from`: behind its body or its semicolon, or with what
/// stands around it.
fn item_end(code: &[u8], from: usize) -> usize {
    let mut depth = 0_i32;
    for (i, b) in code.iter().enumerate().skip(from) {
        match b {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return i + 1,
            b'}' if depth == 0 => return i,
            b'{' if depth == 0 => return matching(code, i).map_or(code.len(), |close| close + 1),
            _ => {}
        }
    }
    code.len()
}

/// The code that is compiled outside tests, without comments and strings.
pub(crate) fn without_tests(source: &str) -> String {
    let code = blank(source);
    let mut kept = code.clone().into_bytes();
    test_items(&code).into_iter().for_each(|(from, to)| kept[from..to].fill(b' '));
    String::from_utf8_lossy(&kept).into_owned()
}

/// The source with comments, strings and characters replaced by spaces; newlines stay where they
/// are.
pub(crate) fn blank(source: &str) -> String {
    let s = source.as_bytes();
    let mut out = s.to_vec();
    let mut i = 0;
    while i < s.len() {
        let end = match (s[i], s.get(i + 1)) {
            (b'/', Some(b'/')) => find(s, i, b"\n"),
            (b'/', Some(b'*')) => block_comment(s, i),
            (b'"', _) => string(s, i + 1),
            (b'r', Some(b'"' | b'#')) if i == 0 || !is_word(s[i - 1]) || s[i - 1] == b'b' => {
                raw_string(s, i).unwrap_or(i + 1)
            }
            (b'\'', _) => character(s, i).unwrap_or(i + 1),
            _ => {
                i += 1;
                continue;
            }
        };
        if end > i + 1 {
            out[i..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        }
        i = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn find(s: &[u8], from: usize, needle: &[u8]) -> usize {
    s[from..].windows(needle.len()).position(|w| w == needle).map_or(s.len(), |p| from + p)
}

fn block_comment(s: &[u8], from: usize) -> usize {
    let (mut depth, mut i) = (0, from);
    while i + 1 < s.len() {
        match (s[i], s[i + 1]) {
            (b'/', b'*') => (depth, i) = (depth + 1, i + 2),
            (b'*', b'/') => {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    s.len()
}

fn string(s: &[u8], mut i: usize) -> usize {
    while i < s.len() {
        match s[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    s.len()
}

fn raw_string(s: &[u8], from: usize) -> Option<usize> {
    let hashes = s[from + 1..].iter().take_while(|b| **b == b'#').count();
    let quote = from + 1 + hashes;
    if s.get(quote) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some((find(s, quote + 1, &close) + close.len()).min(s.len()))
}

/// The end of a character literal; none for a lifetime.
fn character(s: &[u8], from: usize) -> Option<usize> {
    if s.get(from + 1) == Some(&b'\\') {
        return Some(find(s, from + 3, b"'") + 1);
    }
    let text = std::str::from_utf8(&s[from + 1..s.len().min(from + 6)]);
    let valid = match &text {
        Ok(t) => t,
        Err(e) => std::str::from_utf8(&s[from + 1..from + 1 + e.valid_up_to()]).ok()?,
    };
    let end = from + 1 + valid.chars().next()?.len_utf8();
    (s.get(end) == Some(&b'\'')).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r##"
trait T { fn declared(&self) -> [u8; 4]; }
/// fn commented() { }
fn one<'a>(x: &'a str) -> char {
    // a comment is no code

    let s = "fn fake() { } \" {";
    let r = r#"fn raw() { "quoted" {"#;
    match x { _ => '{' }
}
#[cfg(test)]
mod tests {
    fn helper() { let _ = '\''; }
    #[test]
    fn case() {
        assert!(true);
    }
}
async fn two(f: fn (u8) -> u8) { /* { */ }
"##;

    #[test]
    fn measures_functions_and_knows_tests() {
        let found: Vec<_> =
            functions(SOURCE).into_iter().map(|f| (f.name, f.at, f.lines, f.in_test)).collect();
        let want =
            [("one", 4, 3, false), ("helper", 13, 1, true), ("case", 15, 1, true), ("two", 19, 0, false)];
        assert_eq!(found, want.map(|(n, at, lines, t)| (n.to_owned(), at, lines, t)));
    }

    #[test]
    fn every_file_of_this_program_is_measured() {
        let own = functions(include_str!("rust_source.rs"));
        assert!(own.iter().any(|f| f.name == "character" && f.lines > 8), "{own:?}");
        assert!(own.iter().any(|f| f.name == "measures_functions_and_knows_tests" && f.in_test));
    }
}
