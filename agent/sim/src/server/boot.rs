//! Starting the API server: bind, start the children, wait for the engine core, listen, serve, end.

use super::errors::EndsConnection;
use super::link::{CoreState, Link};
use super::metrics::Metrics;
use super::shutdown::{Signals, end_core, until_the_end};
use super::state::{Shared, State, lock};
use crate::args::{Settings, SimArgs};
use crate::faults::{Fault, FaultKind, Faults};
use crate::process::{Children, spawn_children};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::Notify;

/// How long a connection may be idle (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, 5 s); not divided by the speed, for clients' pools
/// are not either.
fn keep_alive() -> Duration {
    let told = std::env::var("VLLM_HTTP_TIMEOUT_KEEP_ALIVE").ok().and_then(|v| v.trim().parse().ok());
    Duration::from_secs(told.unwrap_or(5))
}

/// Runs the process.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let code = runtime.block_on(serve(settings));
    // Handlers that still wait for the engine must not hold the exit up.
    runtime.shutdown_background();
    code
}

fn fail(message: &str) -> ExitCode {
    super::log(&format!("ERROR api_server: {message}"));
    ExitCode::FAILURE
}

async fn serve(settings: Settings) -> ExitCode {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot watch signals: {error}")),
    };
    // vLLM binds before it loads anything and listens when it is ready.
    let bound = match Bound::new(&settings.args) {
        Ok(bound) => bound,
        Err(error) => return fail(&format!("OSError: cannot bind {}: {error}", place(&settings.args))),
    };
    let address = place(&settings.args);
    super::log(&format!("INFO api_server: vLLM API server version {} (simulated)", settings.args.version));
    // The tracker's end of the pipe must live as long as this process.
    let Children { mut core, tracker_pipe: _tracker_pipe } = match spawn_children() {
        Ok(children) => children,
        Err(error) => return fail(&format!("cannot start the engine core: {error}")),
    };
    let (Some(stdin), Some(stdout)) = (core.stdin.take(), core.stdout.take()) else {
        return fail("the engine core has no pipes");
    };
    let metrics = Arc::new(Mutex::new(Metrics::new()));
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let shared: Shared = Arc::new(State {
        faults: Mutex::new(Faults::new(&settings.args.fault)),
        link: Link::new(stdin, stdout, Arc::clone(&metrics)),
        metrics,
        speed: Mutex::new(settings.args.speed),
        load: AtomicI64::new(0),
        is_shutting_down: AtomicBool::new(false),
        created: since_epoch.as_secs(),
        nonce: since_epoch.subsec_nanos().into(),
        settings,
    });
    for fault in lock(&shared.faults).armed().iter().filter(|f| f.kind == FaultKind::FloodStderr) {
        flood(*fault);
    }
    let core = Mutex::new(core);
    let mut state = shared.link.state();
    let settled = tokio::select! {
        () = signals.wait(&shared) => None,
        settled = state.wait_for(|s| *s != CoreState::Starting) => settled.ok().map(|s| s.clone()),
    };
    match settled {
        Some(CoreState::Ready) => {}
        None => {
            end_core(&shared, &core);
            return ExitCode::SUCCESS;
        }
        Some(CoreState::Failed(message)) => {
            end_core(&shared, &core);
            return fail(&format!("RuntimeError: Engine core initialization failed. {message}"));
        }
        Some(CoreState::Starting | CoreState::Dead) => {
            end_core(&shared, &core);
            return fail("RuntimeError: Engine core initialization failed. See root cause above.");
        }
    }
    let listener = match bound.listen() {
        Ok(listener) => listener,
        Err(error) => {
            end_core(&shared, &core);
            return fail(&format!("cannot listen on {address}: {error}"));
        }
    };
    super::log(&format!("INFO api_server: Starting vLLM server on {address}"));
    super::log("INFO: Application startup complete.");
    let state = shared.link.state();
    tokio::select! {
        () = accept(&listener, super::router(&shared)) => {}
        () = until_the_end(&shared, &core, &mut signals, state) => {}
    }
    super::log("INFO: Application shutdown complete.");
    // Whatever ended it, the code is 0: it tells nothing (fact 10 [run]).
    ExitCode::SUCCESS
}

/// Serves connections for ever. One that is idle is closed after five seconds, as uvicorn does: a client's
/// pool that keeps them longer will send into a closed connection.
async fn accept(listener: &Listener, router: axum::Router) {
    loop {
        let accepted = match listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Small chunks go out at once; without it they go out later.
                drop(stream.set_nodelay(true));
                tokio::spawn(serve_connection(stream, router.clone()));
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(serve_connection(stream, router.clone()));
            }),
        };
        if let Err(error) = accepted {
            // Out of descriptors, most likely: others may close some.
            super::log(&format!("ERROR api_server: accept: {error}"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Serves one connection until its client goes, it is idle for too long, or an answer ends it.
async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: axum::Router) {
    let (inner, ends) = (TowerToHyperService::new(router), Notify::new());
    let service = service_fn(|request| {
        let answer = inner.call(request);
        async {
            let response = answer.await;
            if response.as_ref().is_ok_and(|r| r.extensions().get::<EndsConnection>().is_some()) {
                ends.notify_one();
            }
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(keep_alive())
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // First, always: it writes the answer in the same turn in which the answer is made.
        biased;
        _ = connection => {}
        () = ends.notified() => {}
    }
}

/// What is listened on, for people.
fn place(args: &SimArgs) -> String {
    match &args.uds {
        Some(path) => format!("unix:{}", path.display()),
        None => format!("http://{}", SocketAddr::new(args.host, args.port)),
    }
}

/// An address that is ours and not yet listened on.
enum Bound {
    Tcp(TcpSocket),
    Unix(Socket),
}

/// An address that is listened on.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A bound Unix socket.
type Socket = rustix::fd::OwnedFd;

impl Bound {
    fn new(args: &SimArgs) -> std::io::Result<Self> {
        if let Some(path) = &args.uds {
            // A socket that an earlier process has left is in the way of nobody else.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(path.as_path())?)?;
            return Ok(Bound::Unix(socket));
        }
        let socket = if args.host.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(args.host, args.port))?;
        Ok(Bound::Tcp(socket))
    }

    fn listen(self) -> std::io::Result<Listener> {
        match self {
            Bound::Tcp(socket) => Ok(Listener::Tcp(socket.listen(2048)?)),
            Bound::Unix(socket) => {
                rustix::net::listen(&socket, 2048)?;
                Ok(Listener::Unix(UnixListener::from_std(socket.into())?))
            }
        }
    }
}

/// Fault `flood_stderr`: writes log lines as fast as they are taken, on a thread of its own.
pub(crate) fn flood(fault: Fault) {
    let bytes = (fault.arg.unwrap_or(16.0).max(0.0) * 1_048_576.0) as u64;
    std::thread::spawn(move || {
        let line = format!(
            "(APIServer pid={}) DEBUG flood: {}\n",
            std::process::id(),
            "all work and no play ".repeat(8)
        );
        let mut left = bytes;
        while left > 0 {
            if std::io::stderr().write_all(line.as_bytes()).is_err() {
                return;
            }
            left = left.saturating_sub(u64::try_from(line.len()).unwrap_or(u64::MAX));
        }
    });
}
