//! alerter/engine
