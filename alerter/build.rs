//! Lists the runbooks of `docs/runbooks/`, so that the program has each of them inside.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let folder = manifest.join("../docs/runbooks");
    writeln!(io::stdout(), "cargo::rerun-if-changed={}", folder.display())?;
    let mut pages = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    pages.sort();
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let mut list = fs::File::create(Path::new(&out).join("runbooks.rs"))?;
    writeln!(list, "&[")?;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|e| e == "md")) {
        let name = page.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let path = page.canonicalize()?.to_string_lossy().into_owned();
        writeln!(list, "    ({name:?}, include_str!({path:?})),")?;
    }
    writeln!(list, "]")
}
