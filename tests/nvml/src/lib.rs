//! A stand-in for `libnvidia-ml.so.1`: GPUs that are not there, whose values a file gives.
//!
//! As a shared library it is loaded through the same door as the driver's own and answers the same
//! calls with the same structures, codes and quirks. The file that [`SCRIPT`] names is read again
//! whenever it changes, so that a test changes the world under a program that runs. As a Rust
//! library it is what such a test writes the file with ([`Script`], [`Stage`]), and reads what was
//! called how often and what was left open ([`Calls`]).
//!
//! It is stricter than the driver where that finds mistakes: a handle from before a shutdown, a
//! sample freed twice or a structure of the wrong version is an error, and counted under
//! [`calls::MISUSE`].

mod api;
pub mod calls;
mod fleets;
mod handles;
mod model;
pub mod script;
mod stage;
mod world;

pub use calls::Calls;
pub use fleets::Fleet;
pub use script::{Code, Effect, Fault, NvmlEvent, Quantity, Script};
pub use stage::{Stage, library, library_without};

/// Names the script. Without it there is no driver to talk to.
pub const SCRIPT: &str = "STEPWATCH_FAKE_NVML";
