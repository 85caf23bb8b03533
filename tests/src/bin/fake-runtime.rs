//! `docker`, as far as processes go: the client of the tests' stand-in for a container runtime, and its containers' first
//! instruction.
//!
//! ```text
//! fake-runtime SOCKET run [--rm] [--network host] [--cidfile PATH] [-e NAME[=VALUE]]… --name NAME IMAGE WORDS…
//! fake-runtime SOCKET stop|kill NAME
//! fake-runtime init CGROUP|- WORDS…
//! ```
#![expect(clippy::print_stderr, reason = "a command-line program for tests")]

use hotbunk_tests::RuntimeRequest as Request;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let code = match words.split_first() {
        Some((first, rest)) if first == "init" => init(rest),
        Some((socket, rest)) => match request(rest) {
            Some(request) => ask(socket, &request),
            None => 125,
        },
        None => 125,
    };
    ExitCode::from(code)
}

/// Leaves the daemon's session and cgroup, and becomes the container's first process.
fn init(words: &[String]) -> u8 {
    let [cgroup, program, arguments @ ..] = words else { return 125 };
    if rustix::process::setsid().is_err() {
        return 126;
    }
    if cgroup != "-" && std::fs::write(format!("{cgroup}/cgroup.procs"), "0").is_err() {
        return 126;
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("{program}: {error}");
    127
}

fn request(words: &[String]) -> Option<Request> {
    let (verb, rest) = words.split_first()?;
    match verb.as_str() {
        "stop" => Some(Request::Stop { name: rest.first()?.clone() }),
        "kill" => Some(Request::Kill { name: rest.first()?.clone() }),
        "run" => run(rest),
        _ => None,
    }
}

fn run(words: &[String]) -> Option<Request> {
    let (mut name, mut env, mut id_file) = (None, BTreeMap::new(), None);
    let mut words = words.iter();
    loop {
        match words.next()?.as_str() {
            "--rm" => {}
            "--network" => drop(words.next()),
            "--name" => name = words.next().cloned(),
            "--cidfile" => id_file = words.next().map(Into::into),
            "-e" => {
                let entry = words.next()?;
                let outside = || std::env::var(entry).ok().map(|value| (entry.clone(), value));
                let inside = || entry.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
                env.extend(inside().or_else(outside));
            }
            // The image.
            _ => break,
        }
    }
    Some(Request::Run { name: name?, words: words.cloned().collect(), env, id_file })
}

/// Asks the daemon, passes on what the container says, and ends as it does.
fn ask(socket: &str, request: &Request) -> u8 {
    let Ok(mut stream) = UnixStream::connect(socket) else {
        eprintln!("cannot connect to the daemon at {socket}");
        return 125;
    };
    let line = serde_json::to_string(request).unwrap_or_default();
    if writeln!(stream, "{line}").is_err() {
        return 125;
    }
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&line);
        if let Some((said, code)) = text.split_once(hotbunk_tests::RUNTIME_EXIT) {
            if !said.is_empty() {
                eprintln!("{said}");
            }
            return code.trim().parse().unwrap_or(125);
        }
        eprintln!("{text}");
    }
    125
}
