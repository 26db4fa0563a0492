//! One file a detector: its config and defaults, its formula with the source, its tests.
