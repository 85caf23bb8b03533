//! The gateway, over its real socket, in front of two engines that serve and keep watch.
//!
//! Two targets share them. For `head` the input is what a client sends on its connection, as it comes. For `body` its
//! first byte chooses a path, a content type and how the body is framed; what follows is the body. What must hold:
//!
//! - an engine is only ever asked for what clients may ask: no control route, whatever a path looks like;
//! - a body reaches the engine of the model that it names, as a second parser reads it, and byte for byte;
//! - whatever is no such request is answered with a refusal: JSON with an error, and never a fault of the gateway's own;
//! - nothing is left behind: no lease, no place in a queue.

use hotbunk_agent::clock;
use hotbunk_agent::config::{self, Facts};
use hotbunk_agent::gateway::proxy::{Gateway, Listen, Sockets, threads};
use hotbunk_agent::gateway::{Hub, Link};
use hotbunk_agent::metrics::Metrics;
use hotbunk_agent::switcher::spec;
use hotbunk_core::ids::EngineId;
use hotbunk_core::tier::Tier;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longer than any answer takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who has not said everything by then has hung up.
const PAUSE: Duration = Duration::from_millis(30);

/// First segments that no client may reach.
const CONTROL: [&str; 14] = [
    "sleep",
    "wake_up",
    "is_sleeping",
    "collective_rpc",
    "reset_prefix_cache",
    "reset_mm_cache",
    "pause",
    "resume",
    "is_paused",
    "release_kv_cache_memory",
    "update_weights",
    "abort_requests",
    "server_info",
    "metrics",
];

/// What one desk has.
struct Desk {
    address: SocketAddr,
    hub: Arc<Hub>,
    /// What the engines found wrong.
    complaints: Arc<Mutex<Vec<String>>>,
    _gateway: Gateway,
}

fn desk() -> &'static Desk {
    static DESK: OnceLock<Desk> = OnceLock::new();
    DESK.get_or_init(|| {
        let complaints = Arc::default();
        let ports = ["A", "B"].map(|name| engine(name, &complaints));
        let section = |name: &str, port: u16| {
            format!(
                r#"
                [[engine]]
                name = "{name}"
                device = "none"
                model = "org/{name}"
                port = {port}
                command = ["vllm", "serve", "x", "--served-model-name", "org/{name}", "--host", "127.0.0.1", "--port", "{port}"]
                env = {{ VLLM_SERVER_DEV_MODE = "1" }}
                "#
            )
        };
        let text = format!("{}{}", section("A", ports[0]), section("B", ports[1]));
        let parsed = config::parse(&text, Path::new("hotbunk.toml"), &Facts::default());
        let (mut config, _) = parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
        config.gateway.threads = Some(1);
        let unknown = |_: &str| None;
        let mut node = hotbunk_core::state::Node::new(
            spec::engines(&config, unknown),
            spec::devices(&config, unknown),
            spec::policy(&config, None),
            1,
        );
        for engine in &mut node.engines {
            (engine.tier, engine.admission, engine.process) = (Tier::Awake, true, true);
            (engine.life, engine.generation) = (1, 1);
        }
        let hub = Hub::new(&config, Metrics::new());
        let (publish, newest) = tokio::sync::watch::channel(Arc::new(node.clone()));
        // As long as this process.
        std::mem::forget(publish);
        hub.attach(Link { tell: Box::new(|_| {}), node: newest });
        let on = Listen::Address(SocketAddr::from(([127, 0, 0, 1], 0)));
        let sockets = Sockets::bind(on, threads(&config.gateway)).expect("binds");
        let gateway = Gateway::start(sockets, Arc::clone(&hub)).expect("starts");
        hub.follow(&node, &[], clock::now());
        Desk { address: gateway.address(), hub, complaints, _gateway: gateway }
    })
}

