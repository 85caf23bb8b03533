//! The data path over real sockets, with engines and a switcher that the tests play.

mod bad_input;
mod failing;
mod handing_off;
mod hanging_up;
mod leaving;
mod passing;

use super::{Gateway, Listen, Sockets, threads};
use crate::config::{self, Facts};
use crate::gateway::{Hub, Link};
use crate::metrics::Metrics;
use crate::switcher::spec;
use hotbunk_core::ids::EngineId;
use hotbunk_core::state::Node;
use hotbunk_core::tier::Tier;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const A: EngineId = EngineId(0);
const B: EngineId = EngineId(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something holds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

/// A gateway over two engines, A and B, that the test plays.
struct Desk {
    hub: Arc<Hub>,
    node: Node,
    publish: watch::Sender<Arc<Node>>,
    gateway: Gateway,
    a: Engine,
    b: Engine,
    http: reqwest::Client,
}

impl Desk {
    /// One thread, and what the test changes.
    async fn new(more: &str, change: impl FnOnce(&mut config::Gateway)) -> Self {
        Desk::on(Listen::Address(SocketAddr::from(([127, 0, 0, 1], 0))), more, change).await
    }

    /// The same where the test says where it listens.
    async fn on(on: Listen, more: &str, change: impl FnOnce(&mut config::Gateway)) -> Self {
        let (a, b) = (Engine::start().await, Engine::start().await);
        let engine = |name: &str, port: u16, key: &str| {
            format!(
                r#"
                [[engine]]
                name = "{name}"
                device = "none"
                model = "org/{name}"
                aliases = ["small-{name}"]
                port = {port}
                command = ["vllm", "serve", "x", "--served-model-name", "org/{name}", "small-{name}", "--host", "127.0.0.1", "--port", "{port}"]
                env = {{ VLLM_SERVER_DEV_MODE = "1" }}
                {key}
                "#
            )
        };
        let key = "api_key = \"engine-key\"";
        let text = format!("{}{}{more}", engine("A", a.port, key), engine("B", b.port, ""));
        let parsed = config::parse(&text, Path::new("hotbunk.toml"), &Facts::default());
        let (mut config, _) = parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
        config.gateway.threads = Some(1);
        config.gateway.keep_alive = Duration::from_secs(60);
        change(&mut config.gateway);
        let unknown = |_: &str| None;
        let (engines, devices) = (spec::engines(&config, unknown), spec::devices(&config, unknown));
        let node = Node::new(engines, devices, spec::policy(&config, None), 1);
        let hub = Hub::new(&config, Metrics::new());
        let (publish, newest) = watch::channel(Arc::new(node.clone()));
        hub.attach(Link { tell: Box::new(|_| {}), node: newest });
        let sockets = Sockets::bind(on, threads(&config.gateway)).unwrap();
        let gateway = Gateway::start(sockets, Arc::clone(&hub)).unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Desk { hub, node, publish, gateway, a, b, http }
    }

    /// The usual one: A serves, B does not.
    async fn usual() -> Self {
        let mut desk = Desk::new("", |_| {}).await;
        desk.serve(A);
        desk
    }

    fn apply(&mut self) {
        self.publish.send_replace(Arc::new(self.node.clone()));
        self.hub.follow(&self.node, &[], crate::clock::now());
    }

    fn serve(&mut self, engine: EngineId) {
        let e = self.node.engine_mut(engine);
        (e.tier, e.admission, e.process, e.dead) = (Tier::Awake, true, true, false);
        e.life = e.life.max(1);
        e.generation += 1;
        self.apply();
    }

    fn close(&mut self, engine: EngineId) {
        self.node.engine_mut(engine).admission = false;
        self.apply();
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.address())
    }

    fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(self.url(path)).json(body)
    }

    /// Sends a request, in the background.
    fn ask(&self, body: &Value) -> tokio::task::JoinHandle<reqwest::Response> {
        let sent = self.post("/v1/completions", body).send();
        tokio::spawn(async move { patient("an answer", sent).await.unwrap() })
    }

    /// A connection to the gateway, for those who do not speak HTTP well.
    async fn raw(&self) -> TcpStream {
        TcpStream::connect(self.gateway.address()).await.unwrap()
    }

    /// Nothing runs and nothing waits: no lease and no place in a queue has been lost.
    async fn until_empty(&self) {
        for engine in [A, B] {
            until("leases to end", || self.hub.in_flight(engine) == 0).await;
            until("queues to be empty", || self.hub.held(engine) == 0).await;
        }
    }
}

