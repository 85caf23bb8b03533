//! What clients do wrong, while others are served: the right answer, and nothing left of it.

use crate::answer::Complaint;
use crate::door::{Door, Ended, HangUp, Wanted, model};
use crate::draw::{Draw, is_full, say, seed};
use crate::left;
use hotbunk_tests::{Agent, PATIENCE, Setup, until};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const BODY: usize = 64 << 10;
const HEAD: usize = 8 << 10;

/// Sends bytes as they are; the whole answer, until the other side closes or says no more for a while.
async fn raw(door: &Door, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", door.port)).await.expect("the gateway listens");
    // Whoever has refused need not read the rest.
    drop(stream.write_all(bytes).await);
    let mut answer = Vec::new();
    let read = async { while matches!(stream.read_buf(&mut answer).await, Ok(1..)) {} };
    drop(tokio::time::timeout(Duration::from_secs(3), read).await);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The error of an answer, in OpenAI's form.
fn complaint(answer: &str) -> Result<Complaint, String> {
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {answer:?}"))?;
    let json = body.find('{').zip(body.rfind('}')).and_then(|(from, to)| body.get(from..=to)).unwrap_or(body);
    Complaint::read(&serde_json::from_str(json).map_err(|e| format!("{e}: {answer:?}"))?)
}

/// Asserts status and form; the error.
#[track_caller]
fn refused(what: &str, answer: &str, wanted: &[u16]) -> Complaint {
    assert!(wanted.contains(&status(answer)), "{what}: {answer:?} instead of {wanted:?}");
    complaint(answer).unwrap_or_else(|why| panic!("{what}: {why}"))
}

/// Whatever is wrong with a request by itself.
async fn malformed(door: &Door) {
    let a = model("A");
    for (what, body, wanted) in [
        ("no JSON", "{\"model\":".to_owned(), 400),
        ("no object", "[1,2]".to_owned(), 400),
        ("nothing", String::new(), 400),
        ("no model", json!({ "prompt": "x" }).to_string(), 400),
        ("a number for a model", json!({ "model": 3 }).to_string(), 400),
        ("no model at all", json!({ "model": null }).to_string(), 400),
        ("an unknown model", json!({ "model": "gpt-none", "prompt": "x" }).to_string(), 404),
        ("no UTF-8 escape", format!("{{\"model\":\"{a}\\ud800\"}}"), 400),
    ] {
        let said = refused(what, &raw(door, post("", &body).as_bytes()).await, &[wanted, 404]);
        if wanted == 404 {
            assert!(said.message.contains(&a), "{what}: it lists what there is: {said:?}");
        }
    }
    let deep = format!("{{\"model\":{}\"{a}\"{}}}", "[".repeat(20_000), "]".repeat(20_000));
    refused("a model under 20,000 brackets", &raw(door, post("", &deep).as_bytes()).await, &[400]);
}

/// Over the limits.
async fn too_large(door: &Door) {
    let large = format!("{{\"model\":\"{}\",\"prompt\":\"{}\"}}", model("A"), "x".repeat(BODY));
    refused("a body over the limit", &raw(door, post("", &large).as_bytes()).await, &[413]);
    // It is refused by its length alone.
    let promised = post("", "").replace("content-length: 0", "content-length: 99999999999");
    refused("a body that is only promised", &raw(door, promised.as_bytes()).await, &[413]);
    let endless = post("", "").replace("content-length: 0", "transfer-encoding: chunked")
        + &format!("4000\r\n{}\r\n", "x".repeat(0x4000)).repeat(6);
    refused("chunks over the limit", &raw(door, endless.as_bytes()).await, &[413]);
    let head = post(&format!("x-large: {}\r\n", "y".repeat(HEAD)), "{}");
    assert_eq!(status(&raw(door, head.as_bytes()).await), 431, "a header over the limit");
    let many: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let answer = raw(door, post(&many, "{}").as_bytes()).await;
    assert!(matches!(status(&answer), 400 | 431), "500 headers: {answer:?}");
}

/// Keys.
async fn unknown(door: &Door) {
    let body = json!({ "model": model("A"), "prompt": "x", "max_tokens": 1 }).to_string();
    for (what, headers) in [
        ("no key", ""),
        ("a wrong key", "authorization: Bearer wrong\r\n"),
        ("no word of a key", "authorization: Basic a2V5\r\n"),
        ("an empty key", "authorization: Bearer \r\n"),
    ] {
        refused(what, &raw(door, post(headers, &body).as_bytes()).await, &[401]);
    }
}

/// vLLM's own routes, and what is no HTTP.
async fn elsewhere(door: &Door) {
    for path in ["/sleep", "/v1/../sleep", "/%73leep", "/collective_rpc", "/sim/fault", "//wake_up"] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = raw(door, request.as_bytes()).await;
        assert!(matches!(status(&answer), 400 | 404), "{path}: {answer:?}");
    }
    let get = "GET /v1/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n";
    refused("a GET", &raw(door, get.as_bytes()).await, &[405]);
    for (what, bytes) in [
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("a length twice", post("content-length: 5\r\n", "{}").into_bytes()),
        ("a length that is none", post("", "").replace("length: 0", "length: -1").into_bytes()),
        (
            "a chunk that is none",
            (post("", "").replace("content-length: 0", "transfer-encoding: chunked") + "zz\r\n").into_bytes(),
        ),
        ("a line without an end", vec![b'G'; 3 * HEAD]),
    ] {
        let answer = raw(door, &bytes).await;
        assert!(matches!(status(&answer), 0 | 400 | 408 | 414 | 431), "{what}: {answer:?}");
    }
}

