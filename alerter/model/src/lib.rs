//! The vocabulary of the alerter: what a detector can say of a run or a node, as data.
//!
//! Code asks these types and never reads a sentence back. Words are made in one place, `render`,
//! when a message or another output is made. Everything here can be stored and sent: in JSON for
//! people and the API, in postcard for the engine's own state.
//!
//! Pure: no clock, socket, thread, file or randomness.

mod elsewhere;
mod evidence;
mod fault;
mod kind;
mod number;
mod render;
mod sentence;
mod suspect;
mod target;
pub mod time;

pub use elsewhere::Elsewhere;
pub use evidence::{Course, Evidence, Measure, Observation, ReadingUnit, Slowed};
pub use fault::{Fault, Said, Topic};
pub use kind::{Cause, Kind, Severity};
pub use number::{Num, number};
pub use render::{names, out_of_line, short};
pub use sentence::Sentence;
pub use suspect::Suspect;
pub use target::{Place, Storage, Target, Unit};
pub use time::{Span, Ts};
