//! The back end of the figures: an engine whose requests cost next to nothing.
//!
//! ```text
//!                        x-fast header               anything else
//!   agent, proxies ──► answered here, at once ─┐  ┌─► relayed to a simulated engine, byte for byte
//!                                              └──┘
//! ```
//!
//! The agent starts this program as an engine and cannot tell it from one: sleeps, wakes, probes and metrics reach the
//! simulated engine, which this program runs as its child. Only requests that carry the header `x-fast` are answered
//! here, from bytes made once: `plain` gets a short completion, `stream N MS` gets N events, one every MS milliseconds.
//! One thread, one `recv` and one `send` a request; nothing is parsed but what framing needs.

use crate::wire::{find, framing, head_end};
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Bound};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// The header that asks for an answer from here.
const FAST: &[u8] = b"\r\nx-fast: ";
/// A short completion, as vLLM writes it.
const BODY: &str = concat!(
    r#"{"id":"cmpl-00112233445566778899aabbccddeeff","object":"text_completion","created":1764000000,"#,
    r#""model":"fast","choices":[{"index":0,"text":" anchor deck mast rope tide wind wave salt","logprobs":null,"#,
    r#""finish_reason":"length","stop_reason":null,"prompt_logprobs":null}],"service_tier":null,"#,
    r#""system_fingerprint":null,"usage":{"prompt_tokens":4,"total_tokens":12,"completion_tokens":8,"#,
    r#""prompt_tokens_details":null},"kv_transfer_params":null}"#
);
/// One event of a stream.
const EVENT: &str = concat!(
    r#"data: {"id":"cmpl-00112233445566778899aabbccddeeff","object":"text_completion","created":1764000000,"#,
    r#""model":"fast","choices":[{"index":0,"text":" anchor","logprobs":null,"finish_reason":null,"#,
    r#""stop_reason":null}]}"#,
    "\n\n"
);
const LAST: &str = "data: [DONE]\n\n";

/// Runs until it is told to end: `words` is the command line of the engine to stand before, with `--port` in it;
/// without one, `port` alone is served.
///
/// # Errors
/// The port is taken, or the engine cannot be run.
pub(crate) fn run(words: &[String]) -> anyhow::Result<()> {
    let at = words.iter().position(|word| word == "--port").context("a back end needs --port")?;
    let port: u16 = words.get(at + 1).context("--port needs a number")?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        if at == 0 {
            return serve(listener, None).await;
        }
        let inner = Bound::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut words = words.to_vec();
        words[at + 1] = inner.port().to_string();
        let mut engine = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn()?;
        let mut told = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = engine.wait() => anyhow::bail!("the engine ended: {}", ended?),
            served = serve(listener, Some(inner)) => served,
            _ = told.recv() => {
                let pid = engine.id().and_then(|pid| i32::try_from(pid).ok());
                if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
                }
                engine.wait().await?;
                Ok(())
            }
        }
    })
}

async fn serve(listener: TcpListener, engine: Option<SocketAddr>) -> anyhow::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        // A client that breaks off is its own affair.
        tokio::spawn(async move { drop(connection(client, engine).await) });
    }
}

async fn connection(mut client: TcpStream, engine: Option<SocketAddr>) -> anyhow::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n";
    let plain =
        format!("{head}content-length: {}\r\ncontent-type: application/json\r\n\r\n{BODY}", BODY.len());
    // nginx passes events on at once only if it is told so.
    let streamed = format!(
        "{head}content-type: text/event-stream; charset=utf-8\r\nx-accel-buffering: no\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        while !is_whole(&buffer) {
            if client.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let end = head_end(&buffer).unwrap_or(buffer.len());
        let Some(at) = find(&buffer[..end], FAST) else {
            let Some(engine) = engine else {
                client.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await?;
                buffer.clear();
                continue;
            };
            let mut engine = TcpStream::connect(engine).await?;
            engine.set_nodelay(true)?;
            engine.write_all(&buffer).await?;
            tokio::io::copy_bidirectional(&mut client, &mut engine).await?;
            return Ok(());
        };
        let asked = buffer[at + FAST.len()..end].split(|b| *b == b'\r').next().unwrap_or_default();
        if asked == b"plain" {
            buffer.clear();
            client.write_all(plain.as_bytes()).await?;
            continue;
        }
        let asked = String::from_utf8_lossy(asked).into_owned();
        let mut numbers = asked.split(' ').skip(1).map(str::parse::<u64>);
        let (count, every) = (numbers.next().context("how many")??, numbers.next().context("how often")??);
        buffer.clear();
        client.write_all(streamed.as_bytes()).await?;
        let chunk = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
        let mut beat = tokio::time::interval(Duration::from_millis(every.max(1)));
        for _ in 0..count {
            beat.tick().await;
            client.write_all(chunk.as_bytes()).await?;
        }
        client.write_all(format!("{:x}\r\n{LAST}\r\n0\r\n\r\n", LAST.len()).as_bytes()).await?;
    }
}

/// Whether a whole request is there: head and body.
fn is_whole(buffer: &[u8]) -> bool {
    let Some(end) = head_end(buffer) else { return false };
    // What is relayed need not be whole.
    find(&buffer[..end], FAST).is_none() || framing(&buffer[..end]).is_whole(&buffer[end..])
}
