//! The kernel's log, read from the device or from a file, or missing.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::kmsg(data));
