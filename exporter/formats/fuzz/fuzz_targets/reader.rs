//! A log as a whole, by every format.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_formats::fuzz::reader(data));
