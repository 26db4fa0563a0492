//! Files of the kernel and files of metrics.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::node(data));
