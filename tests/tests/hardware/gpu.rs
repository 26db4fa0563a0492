//! GPUs, by the real way through the driver's library.
