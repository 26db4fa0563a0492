//! What the program does besides serving, one file a command.

pub mod check;
pub mod emit;
pub mod format;
pub mod reference;
pub mod runs;
