//! Circles of imports: files that import each other can only be understood together, so few may.
//! Rooms, which are the modules at the top of a crate, may not import each other at all: data flows
//! one way between them.
//!
//! A file imports another if it has a path to something that is defined there. A `pub use` is no
//! import: who takes a name from there imports the file that defines it. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::rust_source::without_tests;

/// Files that may import each other in a circle.
const MAX_CIRCLE: usize = 3;
/// Re-exports that are followed from a name to its definition.
const MAX_HOPS: usize = 8;

/// The segments of a path.
type Segments = Vec<String>;

/// The files of a crate by their modules.
#[derive(Default)]
struct Crate(BTreeMap<Segments, File>);

#[derive(Default)]
struct File {
    path: PathBuf,
    /// The paths of names that it imports or re-exports.
    names: BTreeMap<String, Segments>,
    /// The paths that it uses.
    uses: BTreeSet<Segments>,
}

/// How many files the crates of the product have, and the circles that are too large.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>), String> {
    let read = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
    let manifest = read(Path::new("Cargo.toml")).unwrap_or_default();
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.ok_or("Cargo.toml has no list of members")?;
    let (mut files, mut wrong) = (0, Vec::new());
    let members = members.split(',').map(|member| member.trim().trim_matches('"'));
    for member in members.filter(|member| !member.is_empty() && !member.starts_with("tests")) {
        for top in ["src/lib.rs", "src/main.rs"] {
            let mut found = Crate::default();
            found.load(Vec::new(), &Path::new(member).join(top), &read);
            files += found.0.len();
            wrong.extend(found.circles());
            wrong.extend(found.rooms());
        }
    }
    Ok((files, wrong))
}

impl Crate {
    /// Reads a file and those that it declares as its modules. False if there is no such file.
    fn load(&mut self, module: Segments, path: &Path, read: &dyn Fn(&Path) -> Option<String>) -> bool {
        let Some(text) = read(path) else { return false };
        let code = without_tests(&text);
        let tokens = tokens(&code);
        let file = File::parse(path, &tokens);
        // A macro may declare a module (`sources!`, `detectors!`), so every name below may be one.
        // A `main.rs` has the files of the library beside it, which are none of its own.
        let declared = |at: usize| at > 0 && tokens[at - 1] == "mod";
        let is_child =
            |(at, token): &(usize, &&str)| is_module_name(token) && (!module.is_empty() || declared(*at));
        let children: BTreeSet<_> =
            tokens.iter().enumerate().filter(is_child).map(|(_, token)| *token).collect();
        let mut below = path.with_extension("");
        if module.is_empty() || below.ends_with("mod") {
            below.pop();
        }
        for child in &children {
            let inner = [&module[..], &[(*child).to_owned()]].concat();
            let directory = below.join(child);
            if self.load(inner.clone(), &directory.with_extension("rs"), read)
                || self.load(inner.clone(), &directory.join("mod.rs"), read)
            {
                continue;
            }
            // A module without a file, whose own are declared in this one (`collectors!`).
            let own = children.iter().map(|name| (name, directory.join(name).with_extension("rs")));
            if own.clone().any(|(_, path)| read(&path).is_some()) {
                self.0.insert(inner.clone(), File { path: path.to_owned(), ..File::default() });
                for (name, path) in own {
                    self.load([&inner[..], &[(*name).to_owned()]].concat(), &path, read);
                }
            }
        }
        self.0.insert(module, file);
        true
    }

