//! The client of the figures: closed loops over kept connections, one thread.

use crate::wire::{framing, head_end};
use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// No answer takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kept connection.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Wire> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("nobody listens on {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, buffer: Vec::with_capacity(2 << 10) })
    }

    /// Sends a request, whole, and reads nothing.
    ///
    /// # Errors
    /// The other side has gone.
    pub(crate) async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.buffer.clear();
        Ok(self.stream.write_all(request).await?)
    }

    /// Forgets what was read.
    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
    }

    /// Reads what is there of the answer; the bytes so far.
    ///
    /// # Errors
    /// The other side has gone.
    pub(crate) async fn more(&mut self) -> anyhow::Result<&[u8]> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the answer broke off: {}", String::from_utf8_lossy(&self.buffer));
        Ok(&self.buffer)
    }

    /// Sends a request and reads its answer to the last byte, which must be a 200; the body's bytes.
    ///
    /// # Errors
    /// It is another status, or breaks off.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<usize> {
        let (status, body) = self.answer(request).await?;
        ensure!(status == 200, "{}", String::from_utf8_lossy(&self.buffer));
        Ok(body)
    }

    /// Sends a request and reads its answer to the last byte: its status, and its body's bytes.
    ///
    /// # Errors
    /// It breaks off.
    pub(crate) async fn answer(&mut self, request: &[u8]) -> anyhow::Result<(u16, usize)> {
        self.send(request).await?;
        let mut head = None;
        loop {
            self.more().await?;
            head = head.or_else(|| head_end(&self.buffer).map(|end| (end, framing(&self.buffer[..end]))));
            let Some((end, framing)) = head else { continue };
            if framing.is_whole(&self.buffer[end..]) {
                let status =
                    self.buffer.get(9..12).and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
                return Ok((status.context("no status")?, self.buffer.len() - end));
            }
        }
    }
}

/// A short plain request for a model; `fast`: the value of the header `x-fast`.
pub(crate) fn request(model: &str, fast: Option<&str>) -> Vec<u8> {
    let stream = fast.is_some_and(|how| how.starts_with("stream"));
    written(model, 1, stream, &fast.map(|how| format!("x-fast: {how}\r\n")).unwrap_or_default())
}

/// A plain request of a tenant's, for so many tokens.
pub(crate) fn request_of(tenant: &str, model: &str, tokens: u32) -> Vec<u8> {
    written(model, tokens, false, &format!("x-tenant: {tenant}\r\n"))
}

fn written(model: &str, tokens: u32, stream: bool, headers: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"model":"{model}","prompt":"the tide turns","max_tokens":{tokens},"temperature":0,"ignore_eos":true,"stream":{stream}}}"#
    );
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench\r\naccept: */*\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Requests in closed loops: each connection sends its next one when it has the whole answer to the last. How many were
/// answered, and in what time.
///
/// # Errors
/// One answer is not a 200 or not as long as the first.
pub(crate) async fn closed_loops(
    address: SocketAddr,
    request: &[u8],
    connections: usize,
    lasting: Duration,
) -> anyhow::Result<(u64, Duration)> {
    let mut wires = Vec::new();
    let mut length = None;
    for _ in 0..connections {
        let mut wire = Wire::open(address).await?;
        let got = tokio::time::timeout(PATIENCE, wire.ask(request)).await??;
        ensure!(*length.get_or_insert(got) == got, "answers differ in length");
        wires.push(wire);
    }
    let began = Instant::now();
    let mut loops = JoinSet::new();
    for mut wire in wires {
        let request = request.to_vec();
        loops.spawn(async move {
            let mut answered = 0_u64;
            while began.elapsed() < lasting {
                let got = wire.ask(&request).await?;
                ensure!(Some(got) == length, "an answer of {got} bytes among others of {length:?}");
                answered += 1;
            }
            anyhow::Ok(answered)
        });
    }
    let mut answered = 0;
    while let Some(done) = tokio::time::timeout(lasting + PATIENCE, loops.join_next()).await? {
        answered += done??;
    }
    Ok((answered, began.elapsed()))
}
