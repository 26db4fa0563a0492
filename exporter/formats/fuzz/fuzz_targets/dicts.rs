//! Dicts as Python prints them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_formats::fuzz::dicts(data));
