//! Where data and checkpoints lie: local disks and network file systems.

pub mod disk;
pub mod mounts;
pub mod nvme;
