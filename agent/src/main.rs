//! `hotbunk-agent shim --spec FILE`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["shim", "--spec", spec] => hotbunk_agent::process::run_shim(Path::new(spec)),
        _ => ExitCode::from(2),
    }
}
