//! Grafana dashboards as code: typed panels here, JSON for Grafana beside it in the repository.
//!
//! Every panel answers one question, which is its description in Grafana and its line in
//! `README.md`; both files are generated (`cargo run -p stepwatch-dashboards`) and a test fails
//! when they are out of date. Queries are kept as plain PromQL, so that they can be pasted into
//! Prometheus; that they parse and name only metrics that exist is tested, not hoped.

mod boards;
pub mod coverage;
mod ethernet;
mod fabric;
mod fleet;
mod gpu;
mod head;
mod incidents;
mod jobs;
pub mod layout;
pub mod model;
mod node;
pub mod promql;
mod readme;
pub mod rules;
mod schedulers;
mod series;
mod stepwatch;
mod storage;
mod training;

use std::error::Error;
use std::path::{Path, PathBuf};

pub use boards::all;

/// What is committed: paths from the root of the repository, and contents.
pub fn generated() -> Result<Vec<(PathBuf, String)>, Box<dyn Error>> {
    let boards = all();
    let here = Path::new("dashboards");
    let mut files = vec![(here.join("README.md"), readme::render(&boards))];
    for (name, board) in &boards {
        let json = serde_json::to_string_pretty(&board.dashboard())?;
        files.push((here.join(name), json + "\n"));
    }
    files.extend(rules::generated(&rules::Parameters::read(None)?)?);
    Ok(files)
}

/// Where this crate is.
pub fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The root of the repository.
pub fn root() -> &'static Path {
    directory().parent().unwrap_or(directory())
}
