//! libFuzzer's way into [`flex_fuzz::arena`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flex_fuzz::arena::run(input));
