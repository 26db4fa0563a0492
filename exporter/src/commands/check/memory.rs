//! Host memory.

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::host::edac::{ERRORS, MODULE_ERRORS};

pub(super) const CHECK: Check =
    Check { name: "memory", about: "host memory has no uncorrected errors", needs: &["edac"], run };

/// A module with more corrected errors than this since the driver was loaded is likely to get
/// worse.
const MANY_CORRECTED: f64 = 10_000.0;

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let modules = |severity: &str| {
        let hit = node.set(&MODULE_ERRORS).filter(|row| row.label("severity") == severity);
        let named = hit.map(|row| match row.label("label") {
            "" => format!("{} {}", row.label("controller"), row.label("module")),
            label => label.to_owned(),
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
    };
    let total = |severity: &str| -> f64 {
        node.rows(&ERRORS).filter(|row| row.label("severity") == severity).map(|row| row.value).sum()
    };
    let (corrected, uncorrected) = (total("corrected"), total("uncorrected"));
    if uncorrected > 0.0 {
        found
            .unhealthy(format!(
                "{uncorrected:.0} uncorrected errors of host memory{}",
                modules("uncorrected")
            ))
            .action("drain the node and have the module replaced");
    }
    if corrected > MANY_CORRECTED {
        found
            .warning(format!("{corrected:.0} corrected errors of host memory{}", modules("corrected")))
            .action("have the module replaced at the next chance");
    }
    found.or_ok(|| format!("{corrected:.0} corrected errors of host memory, none uncorrected"))
}
