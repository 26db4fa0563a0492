//! Three real alerters on one real PostgreSQL, which die, stand still, are cut off, and hand over:
//! no page is lost, and none is doubled.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod handover;
mod leading;
mod losses;
mod rounds;
mod stage;
