//! One thread of the gateway: a listener, a runtime, a pool, and nothing that another thread waits for.

use super::body::Unread;
use super::head::Ids;
use super::job::Core;
use super::kept::Way;
use super::relay::Reply;
use super::serve::{serve, turn_away};
use super::upstream::Pool;
use super::wire::{State, Verdict, Wire, too_slow};
use crate::gateway::Hub;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

/// How often kept connections are looked through.
const SWEEP: Duration = Duration::from_secs(1);
/// A wait after an accept that failed for want of descriptors or memory: nothing says when there are some again.
const BREATH: Duration = Duration::from_millis(50);
/// How long answers that are being written when the gateway ends may still take.
const GRACE: Duration = Duration::from_secs(2);
/// How long a client may take to read that it was too slow.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How far the gateway has come. It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It serves.
    Open,
    /// It goes: what has begun is finished, and whoever comes is told when to come again.
    TurningAway,
    /// It goes likewise, and whoever comes is another's: connections that are not accepted outlive this process.
    Passing,
    /// It ends.
    Ending,
}

/// Until the gateway has come further than this; how far.
async fn beyond(mut stages: watch::Receiver<Stage>, this: Stage) -> Stage {
    // The sender lives as long as the gateway.
    stages.wait_for(|stage| *stage > this).await.map_or(Stage::Ending, |stage| *stage)
}

/// What a thread is given.
#[derive(Debug)]
pub(super) struct Worker {
    pub hub: Arc<Hub>,
    pub created: u64,
    pub listener: TcpListener,
    /// Connections that another gateway has kept until now.
    pub given: mpsc::UnboundedReceiver<std::net::TcpStream>,
    /// Where those of this one go.
    pub way: Way,
    pub stages: watch::Receiver<Stage>,
    /// Told when the gateway goes and every connection that there was is over.
    pub clear: oneshot::Sender<()>,
}

/// A runtime for one thread.
pub(super) fn runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// How many connections a thread has.
#[derive(Debug, Default)]
struct Open {
    count: Cell<usize>,
    none: Notify,
}

impl Open {
    fn one(self: &Rc<Self>) -> One {
        self.count.set(self.count.get() + 1);
        One(Rc::clone(self))
    }

    async fn none(&self) {
        while self.count.get() > 0 {
            self.none.notified().await;
        }
    }
}

/// One connection; its end is counted when it is dropped.
#[derive(Debug)]
struct One(Rc<Open>);

impl Drop for One {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.none.notify_one();
        }
    }
}

impl Worker {
    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// The listener cannot be used.
    pub(super) async fn run(self) -> io::Result<()> {
        let Worker { hub, created, listener, mut given, way, mut stages, clear } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let pool = Rc::new(Pool::default());
        let core = Rc::new(Core { hub, pool: Rc::clone(&pool), ids: Ids::new(), created });
        let sweeper = spawn_local(async move {
            let mut ticks = interval(SWEEP);
            loop {
                ticks.tick().await;
                pool.sweep();
            }
        });
        let open = Rc::new(Open::default());
        let mut stage = Stage::Open;
        let mut clear = Some(clear);
        loop {
            // Where nobody keeps the socket, connections would be refused from the moment on in which it closes: so that
            // is the last thing, and until then whoever comes is at least told when to come again.
            let accepts = stage < Stage::Passing;
            let accepted = tokio::select! {
                biased;
                next = beyond(stages.clone(), stage) => {
                    stage = next;
                    // Whoever comes later knows it already.
                    stages.borrow_and_update();
                    if stage == Stage::Ending {
                        break;
                    }
                    continue;
                }
                () = open.none(), if stage > Stage::Open && clear.is_some() => {
                    // Whoever has asked may have given up.
                    let _ = clear.take().map(|clear| clear.send(()));
                    continue;
                }
                Some(stream) = given.recv() => {
                    if stage == Stage::Passing && way.is_open() {
                        way.send(stream);
                        continue;
                    }
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    stream.map(|stream| Client { stream, is_new: false })
                }
                accepted = listener.accept(), if accepts => {
                    accepted.map(|(stream, _)| Client { stream, is_new: true })
                }
            };
            match accepted {
                Ok(client) => {
                    // One that comes too late is not waited for.
                    let one = (stage == Stage::Open).then(|| open.one());
                    let (core, way, stages) = (Rc::clone(&core), way.clone(), stages.clone());
                    spawn_local(async move {
                        connection(core, client, way, stages, stage).await;
                        drop(one);
                    });
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    sleep(BREATH).await;
                }
            }
        }
        drop(listener);
        // What is being answered gets a moment; then it is cut off.
        let _ = timeout(GRACE, open.none()).await;
        sweeper.abort();
        Ok(())
    }
}

