//! Writes the generated files.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for (name, content) in stepwatch_dashboards::generated()? {
        std::fs::write(stepwatch_dashboards::root().join(name), content)?;
    }
    Ok(())
}
