//! libFuzzer's way into [`flex_fuzz::import`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flex_fuzz::import::run(input));