/// An engine that answers everything with what it was asked for, and complains of what it should not have been.
fn engine(name: &'static str, complaints: &Arc<Mutex<Vec<String>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("has an address").port();
    let complaints = Arc::clone(complaints);
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let complaints = Arc::clone(&complaints);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(socket);
                while let Some(call) = Call::read(&mut reader) {
                    if let Err(wrong) = call.judge(name) {
                        let wrong = format!("engine {name}: {wrong}");
                        complaints.lock().unwrap_or_else(PoisonError::into_inner).push(wrong);
                    }
                    let (sum, length) = (fnv1a(&call.body), call.body.len());
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-engine: {name}\r\nx-body: {sum}/{length}\r\n\
                         content-length: 2\r\n\r\n{{}}"
                    );
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// A request as it arrives at an engine.
struct Call {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Call {
    fn read(from: &mut BufReader<TcpStream>) -> Option<Call> {
        let mut next = || {
            let mut line = String::new();
            from.read_line(&mut line).ok().filter(|n| *n > 0)?;
            Some(line.trim_end_matches(['\r', '\n']).to_owned())
        };
        let line = next()?;
        let mut headers = Vec::new();
        loop {
            let header = next()?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut call = Call { line, headers, body: Vec::new() };
        if let Some(length) = call.header("content-length").and_then(|value| value.parse().ok()) {
            call.body.resize(length, 0);
            from.read_exact(&mut call.body).ok()?;
        } else if call.header("transfer-encoding").is_some() {
            loop {
                let mut size = String::new();
                from.read_line(&mut size).ok()?;
                let size = usize::from_str_radix(size.trim(), 16).ok()?;
                let mut chunk = vec![0; size + 2];
                from.read_exact(&mut chunk).ok()?;
                if size == 0 {
                    break;
                }
                call.body.extend_from_slice(&chunk[..size]);
            }
        }
        Some(call)
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }

    fn judge(&self, name: &str) -> Result<(), String> {
        let path = self.line.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'-' | b'.');
        let mut segments = path.split('/').skip(1);
        let odd = |s: &str| s.is_empty() || s == "." || s == "..";
        if !path.starts_with('/') || !path.bytes().all(plain) || segments.clone().any(odd) {
            return Err(format!("a path that is not spelled plainly: {}", self.line));
        }
        let first = segments.next().unwrap_or_default();
        if CONTROL.contains(&first) || (first == "v1" && segments.any(|s| s.ends_with("lora_adapter"))) {
            return Err(format!("a route that is not for clients: {}", self.line));
        }
        for single in ["content-length", "transfer-encoding", "host", "content-type"] {
            if self.headers.iter().filter(|(name, _)| name == single).count() > 1 {
                return Err(format!("{single} comes twice: {:?}", self.headers));
            }
        }
        if self.header("content-length").is_some() && self.header("transfer-encoding").is_some() {
            return Err(format!("framed in two ways: {:?}", self.headers));
        }
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(Value::Object(body)) if body.get("model") != Some(&Value::from(format!("org/{name}"))) => {
                Err(format!("a body of another model: {:?}", body.get("model")))
            }
            _ => Ok(()),
        }
    }
}

/// One answer.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, wanted: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim()).next()
    }
}

/// Everything that came back on a connection, answer by answer.
fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head of HTTP: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 4..];
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status: u16 = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        let mut answer = Answer { status, head, body: Vec::new() };
        if status == 100 {
            continue;
        }
        let length = answer.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        // An answer to HEAD tells a length and brings nothing.
        let body = bytes.get(..length).filter(|body| !body.starts_with(b"HTTP/1.")).unwrap_or_default();
        answer.body = body.to_vec();
        bytes = &bytes[body.len()..];
        all.push(answer);
    }
    all
}

/// Sends all of it, and what came back. Once nothing has come for so long, the client hangs up.
fn exchange(bytes: &[u8], pause: Duration) -> Vec<Answer> {
    let mut stream = TcpStream::connect(desk().address).expect("the gateway is there");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(pause)).expect("a socket");
    // A refusal may come, and the connection be closed, before all of it has been taken.
    drop(stream.write_all(bytes));
    let mut back = Vec::new();
    let began = Instant::now();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => back.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                assert!(began.elapsed() < PATIENCE, "the connection is not closed");
                drop(stream.shutdown(Shutdown::Write));
            }
            // What was cut off may be half an answer, which says nothing.
            Err(_) => return Vec::new(),
        }
    }
    answers(&back)
}

