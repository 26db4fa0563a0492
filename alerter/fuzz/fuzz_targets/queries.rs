//! Queries and silences of Alertmanager's API.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::queries(data));
