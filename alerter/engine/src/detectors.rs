//! One file a detector: its config and defaults, its formula with the source, its tests.

pub mod ckpt_stale;
pub mod hang;
pub mod rank_dead;
pub mod source_lost;
