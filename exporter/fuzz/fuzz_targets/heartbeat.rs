//! Heartbeat pages of training processes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::heartbeat(data));
