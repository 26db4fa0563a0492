//! Runs Stepwatch for real: the two programs as processes, the fakes that they use, trainers that
//! feed them, and real peers if the machine has them.
//!
//! The expected results are in the tests and not here. Nothing sleeps to synchronise: every wait
//! has a condition and a deadline, and a failure shows the logs of the processes involved.

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
pub mod postgres;
pub mod programs;
pub mod random;
pub mod remote_write;
pub mod say;
pub mod stack;
pub mod stories;
pub mod trainer;

pub use crowd::Crowd;
pub use daemon::Daemon;
pub use fake_libc::FakeLibc;
pub use poll::poll_until;
pub use postgres::{Postgres, Proxy};
pub use programs::{Alerter, Exporter, Machine};
pub use random::Random;
pub use stack::{Inbound, Stack, StackOptions};
