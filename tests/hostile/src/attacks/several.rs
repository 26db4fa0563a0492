//! Three attacks at once, each from an address of its own: small bodies that are held back, the
//! series of a thousand ranks, and answers that nobody reads.

use std::net::Ipv4Addr;

use super::{bodies, unread, values};
use crate::attack::{Attack, Target, come_from, raise_open_files};

/// What three attackers may make it take together: each has shares of his own, and the budgets of
/// bodies, series and answers are not one.
const MAX_KIB: u64 = 80 << 10;

pub(crate) const ATTACK: Attack = Attack { exporter_max_kib: MAX_KIB, ..Attack::new("several-at-once", act) };

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
