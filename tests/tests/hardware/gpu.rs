//! GPUs, by the real way through the driver's library.

mod computing;
mod faults;
mod hang;
mod unsupported;
mod values;
