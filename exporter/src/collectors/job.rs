//! What runs on the node: jobs and the GPUs that they hold, the heartbeats of their processes, and
//! the status that NCCL reports of them.

pub mod allocation;
pub mod heartbeat;
pub mod ras;
