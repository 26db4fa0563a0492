//! Writes the generated files: those of the repository, or with `--parameters FILE --output DIR`
//! the rules of a site.

use std::error::Error;
use std::path::Path;

use stepwatch_dashboards::{generated, root, rules};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (files, directory) = match arguments[..] {
        [] => (generated()?, root()),
        ["--parameters", file, "--output", directory] => {
            let parameters = rules::Parameters::read(Some(Path::new(file)))?;
            (rules::generated(&parameters)?, Path::new(directory))
        }
        _ => return Err("usage: stepwatch-dashboards [--parameters FILE --output DIR]".into()),
    };
    for (name, content) in files {
        let path = directory.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, content)?;
    }
    Ok(())
}
