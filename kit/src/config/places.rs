//! The place of a value in a YAML document, found by its path.
//!
//! Mistakes between values are found after parsing, when only the values are left. This parses the
//! document again and keeps only the places.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// The places of a document's values, without the values.
pub(super) struct Places(Spanned<Node>);

enum Node {
    Leaf,
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, Spanned<Node>)>),
}

impl Places {
    /// `None` if the text does not parse: then the parser's error is the better message.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_saphyr::from_str(text).ok().map(Self)
    }

    /// The place of a path such as `routes[1].notify`, or of its longest existing prefix, so that a
    /// missing key is shown where it belongs. The place of a mapping on several lines is its first
    /// key.
    pub(super) fn find(&self, path: &str) -> Option<Location> {
        let mut at = &self.0;
        let mut found = None;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match &at.value {
                Node::Leaf => None,
                Node::List(items) => step.strip_suffix(']').and_then(|i| items.get(i.parse::<usize>().ok()?)),
                Node::Map(entries) => entries.iter().find(|(key, _)| key == step).map(|(_, value)| value),
            };
            let Some(next) = next else { break };
            at = next;
            found = Some(at.referenced);
        }
        found
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Node, D::Error> {
        d.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}
