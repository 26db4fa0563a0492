//! alerter
