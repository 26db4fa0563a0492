//! Calendars of people on call.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::calendar(data));
