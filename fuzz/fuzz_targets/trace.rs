//! libFuzzer's way into [`flex_fuzz::trace`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flex_fuzz::trace::run(input));