/// One that sends a byte now and then holds nothing for long.
async fn slow_loris(door: &Door) {
    let mut stream = TcpStream::connect(("127.0.0.1", door.port)).await.expect("the gateway listens");
    let began = Instant::now();
    let mut answer = Vec::new();
    for byte in post("", "{}").bytes().cycle() {
        let wrote = stream.write_all(&[byte]).await;
        let read = tokio::time::timeout(Duration::from_millis(20), stream.read_buf(&mut answer)).await;
        if wrote.is_err() || matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it is still listened to");
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || status(&answer) == 408, "{answer:?}");
}

/// Gone at each stage: before, in and after the head, in the body, while it waits, while it is answered.
async fn hang_ups(door: &Door, draw: &mut Draw) {
    let body =
        json!({ "model": model("A"), "prompt": "x", "max_tokens": 300, "ignore_eos": true, "stream": true });
    let request = post("", &body.to_string());
    for at in [0, 1, 20, request.len() / 2, request.len() - 1, request.len()] {
        let mut stream = TcpStream::connect(("127.0.0.1", door.port)).await.expect("the gateway listens");
        drop(stream.write_all(&request.as_bytes()[..at]).await);
        if draw.once_in(2) {
            // As a crash leaves it: a reset instead of an end.
            drop(stream.set_zero_linger());
        }
    }
    let mut gone = JoinSet::new();
    for number in 0..6_u64 {
        let role = if number % 2 == 0 { "A" } else { "B" };
        let after = Duration::from_millis(draw.below(30));
        let hang_up = if number < 4 { HangUp::After(after) } else { HangUp::AtToken(3) };
        let prompt = format!("gone {number}");
        let wanted = Wanted { role, prompt, tokens: 300, stream: number > 1, hang_up, key: None };
        let door = door.clone();
        gone.spawn(async move { door.ask(&wanted).await });
    }
    for report in gone.join_all().await {
        assert!(matches!(report.ended, Ok(Ended::HungUp | Ended::Whole)), "{report:?}");
    }
}

