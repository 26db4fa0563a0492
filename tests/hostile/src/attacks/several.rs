//! Three attacks at once, each from an address of its own: small bodies that are held back, the
//! series of a thousand ranks, and answers that nobody reads.

use std::net::Ipv4Addr;

use super::{bodies, unread, values};
use crate::attack::{Attack, Target, come_from, raise_open_files};

pub(crate) const ATTACK: Attack = Attack::new("several-at-once", act);

const PARTS: [&Attack; 3] = [&bodies::SMALL, &values::SERIES, &unread::EXPORTER];

fn act(target: &Target) -> anyhow::Result<()> {
    raise_open_files()?;
    std::thread::scope(|threads| {
        for (part, host) in PARTS.into_iter().zip(2..) {
            threads.spawn(move || {
                come_from(Ipv4Addr::new(127, 0, 0, host));
                // Each takes from the others: who is refused comes again, and who is done too.
                loop {
                    let _ = (part.act)(target);
                }
            });
        }
    });
    Ok(())
}
