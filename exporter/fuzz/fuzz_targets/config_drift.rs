//! Inputs that describe how a run is set up: environments, command lines, lists of mappings.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::config_drift(data));
