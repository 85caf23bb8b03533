#![no_main]

use hotbunk_fuzz_entry::Target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| Target::Head.run(bytes));
