//! libFuzzer's way into [`flex_fuzz::pressure`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flex_fuzz::pressure::run(input));