/// Errors of one connection, not of the listener.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// What a connection's task has to see to.
enum Said {
    /// The connection is over.
    Ended(hyper::Result<()>),
    /// The watchdog's time has come.
    Time,
    /// The gateway has come so far.
    Stage(Stage),
    /// Nothing is under way on it, and it goes to another gateway.
    Free,
}

/// Who has come.
struct Client {
    stream: TcpStream,
    /// It has not been another gateway's before.
    is_new: bool,
}

/// One client's connection, to its end. One that is accepted when the gateway has begun to go is turned away with its
/// first request.
async fn connection(
    core: Rc<Core>,
    client: Client,
    way: Way,
    stages: watch::Receiver<Stage>,
    accepted_at: Stage,
) {
    let Client { stream, is_new } = client;
    if stream.set_nodelay(true).is_err() {
        // It is gone already.
        return;
    }
    let settings = core.hub.settings();
    let now = Instant::now();
    let state = if is_new { State::new(now) } else { State::kept(now) };
    let is_late = accepted_at > Stage::Open;
    if is_late {
        state.leave(now);
    }
    let wire = Wire::new(stream, Rc::clone(&state));
    let shared = Rc::clone(&state);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (core, state) = (Rc::clone(&core), Rc::clone(&shared));
        state.begin();
        let request = request.map(|incoming| Unread::new(incoming, Rc::clone(&state)));
        async move {
            let mut response: Response<Reply> =
                if is_late { turn_away(&core, request).await } else { serve(core, request).await };
            if state.is_last() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response.body_mut().tell(state);
            Ok::<_, Infallible>(response)
        }
    });
    let largest = usize::try_from(settings.max_header).unwrap_or(usize::MAX);
    let mut http = http1::Builder::new();
    // Whose turn it is, is watched below.
    http.header_read_timeout(None).max_header_size(largest).max_buf_size(largest.max(SMALLEST_BUFFER));
    let mut connection = http.serve_connection(TokioIo::new(wire), service);
    let mut watchdog = Box::pin(sleep_until(Instant::now() + settings.header_timeout));
    let mut news = stages.clone();
    let mut turn = Box::pin(beyond(stages.clone(), accepted_at));
    let mut watched = false;
    let mut moves_on = false;
    let is_free = loop {
        let said = poll_fn(|cx| {
            if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Said::Ended(ended));
            }
            if moves_on && state.is_free() {
                return Poll::Ready(Said::Free);
            }
            // While a request is answered the watchdog has nothing to say, and asking it at each step of an answer
            // would cost as much as the step. It has woken this task if it fires, so it is heard at the end.
            let is_news = news.has_changed().unwrap_or(true);
            if watched && state.is_busy() && !is_news {
                return Poll::Pending;
            }
            watched = true;
            if watchdog.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Said::Time);
            }
            turn.as_mut().poll(cx).map(Said::Stage)
        });
        match said.await {
            Said::Ended(ended) => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a client's connection ended");
                }
                return;
            }
            Said::Time => match state.verdict(settings.header_timeout, Instant::now()) {
                Verdict::Wait(until) => {
                    watchdog.as_mut().reset(until);
                    watched = false;
                }
                Verdict::Close => return,
                Verdict::TooSlow => break false,
            },
            Said::Stage(stage) => {
                news.borrow_and_update();
                turn.set(beyond(stages.clone(), stage));
                moves_on = stage == Stage::Passing && way.is_open();
                if moves_on && (state.is_free() || !state.is_idle()) {
                    continue;
                }
                if stage == Stage::Ending && state.is_idle() {
                    return;
                }
                watchdog.as_mut().reset(state.leave(Instant::now()));
                watched = false;
                // Of a head that has come in part hyper knows nothing: it would close.
                if stage == Stage::Ending && state.is_busy() {
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
            Said::Free => break true,
        }
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner().into_stream();
    if is_free {
        // A part of a next request that was sent before its answer was there is nobody's any more. To send one on such a
        // connection again is the client's business, as with any that closes.
        if parts.read_buf.is_empty()
            && let Ok(stream) = stream.into_std()
        {
            way.send(stream);
        }
        return;
    }
    // It may have gone.
    let _ = timeout(LAST_WORDS, async {
        stream.write_all(&too_slow()).await?;
        stream.shutdown().await
    })
    .await;
}

/// Below this hyper refuses to work.
const SMALLEST_BUFFER: usize = 8192;
