//! Files of `/sys` and `/proc` about links.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::links(data));
