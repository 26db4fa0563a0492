//! Python literals as `print(dict)` writes them, read leniently: both quotes, `nan` and `inf` bare,
//! `None`, tuples, and the wrappers that NumPy and PyTorch print round a number (`np.float32(1.5)`,
//! `tensor(2.3, device='cuda:0')`).

use std::collections::BTreeMap;

use stepwatch_wire::Value;

/// Deep enough for any log line, shallow enough for any stack.
const MAX_DEPTH: u32 = 16;

/// Reads the dict that `text` starts with; the rest is what follows its closing brace.
pub(crate) fn dict(text: &str) -> Option<(BTreeMap<String, Value>, &str)> {
    let mut r = PythonReader { text, at: 0, depth: 0 };
    let Value::Map(map) = r.value()? else { return None };
    Some((map, &text[r.at..]))
}

struct PythonReader<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> PythonReader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next()
    }

    /// Steps over `c` if it is next.
    fn eat(&mut self, c: char) -> bool {
        let there = self.peek() == Some(c);
        if there {
            self.at += c.len_utf8();
        }
        there
    }

    fn value(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let v = match self.peek()? {
            '{' => self.map(),
            '[' => self.list('[', ']').map(Value::List),
            '(' => self.list('(', ')').map(Value::List),
            '\'' | '"' => self.string().map(Value::Text),
            _ => self.word(),
        };
        self.depth -= 1;
        v
    }

    fn map(&mut self) -> Option<Value> {
        let mut map = BTreeMap::new();
        self.eat('{');
        while !self.eat('}') {
            let key = match self.value()? {
                Value::Text(t) => t,
                Value::Number(n) => n.to_string(),
                _ => return None,
            };
            if !self.eat(':') {
                return None;
            }
            map.insert(key, self.value()?);
            if !self.eat(',') && self.peek() != Some('}') {
                return None;
            }
        }
        Some(Value::Map(map))
    }

    fn list(&mut self, open: char, close: char) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.eat(open);
        while !self.eat(close) {
            items.push(self.value()?);
            if !self.eat(',') && self.peek() != Some(close) {
                return None;
            }
        }
        Some(items)
    }

    fn string(&mut self) -> Option<String> {
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        let quote = chars.next()?.1;
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    other => out.push(other),
                },
                c if c == quote => {
                    self.at += i + c.len_utf8();
                    return Some(out);
                }
                c => out.push(c),
            }
        }
        None
    }

    /// A number, a constant, or a call round a value.
    fn word(&mut self) -> Option<Value> {
        let rest = self.rest();
        let len = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')))
            .unwrap_or(rest.len());
        let word = &rest[..len];
        self.at += len;
        match word {
            "" => None,
            "None" => Some(Value::Null),
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            w => match stepwatch_wire::num::parse(w) {
                Some(v) => Some(Value::Number(v)),
                None if self.rest().starts_with('(') => self.call(),
                None => None,
            },
        }
    }

    /// The first argument of a call is its value; the others (`device='cuda:0'`) are stepped over.
    fn call(&mut self) -> Option<Value> {
        self.eat('(');
        let v = self.value()?;
        loop {
            if self.eat(')') {
                return Some(v);
            }
            if !self.eat(',') {
                return None;
            }
            let rest = self.rest();
            let keyword = rest.find(['=', ',', ')']).filter(|i| rest[*i..].starts_with('='));
            if let Some(i) = keyword {
                self.at += i + 1;
                if self.peek().is_some_and(|c| c.is_alphabetic()) {
                    let rest = self.rest();
                    self.at += rest.find([',', ')']).unwrap_or(rest.len());
                    continue;
                }
            }
            self.value()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(text: &str, key: &str) -> Option<Value> {
        dict(text)?.0.remove(key)
    }

    #[test]
    fn reads_what_trainers_print() {
        let (m, rest) =
            dict("{'loss': 2.3456, 'grad_norm': nan, 'lr': '4.9e-05', 'x': None, 'ok': True} tail").unwrap();
        assert_eq!(rest, " tail");
        assert_eq!(m["loss"].as_f64(), Some(2.3456));
        assert!(m["grad_norm"].as_f64().unwrap().is_nan());
        assert_eq!(m["lr"].as_f64(), Some(4.9e-5));
        assert_eq!((&m["x"], &m["ok"]), (&Value::Null, &Value::Bool(true)));
        assert_eq!(get("{'a': -inf, }", "a"), Some(Value::Number(f64::NEG_INFINITY)));
        assert_eq!(get(r#"{"it's": 1}"#, "it's"), Some(Value::Number(1.0)));
        assert_eq!(get(r"{'a': 'it\'s'}", "a"), Some(Value::Text("it's".into())));
        assert_eq!(get("{'a': np.float64(1.5), 'b': 2}", "b"), Some(Value::Number(2.0)));
        let tensor = "{'a': tensor(2.5, device='cuda:0', dtype=torch.float32), 'b': (1, [2], {})}";
        assert_eq!(get(tensor, "a"), Some(Value::Number(2.5)));
        assert!(matches!(get(tensor, "b"), Some(Value::List(l)) if l.len() == 3));
    }

    #[test]
    fn refuses_what_is_cut_or_foreign() {
        for text in [
            "",
            "{",
            "{'a'",
            "{'a': ",
            "{'a': 1",
            "{'a' 1}",
            "{'a': 1 'b': 2}",
            "['a']",
            "{'a': f(}",
            "{'a': tensor(1",
        ] {
            assert_eq!(dict(text), None, "{text}");
        }
        assert_eq!(dict(&format!("{{'a': {}", "[".repeat(1000))), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = (dict(&text), dict(&format!("{{'a': {text}")));
        }

        #[test]
        fn mutations_never_panic(at in 0usize..80, c: char) {
            let line = "{'loss': '2.3', \"b\": tensor(nan, device='x'), 'c': [1, (2,)], 'd': {'e': None}}";
            let mut chars: Vec<char> = line.chars().collect();
            let at = at % chars.len();
            chars[at] = c;
            let _ = dict(&chars.into_iter().collect::<String>());
        }
    }
}
