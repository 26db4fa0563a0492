//! The stream of an exporter, into the whole engine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::stream(data));