    /// The file that defines what a path of `from` names; none for what is of another crate, and
    /// for a module itself.
    fn definition(&self, from: &Segments, path: &[String], hops: usize) -> Option<&Segments> {
        let (head, rest) = path.split_first()?;
        let parents = path.iter().take_while(|s| *s == "super").count();
        let (mut at, mut rest) = match head.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (from.clone(), rest),
            "super" => (from[..from.len().checked_sub(parents)?].to_vec(), &path[parents..]),
            _ if self.0.contains_key(&[from, &path[..1]].concat()) => (from.clone(), path),
            _ => return self.renamed(from, path, hops),
        };
        while let Some((child, inner)) = rest.split_first() {
            at.push(child.clone());
            if !self.0.contains_key(&at) {
                at.pop();
                break;
            }
            rest = inner;
        }
        let (module, file) = self.0.get_key_value(&at)?;
        let inside = file.names.get(rest.first()?).map(|path| &path[0]);
        match self.renamed(module, rest, hops) {
            Some(found) => Some(found),
            None if inside.is_none_or(|head| ["crate", "super", "self"].contains(&&**head)) => Some(module),
            None => None,
        }
    }

    /// The same of a path that begins with a name that `from` imports or re-exports.
    fn renamed(&self, from: &Segments, path: &[String], hops: usize) -> Option<&Segments> {
        let meant = self.0.get(from)?.names.get(path.first()?)?;
        self.definition(from, &[meant, &path[1..]].concat(), hops.checked_sub(1)?)
    }

    /// Which files each file imports.
    fn imports(&self) -> BTreeMap<&Segments, BTreeSet<&Segments>> {
        let imports = |module| {
            let uses = self.0.get(module).into_iter().flat_map(|file| &file.uses);
            let found = uses.filter_map(|path| self.definition(module, path, MAX_HOPS));
            found.filter(|other| *other != module).collect::<BTreeSet<_>>()
        };
        self.0.keys().map(|module| (module, imports(module))).collect()
    }

    /// What each circle of rooms is made of, and which files import the others.
    fn rooms(&self) -> Vec<String> {
        let files = self.imports();
        let mut rooms = BTreeMap::<&String, BTreeSet<&String>>::new();
        let mut doors = BTreeMap::<(&String, &String), BTreeSet<String>>::new();
        for (module, others) in &files {
            let Some(room) = module.first() else { continue };
            rooms.entry(room).or_default();
            for other in others.iter().filter_map(|other| other.first()).filter(|other| *other != room) {
                rooms.entry(room).or_default().insert(other);
                let door = self.0[*module].path.display().to_string();
                doors.entry((room, other)).or_default().insert(door);
            }
        }
        let describe = |circle: BTreeSet<&String>| {
            let names = circle.iter().map(|room| room.as_str()).collect::<Vec<_>>().join(", ");
            let within = |(from, to): &(&String, &String)| circle.contains(from) && circle.contains(to);
            let doors = doors.iter().filter(|(between, _)| within(between)).map(|((from, to), files)| {
                let files = files.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                format!("    {from} imports {to}: {files}")
            });
            let head = format!("rooms that import each other: {names}");
            [head].into_iter().chain(doors).collect::<Vec<_>>().join("\n")
        };
        circles(&rooms).into_iter().map(describe).collect()
    }

    /// What each circle of too many files is made of.
    fn circles(&self) -> Vec<String> {
        let imports = self.imports();
        let mut circles = circles(&imports);
        circles.retain(|circle| circle.len() > MAX_CIRCLE);
        let name = |module: &Segments| self.0[module].path.display().to_string();
        let describe = |circle: &BTreeSet<&Segments>| {
            let head = format!("{} files import each other, the limit is {MAX_CIRCLE}:", circle.len());
            let of_file = |module: &&Segments| {
                let others = imports[*module].iter().filter(|other| circle.contains(*other));
                let others = others.map(|other| name(other)).collect::<Vec<_>>().join(", ");
                format!("    {} imports {others}", name(module))
            };
            [head].into_iter().chain(circle.iter().map(of_file)).collect::<Vec<_>>().join("\n")
        };
        circles.iter().map(describe).collect()
    }
}

/// The sets of nodes that reach each other, each of two or more.
fn circles<'a, T: Ord>(imports: &BTreeMap<&'a T, BTreeSet<&'a T>>) -> BTreeSet<BTreeSet<&'a T>> {
    let reached = |from: &'a T| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            open.extend(imports.get(node).into_iter().flatten().filter(|next| reached.insert(**next)));
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|node| (*node, reached(node))).collect();
    let within = |(node, others): (&&'a T, &BTreeSet<&'a T>)| -> BTreeSet<&'a T> {
        let reach_it = |other: &&&'a T| reached.get(**other).is_some_and(|back| back.contains(node));
        others.iter().filter(reach_it).copied().collect()
    };
    reached.iter().map(within).filter(|circle| circle.len() > 1).collect()
}

