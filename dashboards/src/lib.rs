//! Grafana dashboards as code: typed panels here, JSON for Grafana beside it in the repository.
//!
//! Every panel answers one question, which is its description in Grafana and its line in
//! `README.md`; both files are generated (`cargo run -p stepwatch-dashboards`) and a test fails
//! when they are out of date. Queries are kept as plain PromQL, so that they can be pasted into
//! Prometheus; that they parse and name only metrics that exist is tested, not hoped.

pub mod layout;
pub mod model;
mod node;
pub mod promql;
mod readme;
mod training;

use std::path::{Path, PathBuf};

use layout::Board;

/// Every dashboard, with the name of its file.
pub fn all() -> Vec<(&'static str, Board)> {
    vec![("training.json", training::board()), ("node.json", node::board())]
}

/// What is committed: file names and their content.
pub fn generated() -> Result<Vec<(PathBuf, String)>, serde_json::Error> {
    let boards = all();
    let mut files = vec![(PathBuf::from("README.md"), readme::render(&boards))];
    for (name, board) in &boards {
        let json = serde_json::to_string_pretty(&board.dashboard())?;
        files.push((PathBuf::from(name), json + "\n"));
    }
    Ok(files)
}

/// Where the generated files live.
pub fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
