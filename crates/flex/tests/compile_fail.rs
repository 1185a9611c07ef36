//! What the types refuse, each with the expected error, beside a twin that compiles.
//!
//! The texts are those of one compiler version; after an update, look at the differences and run with
//! `TRYBUILD=overwrite`.

#[test]
fn the_contract_is_checked_by_the_compiler() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