impl File {
    fn parse(path: &Path, tokens: &[&str]) -> Self {
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = |n: usize| tokens.get(at + n).copied().unwrap_or_default();
            match *token {
                "use" if next(1) != "<" => {
                    let length = tokens[at..].iter().take_while(|t| **t != ";").count();
                    let exports = at > 0 && ["pub", ")"].contains(&tokens[at - 1]);
                    file.take_use(&tokens[at + 1..at + length], &Vec::new(), exports);
                    at += length;
                }
                head if is_name(head) && next(1) == "::" && (at == 0 || tokens[at - 1] != "::") => {
                    let mut segments = vec![head.to_owned()];
                    while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|t| is_name(t))
                    {
                        segments.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    file.uses.insert(segments);
                }
                _ => {}
            }
            at += 1;
        }
        file
    }

    /// Takes what stands behind `use`, or behind a part of it.
    fn take_use(&mut self, tokens: &[&str], before: &Segments, exports: bool) {
        let mut path = before.clone();
        let mut name = None;
        for (at, token) in tokens.iter().enumerate() {
            match *token {
                "{" => {
                    let (mut depth, inner) = (0, &tokens[at + 1..tokens.len() - 1]);
                    let parts = inner.split(|token| {
                        depth += i32::from(*token == "{") - i32::from(*token == "}");
                        *token == "," && depth == 0
                    });
                    return parts.for_each(|part| self.take_use(part, &path, exports));
                }
                "as" => {
                    name = tokens.get(at + 1).copied();
                    break;
                }
                "::" => {}
                "self" if !path.is_empty() => {}
                segment => path.push(segment.to_owned()),
            }
        }
        let Some(last) = path.last().filter(|_| !tokens.is_empty()) else { return };
        self.names.insert(name.unwrap_or(last).to_owned(), path.clone());
        if !exports {
            self.uses.insert(path);
        }
    }
}

