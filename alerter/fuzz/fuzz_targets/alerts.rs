//! Alerts of other programs, into the whole engine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::alerts(data));
