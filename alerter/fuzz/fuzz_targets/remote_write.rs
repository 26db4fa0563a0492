//! Requests of Prometheus remote write, into the whole engine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::remote_write(data));
