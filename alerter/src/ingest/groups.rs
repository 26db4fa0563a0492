//! The format of file and HTTP discovery: Prometheus' list of target groups.
//!
//! A list is untrusted. Its targets are counted during parsing, and nothing else is kept, so that
//! the memory is limited to the text and the allowed targets.

use core::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::target::Target;

/// The most targets of one discovery answer or file; a list with more is refused.
pub(super) const MAX_TARGETS: usize = 20_000;
/// The most groups of one list; a list with more is refused. A list with separate labels for each
/// target has one group per target.
const MAX_GROUPS: usize = 2 * MAX_TARGETS;
/// The most labels of one group; a list with more is refused.
const MAX_LABELS: usize = 1000;

/// The targets of all groups. One invalid address fails the whole list, because a partial list
/// would look like removed nodes.
#[derive(Debug)]
pub(super) struct Targets(pub Vec<Target>);

/// Reads one group into the list.
struct Group<'a>(&'a mut Vec<Target>);
/// Reads the addresses of one group into the list.
struct Addresses<'a>(&'a mut Vec<Target>);
struct Address;
/// The labels of a group. They are parsed to find mistakes, and not used: the run's own name
/// counts.
struct Labels;
/// A string that is dropped.
struct Text;

/// A key of a group.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Targets,
    Labels,
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Groups;
        impl<'de> Visitor<'de> for Groups {
            type Value = Targets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of target groups")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut groups: A) -> Result<Targets, A::Error> {
                let (mut targets, mut count) = (Vec::new(), 0);
                while groups.next_element_seed(Group(&mut targets))?.is_some() {
                    count += 1;
                    if count > MAX_GROUPS {
                        return Err(too_many("target groups", MAX_GROUPS));
                    }
                }
                Ok(Targets(targets))
            }
        }
        from.deserialize_seq(Groups)
    }
}

impl<'de> DeserializeSeed<'de> for Group<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_struct("TargetGroup", &["targets", "labels"], self)
    }
}

impl<'de> Visitor<'de> for Group<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a target group with `targets` and perhaps `labels`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut targets, mut labels) = (false, false);
        while let Some(key) = map.next_key::<Key>()? {
            let (name, seen) = match key {
                Key::Targets => ("targets", &mut targets),
                Key::Labels => ("labels", &mut labels),
            };
            if core::mem::replace(seen, true) {
                return Err(de::Error::duplicate_field(name));
            }
            match key {
                Key::Targets => map.next_value_seed(Addresses(self.0))?,
                Key::Labels => map.next_value::<Labels>().map(drop)?,
            }
        }
        if targets { Ok(()) } else { Err(de::Error::missing_field("targets")) }
    }
}

impl<'de> DeserializeSeed<'de> for Addresses<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Addresses<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of addresses")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(target) = list.next_element_seed(Address)? {
            if self.0.len() == MAX_TARGETS {
                return Err(too_many("targets", MAX_TARGETS));
            }
            self.0.push(target);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Address {
    type Value = Target;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Target, D::Error> {
        from.deserialize_string(self)
    }
}

impl Visitor<'_> for Address {
    type Value = Target;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address, host:port")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Target, E> {
        Target::discovered(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for Labels {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels, each a name and a text")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut count = 0;
        while map.next_entry::<Text, Text>()?.is_some() {
            count += 1;
            if count > MAX_LABELS {
                return Err(too_many("labels of one group", MAX_LABELS));
            }
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_string(Self)
    }
}

impl Visitor<'_> for Text {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
}

/// Parsing ends here, so the total is unknown.
fn too_many<E: de::Error>(what: &str, limit: usize) -> E {
    E::custom(format_args!("more than {limit} {what}, which is the limit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Result<Vec<String>, String> {
        let read = serde_json::from_str(text).map_err(|e| e.to_string());
        read.map(|Targets(list)| list.iter().map(ToString::to_string).collect())
    }

    fn yaml(text: &str) -> Result<Vec<String>, String> {
        let read = stepwatch_kit::config::parse("t.yml", text).map_err(|e| e.to_string());
        read.map(|Targets(list)| list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn one_bad_address_fails_the_list() {
        let good =
            r#"[{"targets": ["a", "b:1"], "labels": {"rack": "r"}}, {"labels": {}, "targets": ["c"]}]"#;
        assert_eq!(json(good).unwrap(), ["a:9765", "b:1", "c:9765"]);
        assert_eq!(yaml(good), json(good));
        for (bad, part) in [
            (r#"[{"targets": ["a", "b:c"]}]"#, "target \"b:c\": the port is a number"),
            (r#"[{"targets": ["a", "169.254.169.254:80"]}]"#, "is a link-local address"),
            (r#"[{"target": []}]"#, "unknown field"),
            (r#"[{"labels": {}}]"#, "missing field"),
            (r#"[{"targets": [], "targets": []}]"#, "duplicate"),
            (r#"[{"targets": [], "labels": {"a": {}}}]"#, "a text"),
            (r#"[{"targets": [{}]}]"#, "an address"),
            (r#"[{"targets": "a"}]"#, "a list of addresses"),
        ] {
            for why in [json(bad).unwrap_err(), yaml(bad).unwrap_err()] {
                assert!(why.contains(part) || why.contains("1:"), "{bad}: {why}");
            }
            assert!(json(bad).unwrap_err().contains(part), "{bad}: {}", json(bad).unwrap_err());
        }
    }

    #[test]
    fn what_is_too_much_is_refused_as_soon_as_it_is_seen() {
        let groups = |n: usize, group: &str| format!("[{}", vec![group; n].join(","));
        let labels: Vec<_> = (0..=MAX_LABELS).map(|i| format!("\"{i}\":\"\",")).collect();
        let labels = labels.concat();
        for (text, part) in [
            (format!("[{{\"targets\":[{}", "\"a\",".repeat(MAX_TARGETS + 1)), "more than 20000 targets,"),
            (groups(MAX_TARGETS + 1, r#"{"targets":["a"]}"#), "more than 20000 targets,"),
            (groups(MAX_GROUPS + 1, r#"{"targets":[]}"#), "more than 40000 target groups"),
            (format!("[{{\"labels\":{{{labels}"), "more than 1000 labels of one group"),
        ] {
            // No number in the error is a total, because parsing ended at the limit.
            let why = json(&text).unwrap_err();
            assert!(why.contains(part), "{part}: {why}");
        }
        let full = format!("[{}]", vec![r#"{"targets":["a"]}"#; MAX_TARGETS].join(","));
        assert_eq!(json(&full).unwrap().len(), MAX_TARGETS);
        let long = json(&format!("[{{\"targets\":[\"{}\"]}}]", "x".repeat(1 << 20))).unwrap_err();
        assert!(long.len() < 300 && long.contains("not a host name"), "{long:.400}");
    }

    #[test]
    fn aliases_do_not_multiply() {
        // Nested aliases that would expand to a gigabyte. The YAML parser refuses them in any file.
        let mut bomb = String::from("- &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..9 {
            bomb.extend(["- &a", &i.to_string(), " ["]);
            bomb.extend([vec![format!("*a{}", i - 1); 10].join(", "), "]\n".to_owned()]);
        }
        stepwatch_kit::config::parse::<serde_json::Value>("t.yml", &bomb).unwrap_err();
        yaml(&bomb).unwrap_err();
        // Consecutive aliases of a list that is allowed once.
        let list = vec!["n1"; 1000].join(", ");
        let flat = format!("- targets: &a [{list}]\n{}", "- targets: *a\n".repeat(50));
        assert!(yaml(&flat).unwrap_err().contains("more than 20000 targets,"));
    }
}