/// What holds of every answer, and afterwards of the gateway.
fn judge(all: &[Answer]) {
    let desk = desk();
    for answer in all {
        let text = String::from_utf8_lossy(&answer.body);
        assert!((200..=599).contains(&answer.status), "{}", answer.head);
        // None of the gateway's own making: the engines answer everything.
        assert!(!matches!(answer.status, 500 | 502 | 504), "{}\n{text}", answer.head);
        if answer.status >= 400 && !answer.body.is_empty() {
            let body: Value = serde_json::from_slice(&answer.body)
                .unwrap_or_else(|e| panic!("a refusal is JSON: {e}\n{}\n{text}", answer.head));
            let message = body.pointer("/error/message").and_then(Value::as_str);
            assert!(message.is_some_and(|m| !m.is_empty()), "no reason: {text}");
        }
    }
    let complaints = std::mem::take(&mut *desk.complaints.lock().unwrap_or_else(PoisonError::into_inner));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let began = Instant::now();
    for engine in [EngineId(0), EngineId(1)] {
        while desk.hub.in_flight(engine) > 0 || desk.hub.held(engine) > 0 {
            assert!(began.elapsed() < PATIENCE, "a lease or a place in a queue is left over");
            std::thread::yield_now();
        }
    }
}

/// A client's connection.
pub(crate) fn head(bytes: &[u8]) {
    judge(&exchange(bytes, PAUSE));
}

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/v1/audio/transcriptions",
    "/rerank",
];

const TYPES: [&str; 4] =
    ["application/json", "application/json; charset=utf-8", "multipart/form-data; boundary=b", "text/plain"];

/// A request's body.
pub(crate) fn body(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let choice = usize::from(*choice);
    let (path, kind, chunked) = (PATHS[choice % 8], TYPES[choice / 8 % 4], choice / 32 % 2 == 1);
    let mut request =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\n")
            .into_bytes();
    if chunked {
        request.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        // Cut where it hurts: in the middle of whatever stands there.
        for part in body.chunks(1 + body.len() / 3) {
            request.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
    } else {
        request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(body);
    }
    let all = exchange(&request, PATIENCE);
    judge(&all);
    let [answer] = all.as_slice() else { panic!("{} answers to one request", all.len()) };
    let text = String::from_utf8_lossy(&answer.body);
    if answer.status == 200 {
        let sum = format!("{}/{}", fnv1a(body), body.len());
        assert_eq!(answer.header("x-body"), Some(sum.as_str()), "it was not passed on as it came");
    }
    if !kind.starts_with("application/json") || path.contains("audio") {
        return;
    }
    // A second parser's word; what it cannot read at all may still be read by the engine's.
    let Ok(read) = serde_json::from_slice::<Value>(body) else { return };
    let code = || {
        serde_json::from_slice::<Value>(&answer.body)
            .ok()?
            .pointer("/error/code")?
            .as_str()
            .map(str::to_owned)
    };
    match read.get("model").and_then(Value::as_str) {
        Some("org/A") => assert_eq!(answer.header("x-engine"), Some("A"), "{text}"),
        Some("org/B") => assert_eq!(answer.header("x-engine"), Some("B"), "{text}"),
        Some(_) => assert_eq!((answer.status, code().as_deref()), (404, Some("model_not_found")), "{text}"),
        None => assert_eq!(answer.status, 400, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(name: &str) -> Vec<u8> {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        std::fs::read(corpora.join(name)).expect("reads")
    }

    fn told(name: &str) -> Vec<(u16, Option<String>)> {
        let all = exchange(&seed(name), PATIENCE);
        all.iter().map(|a| (a.status, a.header("x-engine").map(str::to_owned))).collect()
    }

    #[test]
    fn seeds_reach_what_they_are_meant_for() {
        assert_eq!(told("head/seed_01"), [(200, Some("A".into()))], "a request");
        assert_eq!(told("head/seed_02"), [(200, Some("A".into())), (200, None)], "two on one connection");
        assert_eq!(told("head/seed_03"), [(404, None)], "a control route");
        assert_eq!(told("head/seed_07"), [(200, Some("A".into()))], "in chunks");
    }

    /// An engine that would believe everything: what is to be found is found.
    #[test]
    fn the_watch_at_the_engines_is_kept() {
        let call = |line: &str, body: &str| Call {
            line: line.into(),
            headers: vec![("host".into(), "x".into())],
            body: body.into(),
        };
        let good = call("POST /v1/completions HTTP/1.1", r#"{"model":"org/A"}"#);
        assert_eq!(good.judge("A"), Ok(()));
        assert!(good.judge("B").is_err());
        for line in
            ["POST /sleep?level=1 HTTP/1.1", "POST /v1/../sleep HTTP/1.1", "POST /v1/%73leep HTTP/1.1"]
        {
            assert!(call(line, "").judge("A").is_err(), "{line}");
        }
    }
}
