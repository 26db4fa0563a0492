//! JSON lines.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_formats::fuzz::json(data));