fn completion(model: &str, stream: bool) -> Value {
    json!({ "model": model, "prompt": "x", "stream": stream })
}

/// An engine that does what the test does.
struct Engine {
    port: u16,
    listener: TcpListener,
}

/// A request that has arrived at an engine.
struct Call {
    socket: TcpStream,
    head: String,
    body: Vec<u8>,
}

impl Engine {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Engine { port: listener.local_addr().unwrap().port(), listener }
    }

    /// The next request on a new connection.
    async fn call(&self) -> Call {
        patient("a request", async {
            let (socket, _) = self.listener.accept().await.unwrap();
            Call::read(socket).await.expect("a request")
        })
        .await
    }

    /// Nobody has connected.
    async fn is_left_alone(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(50), self.listener.accept()).await.is_err()
    }
}

impl Call {
    /// Reads one request; none where the connection was closed.
    async fn read(mut socket: TcpStream) -> Option<Call> {
        let mut text = Vec::new();
        let end = loop {
            if let Some(at) = memchr::memmem::find(&text, b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut text).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8(text[..end].to_vec()).unwrap();
        let length =
            head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |l| l.parse().unwrap());
        let mut body = text[end..].to_vec();
        while body.len() < length {
            assert_ne!(socket.read_buf(&mut body).await.unwrap(), 0);
        }
        Some(Call { socket, head, body })
    }

    /// The next request on the same connection.
    async fn next(self) -> Option<Call> {
        patient("the next request", Call::read(self.socket)).await
    }

    async fn write(&mut self, text: impl AsRef<[u8]>) {
        self.socket.write_all(text.as_ref()).await.unwrap();
    }

    async fn answer(&mut self, status: &str, media: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n"
        );
        self.write(head + body).await;
    }

    async fn json(&mut self, body: &str) {
        self.answer("200 OK", "application/json", body).await;
    }

    async fn begin_stream(&mut self) {
        self.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n").await;
    }

    async fn chunk(&mut self, text: &str) {
        self.write(format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    async fn end_stream(&mut self) {
        self.write("0\r\n\r\n").await;
    }

    /// The gateway has closed the connection.
    async fn closed(mut self) {
        let mut rest = Vec::new();
        // However it was closed.
        let _ = patient("the connection to be closed", self.socket.read_to_end(&mut rest)).await;
    }
}

/// Reads an answer as text until the connection closes.
async fn read_all(mut socket: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = patient("the end", socket.read_to_end(&mut text)).await;
    String::from_utf8_lossy(&text).into_owned()
}

/// A streamed answer as it grows.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    fn of(response: reqwest::Response) -> Self {
        Events { response, text: String::new() }
    }

    /// Reads until the text has this in it.
    async fn until(&mut self, wanted: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.text.contains(wanted) {
            assert!(Instant::now() < end, "no {wanted} in {:?}", self.text);
            let chunk = patient(wanted, self.response.chunk()).await.unwrap();
            let chunk = chunk.unwrap_or_else(|| panic!("no {wanted} in {:?}", self.text));
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Reads to the end; the whole text without comments.
    async fn end(mut self) -> String {
        while let Some(chunk) = patient("the end", self.response.chunk()).await.unwrap() {
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        let events = self.text.split_inclusive("\n\n");
        events.filter(|event| !event.starts_with(": hotbunk")).collect()
    }
}
