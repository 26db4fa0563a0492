//! What Slack and PagerDuty send, and how they sign it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_alerter::fuzz::callbacks(data));