/// Some clients that do all right, until they are told to stop; how many requests they sent.
fn others(door: &Door, goes_on: &Arc<AtomicBool>) -> JoinSet<usize> {
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (door, goes_on) = (door.clone(), Arc::clone(goes_on));
        clients.spawn(async move {
            let mut number = 0;
            while goes_on.load(Ordering::Relaxed) {
                let (role, prompt) = (["A", "B"][client % 2], format!("client {client}, request {number}"));
                let stream = number % 2 == 0;
                let wanted = Wanted { role, prompt, tokens: 12, stream, hang_up: HangUp::No, key: None };
                assert_eq!(door.ask(&wanted).await.ended, Ok(Ended::Whole));
                number += 1;
            }
            number
        });
    }
    clients
}

async fn memory_and_files(agent: &Agent) -> (u64, usize) {
    left::nothing(agent).await;
    (left::rss_mib(agent.pid()), left::open_files(agent.pid()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_clients_leave_nothing_and_disturb_nobody() {
    let rounds = if is_full() { 40 } else { 3 };
    let seed = seed(4);
    let node = Setup::pair()
        .gateway_line("max_body = \"64KiB\"")
        .gateway_line("max_header = \"8KiB\"")
        .gateway_line("header_timeout = \"500ms\"")
        .each(|e| e.line("min_residency = \"50ms\"").line("max_wait = \"5s\""))
        .build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    let mut draw = Draw::new(seed);
    let goes_on = Arc::new(AtomicBool::new(true));
    let mut clients = others(&door, &goes_on);
    let mut after_first = None;
    let mut served = 0;
    for round in 0..rounds {
        tokio::join!(malformed(&door), too_large(&door), elsewhere(&door), slow_loris(&door));
        hang_ups(&door, &mut draw).await;
        if round == 0 || round == rounds - 1 {
            goes_on.store(false, Ordering::Relaxed);
            served += std::mem::take(&mut clients).join_all().await.into_iter().sum::<usize>();
            let now = memory_and_files(&agent).await;
            let (rss, files) = *after_first.get_or_insert(now);
            // Connections to the engines are kept for a while; nothing of a bad client is.
            until("files to be given back", async || left::open_files(agent.pid()) <= files + 16).await;
            let rss_now = left::rss_mib(agent.pid());
            assert!(rss_now <= rss + 32, "{rss} MiB after one round, {rss_now} after {}", round + 1);
            if round + 1 == rounds {
                say(&format!(
                    "{rounds} rounds of bad clients, seed {seed}, {served} requests of others served meanwhile: {rss} \
                     MiB and {files} files after the first round, {rss_now} MiB and {} after the last",
                    left::open_files(agent.pid())
                ));
            } else {
                goes_on.store(true, Ordering::Relaxed);
                clients = others(&door, &goes_on);
            }
        }
    }
    left::nobody_came_asleep(&agent).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    left::serves(&door).await;
    agent.stop().await;
}

#[tokio::test]
async fn keys_are_asked_for_where_tenants_have_some() {
    let tenant = "\n[[tenant]]\nname = \"y\"\n\
                  key_sha256 = \"dfddde2388f187c97de4319de072d4ea9bfb4c061357da1a86eb608e1268a92f\"\n";
    let node = Setup::pair().tables(tenant).build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    unknown(&door).await;
    let prompt = "with a key".to_owned();
    let wanted =
        Wanted { role: "A", prompt, tokens: 3, stream: false, hang_up: HangUp::No, key: Some("key-of-y") };
    assert_eq!(door.ask(&wanted).await.ended, Ok(Ended::Whole));
    // What names no model's engine needs none.
    let health: reqwest::Response = door.get("/health").send().await.expect("an answer");
    assert_eq!(health.status(), 200);
    let models: Value =
        door.get("/v1/models").bearer_auth("key-of-y").send().await.unwrap().json().await.unwrap();
    let ids: Vec<&str> = models["data"].as_array().unwrap().iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, [model("A"), model("B")]);
    left::nothing(&agent).await;
    agent.stop().await;
}
