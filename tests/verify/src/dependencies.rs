//! Dependencies that nothing uses: the names in the manifest of a package with which no path in its
//! code begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::house::files_of;
use crate::rust_source::blank;

const MANIFEST: &str = "Cargo.toml";
/// The tables of a manifest, by the ends of their names. Those of one platform end so too.
const TABLES: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];
/// Of the workspace, whose members choose from it.
const WORKSPACE: &str = "workspace.";

/// How many dependencies there are, and those that nothing uses.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>), String> {
    let mut files = Vec::new();
    files_of(root, &["rs", "toml"], &mut files);
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let (mut manifests, mut used) = (Vec::new(), BTreeMap::<PathBuf, BTreeSet<String>>::new());
    for path in &files {
        if path.ends_with(MANIFEST) {
            manifests.push((path, read(path)?));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let package = path.ancestors().skip(1).find(|dir| dir.join(MANIFEST).is_file());
            let package = package.ok_or_else(|| format!("{} is in no package", path.display()))?;
            used.entry(package.to_owned()).or_default().extend(crates(&blank(&read(path)?)));
        }
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for (path, manifest) in manifests {
        let used = path.parent().and_then(|package| used.get(package));
        let names = declared(&manifest);
        count += names.len();
        let unused = names.into_iter().filter(|name| used.is_none_or(|used| !used.contains(&in_code(name))));
        let shown = path.strip_prefix(root).unwrap_or(path).display();
        wrong.extend(unused.map(|name| format!("{shown}: nothing uses {name}")));
    }
    Ok((count, wrong))
}

/// The name of a dependency as code writes it.
fn in_code(name: &str) -> String {
    name.replace('-', "_")
}

/// The names of the dependencies in a manifest.
fn declared(manifest: &str) -> Vec<&str> {
    let (mut names, mut inside) = (Vec::new(), false);
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = !table.starts_with(WORKSPACE) && TABLES.contains(&last(table));
            // A dependency may have a table of its own.
            let (above, name) = table.rsplit_once('.').unwrap_or(("", table));
            if !table.starts_with(WORKSPACE) && TABLES.contains(&last(above)) {
                names.push(name);
            }
        } else if let Some((key, _)) = line.split_once('=').filter(|_| inside) {
            let name = key.split('.').next().unwrap_or_default().trim();
            if !name.is_empty() && name.chars().all(|c| is_word(c) || c == '-') {
                names.push(name);
            }
        }
    }
    names
}

/// The last part of the name of a table.
fn last(table: &str) -> &str {
    table.rsplit('.').next().unwrap_or_default()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first names of the paths in code without comments and strings, and the crates that it
/// imports whole.
fn crates(code: &str) -> BTreeSet<String> {
    let word_before = |at: usize| code[..at].rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
    let paths = code.match_indices("::").filter_map(|(at, _)| {
        let word = word_before(at);
        // What follows a name or a type is inside it. A path may begin with `::`.
        let above = code[..at - word.len()].strip_suffix("::");
        let is_first = above.is_none_or(|above| !above.ends_with(|c: char| is_word(c) || c == '>'));
        (is_first && !word.is_empty()).then(|| word.to_owned())
    });
    let whole = ["use ", "extern crate "].into_iter().flat_map(|keyword| {
        code.match_indices(keyword).map(move |(at, _)| {
            let rest = &code[at + keyword.len()..];
            rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())].to_owned()
        })
    });
    paths.chain(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_ours_are_used() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let (count, wrong) = check(root).unwrap();
        assert_eq!(wrong, Vec::<String>::new());
        assert!(count > 200, "{count} dependencies");
    }

    #[test]
    fn a_manifest_names_its_dependencies() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\na-b.workspace = true\n# none = 1\n\
                        c = { version = \"1\", features = [\n  \"d\",\n] }\n[features]\ne = []\n\
                        [target.'cfg(unix)'.dev-dependencies]\nf = \"1\"\n[build-dependencies.g]\npath = \"..\"\n\
                        [workspace.dependencies]\nh = \"1\"\n[workspace.dependencies.i]\npath = \"..\"\n";
        assert_eq!(declared(manifest), ["a-b", "c", "f", "g"]);
    }

    #[test]
    fn a_crate_is_the_beginning_of_a_path() {
        let code = "use a;\nuse b::{c::d, e};\nextern crate f;\n\
                    fn g(h: &::i::J) -> K { crate::l::m(<N>::o::p(), q!()) }";
        let found = crates(code);
        for name in ["a", "b", "c", "f", "i"] {
            assert!(found.contains(name), "{name}: {found:?}");
        }
        for name in ["d", "e", "J", "l", "m", "o", "p", "q"] {
            assert!(!found.contains(name), "{name}: {found:?}");
        }
    }
}
