//! Reports to Kubeflow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepwatch_exporter::fuzz::kubeflow(data));
