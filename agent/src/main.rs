//! `hotbunk-agent`: see [`hotbunk_agent::cli`].

fn main() -> std::process::ExitCode {
    hotbunk_agent::cli::main()
}
