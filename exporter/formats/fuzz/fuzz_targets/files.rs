//! The readers of files that are not lines.
#![no_main]

#[path = "../input.rs"]
mod input;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    input::read(data);
});
