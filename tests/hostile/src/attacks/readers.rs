//! 32 readers of the exporter's stream, which reconnect when they are cut off.

use std::io::{Read as _, Write as _};

use crate::attack::{Attack, Target, open};

pub(crate) const ATTACK: Attack = Attack::new("stream-readers", act);

const READERS: usize = 32;

fn act(target: &Target) -> anyhow::Result<()> {
    open(target.exporter)?;
    std::thread::scope(|threads| {
        for _ in 0..READERS {
            threads.spawn(|| {
                loop {
                    let Ok(mut stream) = open(target.exporter) else { continue };
                    let asked =
                        write!(stream, "GET /v1/stream HTTP/1.1\r\nhost: {}\r\n\r\n", target.exporter);
                    let mut answer = [0; 4096];
                    // Until the reader is refused or cut off.
                    while asked.is_ok() && stream.read(&mut answer).is_ok_and(|n| n > 0) {}
                }
            });
        }
    });
    Ok(())
}
