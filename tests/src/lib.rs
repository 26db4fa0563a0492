//! Running Stepwatch for real: the two programs as processes, the fakes they talk to, trainers that
//! feed them, and real peers where the machine has them.
//!
//! Nothing here contains a right answer: that is in the tests. Nothing sleeps to synchronise: every
//! wait has a condition and a deadline, and a failure shows the logs of the processes that took
//! part.

pub mod bins;
pub mod crowd;
pub mod daemon;
pub mod exposition;
pub mod fake_libc;
pub mod families;
pub mod fleet;
pub mod http;
pub mod peers;
pub mod poll;
pub mod programs;
pub mod random;
pub mod remote_write;
pub mod say;
pub mod stack;
pub mod trainer;

pub use crowd::Crowd;
pub use daemon::Daemon;
pub use fake_libc::FakeLibc;
pub use poll::poll_until;
pub use programs::{Alerter, Exporter, Machine};
pub use random::Random;
pub use stack::{Inbound, Stack, StackOptions};
