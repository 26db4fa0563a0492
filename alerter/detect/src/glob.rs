//! Names by pattern: `*` stands for anything, everything else for itself.

/// Whether all of `name` matches `pattern`. Linear in the name for each star but the last.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return name.ends_with(part);
        }
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "x"),
            ("a*", "a"),
            ("*reward*", "rollout/reward/mean"),
            ("a*b*c", "abbc"),
            ("kl", "kl"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("kl", "kl2"), ("a*", "ba"), ("*a", "ab"), ("a*a", "a"), ("a*b*b", "ab")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_regular_expression(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            let re = regex_lite::Regex::new(&format!("^{}$", pattern.replace('*', ".*"))).unwrap();
            prop_assert_eq!(matches(&pattern, &name), re.is_match(&name));
        }
    }
}
