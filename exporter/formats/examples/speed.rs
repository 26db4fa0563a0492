//! Lines a second of `auto` on logs: `cargo run --release -p stepwatch-formats --example speed --
//! exporter/formats/tests/data/*.log`.

#![expect(clippy::print_stdout, reason = "what it measured is its output")]

use std::time::{Duration, Instant};

use stepwatch_formats::LogReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:>12} {:>8}  {:<16} file", "lines/s", "MB/s", "format");
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let mut reader = LogReader::new(None)?;
        let mut events = Vec::new();
        let (start, mut rounds) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_millis(500) {
            for line in text.lines() {
                reader.line(line, &mut events);
                events.clear();
            }
            rounds += 1;
        }
        let per_second = f64::from(rounds) / start.elapsed().as_secs_f64();
        let (lines, bytes) = (text.lines().count() as f64, text.len() as f64);
        let (name, rate) = (reader.name(), lines * per_second);
        println!("{rate:>12.0} {:>8.1}  {name:<16} {path}", bytes * per_second / 1e6);
    }
    Ok(())
}
