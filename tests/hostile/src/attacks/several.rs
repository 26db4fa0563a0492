//! Three parallel attacks from different addresses: small bodies that are held back, the series of
//! a thousand ranks, and unread answers.

use std::net::Ipv4Addr;

use super::{bodies, unread, values};
use crate::attack::{Attack, Target, come_from, raise_open_files};

/// The exporter's memory limit under three attackers: each has separate shares, and bodies, series
/// and answers have separate budgets.
const MAX_KIB: u64 = 80 << 10;

pub(crate) const ATTACK: Attack = Attack { exporter_max_kib: MAX_KIB, ..Attack::new("several-at-once", act) };

const PARTS: [&Attack; 3] = [&bodies::SMALL, &values::SERIES, &unread::EXPORTER];

fn act(target: &Target) -> anyhow::Result<()> {
    raise_open_files()?;
    std::thread::scope(|threads| {
        for (part, host) in PARTS.into_iter().zip(2..) {
            threads.spawn(move || {
                come_from(Ipv4Addr::new(127, 0, 0, host));
                // The attacks displace each other, so a refused or finished one starts again.
                loop {
                    let _ = (part.act)(target);
                }
            });
        }
    });
    Ok(())
}
