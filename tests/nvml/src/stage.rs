//! What a test does with the library: find it, and set the world that it shows.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use crate::calls::Calls;
use crate::script::Script;

const FILE: &str = "libstepwatch_fake_nvml.so";

/// The library, built beside the running test because its package depends on this one.
pub fn library() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let places =
        exe.ancestors().skip(1).take(2).flat_map(|dir| [dir.join(FILE), dir.join("deps").join(FILE)]);
    let found = places.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        Error::other(format!("no {FILE} beside {}: depend on stepwatch-fake-nvml", exe.display()))
    })
}

/// A copy of the library in `dir` that lacks some functions, as one of an older driver does.
pub fn library_without(dir: &Path, functions: &[&str]) -> Result<PathBuf> {
    let mut image = std::fs::read(library()?)?;
    for function in functions {
        // Its name in the table of symbols; under another name it is not found.
        let name: Vec<u8> = [&[0], function.as_bytes(), &[0]].concat();
        let places: Vec<usize> = (0..image.len().saturating_sub(name.len()))
            .filter(|at| image[*at..].starts_with(&name))
            .collect();
        if places.is_empty() {
            return Err(Error::other(format!("{FILE} has no {function}")));
        }
        places.into_iter().for_each(|at| image[at + 1] = b'x');
    }
    let copy = dir.join(FILE);
    std::fs::write(&copy, image)?;
    Ok(copy)
}

/// A script at its place, and what came of it.
#[derive(Debug, Clone)]
pub struct Stage {
    path: PathBuf,
}

impl Stage {
    /// In `dir`, which must be there.
    pub fn new(dir: &Path, script: &Script) -> Result<Self> {
        let stage = Self { path: dir.join("nvml.json") };
        stage.set(script)?;
        Ok(stage)
    }

    /// Replaces the world: at once for the next caller, and never half.
    pub fn set(&self, script: &Script) -> Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(script)?)?;
        std::fs::rename(new, &self.path)
    }

    /// The script, for the program's environment.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn calls(&self) -> Result<Calls> {
        Calls::read(&self.path)
    }

    /// What the library has open exactly as long as it is in use.
    pub fn device(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".device");
        name.into()
    }
}
