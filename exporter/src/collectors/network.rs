//! What carries a run between nodes: RDMA ports, Ethernet interfaces, and which of them is near
//! which GPU.

pub mod affinity;
pub mod bonds;
pub mod nic;
pub mod optics;
pub mod rdma;
