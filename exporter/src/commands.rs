//! The commands besides serving, one file each.

pub mod check;
pub mod emit;
pub mod format;
pub mod reference;
pub mod runs;
