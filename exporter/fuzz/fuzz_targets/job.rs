//! Inputs that describe jobs: answers of a kubelet, environments, control groups.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::job(data));
