//! The kernel's log, as the device, a file or nobody gives it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::kmsg(data));
