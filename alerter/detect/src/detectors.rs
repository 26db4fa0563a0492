//! One file a detector: its config and defaults, its formula with the source, its tests.

pub mod activation_shift;
pub mod ckpt_slow;
pub mod ckpt_stale;
pub mod config_drift;
pub mod data_wait;
pub mod draft;
pub mod ecc_trend;
pub mod eval_gap;
mod faults;
pub mod first_failure;
pub mod flight_recorder_dump;
pub mod gc_tail;
pub mod generic;
pub mod gpu_fault;
pub mod grad_level_shift;
pub mod grad_spike;
pub mod hang;
pub mod launcher_dead;
pub mod layer_grad;
mod layers;
pub mod learning;
pub mod link_fault;
pub mod loss_shift;
pub mod loss_spike;
pub mod lr_coupling;
pub mod mfu_droop;
pub mod mfu_implausible;
pub mod node_fault;
pub mod nonfinite;
pub mod peer;
pub mod rank_dead;
pub mod rank_loss;
mod reported;
pub mod shared;
pub mod slow_start;
pub mod source_lost;
pub mod stall;
pub mod step_time_jitter;
pub mod straggler;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod torchelastic_error;
pub mod user_alert;
