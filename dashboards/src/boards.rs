//! Every dashboard.

use crate::layout::Board;
use crate::{fabric, fleet, gpu, incidents, jobs, node, stepwatch, storage, training};

/// Every dashboard, with the name of its file.
pub fn all() -> Vec<(&'static str, Board)> {
    vec![
        ("fleet.json", fleet::board()),
        ("training.json", training::board()),
        ("node.json", node::board()),
        ("gpu.json", gpu::board()),
        ("fabric.json", fabric::board()),
        ("storage.json", storage::board()),
        ("jobs.json", jobs::board()),
        ("incidents.json", incidents::board()),
        ("stepwatch.json", stepwatch::board()),
    ]
}
