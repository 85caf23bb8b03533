//! The router and the server around it.

use super::backend::Backend;
use super::extract::{Failure, MAX_BODY_BYTES};
use super::handlers;
use super::ids::Ids;
use super::peer::{Allow, Caller, supplementary_groups};
use super::socket::Socket;
use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use hotbunk_api::cycle::PlanSource;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::operation::OperationRequest;
use hotbunk_api::route::Route;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// After the order to stop, answers that are under way have so long to be given.
const GRACE: Duration = Duration::from_secs(5);

/// What handlers share.
#[derive(Debug)]
pub(super) struct Shared<B> {
    pub(super) backend: B,
    pub(super) operations: Ids<OperationRequest>,
    pub(super) cycles: Ids<PlanSource>,
    /// Becomes true when streams and long polls must end.
    pub(super) stopping: watch::Receiver<bool>,
    allow: Allow,
}

impl<B> Shared<B> {
    /// Completes when the server is to stop.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + use<B> {
        let mut stopping = self.stopping.clone();
        // A sender that is gone means the same.
        async move { drop(stopping.wait_for(|stopping| *stopping).await) }
    }
}

/// State of a handler.
pub(super) type Ctx<B> = State<Arc<Shared<B>>>;

/// Serves the control API on `socket` until `shutdown` completes. Then streams and long polls end, answers under way
/// are given, and the socket's file is removed.
///
/// # Errors
/// What accepting connections says (the socket was taken before, or the listener is broken).
pub async fn serve<B: Backend>(
    mut socket: Socket,
    backend: B,
    allow: Allow,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = socket.take_listener().ok_or_else(|| io::Error::other("the socket is served already"))?;
    let (stop, stopping) = watch::channel(false);
    let mut stopped = stopping.clone();
    let shared = Shared { backend, operations: Ids::new(), cycles: Ids::new(), stopping, allow };
    let service = router(Arc::new(shared)).into_make_service_with_connect_info::<Caller>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        shutdown.await;
        stop.send_replace(true);
    });
    tokio::select! {
        ended = server => ended,
        () = async {
            drop(stopped.wait_for(|stopping| *stopping).await);
            tokio::time::sleep(GRACE).await;
        } => {
            tracing::warn!("control API: connections still open {} s after the order to stop", GRACE.as_secs());
            Ok(())
        }
    }
}

fn router<B: Backend>(shared: Arc<Shared<B>>) -> Router {
    let mut router = Router::new();
    for &route in Route::ALL {
        router = router.route(route.path(), handler::<B>(route));
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), check_peer::<B>))
        .with_state(shared)
}

fn handler<B: Backend>(route: Route) -> MethodRouter<Arc<Shared<B>>> {
    match route {
        Route::Version => get(handlers::node::version::<B>),
        Route::OpenApi => get(handlers::node::openapi),
        Route::Status => get(handlers::node::status::<B>),
        Route::Doctor => get(handlers::node::doctor::<B>),
        Route::Check => post(handlers::node::check::<B>),
        Route::Reload => post(handlers::node::reload::<B>),
        Route::Operations => get(handlers::operations::list::<B>),
        Route::Submit => post(handlers::operations::submit::<B>),
        Route::Operation => get(handlers::operations::show::<B>),
        Route::CancelOperation => post(handlers::operations::cancel::<B>),
        Route::Explain => post(handlers::operations::explain::<B>),
        Route::Cycles => get(handlers::cycles::list::<B>),
        Route::RunCycle => post(handlers::cycles::run::<B>),
        Route::Cycle => get(handlers::cycles::show::<B>),
        Route::CancelCycle => post(handlers::cycles::cancel::<B>),
        Route::Report => get(handlers::cycles::report::<B>),
        Route::ReportTable => get(handlers::cycles::report_table::<B>),
        Route::Journal => get(handlers::records::journal::<B>),
        Route::Logs => get(handlers::records::logs::<B>),
        Route::FollowLogs => get(handlers::records::follow_logs::<B>),
        Route::Events => get(handlers::records::events::<B>),
    }
}

/// Lets only those in who may, and hands the peer on to the handlers.
async fn check_peer<B: Backend>(
    State(shared): Ctx<B>,
    ConnectInfo(Caller(peer)): ConnectInfo<Caller>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let Some(peer) = peer else {
        return Err(ApiError::new(ErrorCode::Forbidden, "the kernel does not say who is calling").into());
    };
    shared.allow.check(peer, || supplementary_groups(peer.pid)).inspect_err(|_| {
        tracing::warn!(uid = peer.uid, pid = peer.pid, "control API: refused a caller");
    })?;
    request.extensions_mut().insert(peer);
    Ok(next.run(request).await)
}

async fn no_route(OriginalUri(uri): OriginalUri) -> Failure {
    ApiError::new(ErrorCode::NoRoute, format!("the control API has no {}", uri.path()))
        .help(format!("GET {} lists what it has", Route::OpenApi.path()))
        .into()
}

async fn method_not_allowed(method: Method, OriginalUri(uri): OriginalUri) -> Failure {
    ApiError::new(ErrorCode::MethodNotAllowed, format!("{} cannot be asked with {method}", uri.path()))
        .help(format!("GET {} lists what it can be asked with", Route::OpenApi.path()))
        .into()
}