fn is_module_name(token: &str) -> bool {
    is_name(token) && token.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::`, and other characters one by one.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || !b.is_ascii();
    let bytes = code.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let from = at;
        while at < bytes.len() && is_word(bytes[at]) {
            at += 1;
        }
        if at == from {
            at += if code[at..].starts_with("::") { 2 } else { 1 };
        }
        if !bytes[from].is_ascii_whitespace() {
            found.push(&code[from..at]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let text =
            |path: &Path| files.iter().find(|(p, _)| Path::new(p) == path).map(|(_, t)| (*t).to_owned());
        let mut found = Crate::default();
        found.load(Vec::new(), Path::new("lib.rs"), &text);
        assert_eq!(found.0.len(), files.iter().filter(|(path, _)| !path.ends_with("tests.rs")).count());
        found.circles()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;");

    #[test]
    fn a_circle_of_four_is_found_and_named() {
        let found = circles(&[
            ROOT,
            ("a.rs", "use crate::{b::B, d};\npub struct A(B);"),
            ("b.rs", "use std::fmt;\nuse super::c::C as Other;\npub struct B(Option<Box<Other>>);"),
            ("c.rs", "pub struct C(Vec<crate::d::inner::D>);"),
            ("d.rs", "pub mod inner;\npub fn of() {}"),
            ("d/inner.rs", "pub struct D;\nfn f(a: &crate::a::A) {}"),
        ]);
        let want = "4 files import each other, the limit is 3:\n    a.rs imports b.rs\n    b.rs imports c.rs\n    \
                    c.rs imports d/inner.rs\n    d/inner.rs imports a.rs";
        assert_eq!(found, [want]);
    }

    #[test]
    fn modules_that_a_macro_declares_count() {
        let found = circles(&[
            ("lib.rs", "mod all;"),
            ("all.rs", "all! { a: a::A, b: b::B, c: c::C }\npub struct All;"),
            ("all/a.rs", "use super::b::B;\npub struct A;"),
            ("all/b.rs", "use super::c::C;\npub struct B;"),
            ("all/c.rs", "use super::All;\npub struct C;"),
        ]);
        assert!(found[0].starts_with("4 files"), "{found:?}");
    }

    #[test]
    fn modules_in_a_module_without_a_file_count() {
        let text = |path: &Path| {
            let code = match path.to_str()? {
                "lib.rs" => "mod all;",
                "all.rs" => "all! { room { a: A, b: B, c: C } }\npub struct All;",
                "all/room/a.rs" => "use super::b::B;\npub struct A;",
                "all/room/b.rs" => "use crate::all::room::c::C;\npub struct B;",
                "all/room/c.rs" => "use crate::all::All;\npub struct C(super::a::A);",
                _ => return None,
            };
            Some(code.to_owned())
        };
        let mut found = Crate::default();
        assert!(found.load(Vec::new(), Path::new("lib.rs"), &text));
        let circles = found.circles();
        assert_eq!(circles, [""; 0], "three files");
        let name = |path: &[&str]| path.iter().map(|s| (*s).to_owned()).collect::<Segments>();
        let imports =
            |from: &[&str], path: &[&str]| found.definition(&name(from), &name(path), MAX_HOPS).cloned();
        assert_eq!(
            imports(&["all", "room", "b"], &["crate", "all", "room", "c", "C"]),
            Some(name(&["all", "room", "c"]))
        );
        assert_eq!(imports(&["all", "room", "c"], &["crate", "all", "All"]), Some(name(&["all"])));
    }

    #[test]
    fn two_rooms_that_import_each_other_are_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "pub mod deep;\npub use crate::b::B;"),
            ("a/deep.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "mod inner;\npub struct B;"),
            ("b/inner.rs", "use crate::a::deep::A;"),
        ];
        let text =
            |path: &Path| files.iter().find(|(p, _)| Path::new(p) == path).map(|(_, t)| (*t).to_owned());
        let mut found = Crate::default();
        found.load(Vec::new(), Path::new("lib.rs"), &text);
        let want =
            "rooms that import each other: a, b\n    a imports b: a/deep.rs\n    b imports a: b/inner.rs";
        assert_eq!(found.rooms(), [want]);
        assert_eq!(found.circles(), [""; 0]);
    }

    #[test]
    fn a_circle_of_three_passes_and_tests_do_not_count() {
        let found = circles(&[
            ROOT,
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "use crate::c::C;\npub struct B;"),
            (
                "c.rs",
                "use crate::a::A;\npub struct C;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse crate::d::D;",
            ),
            ("c/tests.rs", "use crate::d::D;"),
            (
                "d.rs",
                "// use crate::a::A;\npub struct D;\n#[cfg(test)]\npub(super) mod tests {\n    use crate::a::A;\n}",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_reexport_counts_as_its_definition() {
        let parent = "mod one;\nmod three;\nmod two;\npub use one::{One, Shared as Mine};\npub use three::Three;\npub use two::Two;";
        let files = |three| {
            [
                ("lib.rs", "mod a;"),
                ("a.rs", parent),
                ("a/one.rs", "use super::Two;\npub struct One;\npub struct Shared;"),
                ("a/two.rs", "use super::{Mine, Three};\npub struct Two;"),
                ("a/three.rs", three),
            ]
        };
        assert_eq!(
            circles(&files("use crate::a::Mine;\npub struct Three;")),
            [""; 0],
            "the parent is in no circle"
        );
        let defines = format!("{parent}\npub struct Own;");
        let mut files = files("use super::{Mine, Own};\npub struct Three;");
        files[1].1 = &defines;
        assert_eq!(circles(&files), [""; 0], "it imports none of what it passes on");
        let uses = format!("{defines}\nfn f() {{ one::new() }}");
        files[1].1 = &uses;
        assert!(circles(&files)[0].starts_with("4 files"), "{:?}", circles(&files));
    }
}
