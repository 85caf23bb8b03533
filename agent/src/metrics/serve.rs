//! The page's own listener, and the exporter's housekeeping.

use super::Metrics;
use crate::clock;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// The listener failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the metrics listener failed")]
pub struct Error(#[from] Arc<std::io::Error>);

/// How often observations are folded into their buckets. Between two scrapes they wait in memory, one by one.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves `GET /metrics` until `shutdown` resolves.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let router = Router::new().route("/metrics", get(page)).with_state(metrics);
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown)
        .await
        .map_err(|error| Error(Arc::new(error)))
}

async fn page(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render(clock::now()))
}

/// Keeps the memory of observations bounded, whether somebody scrapes or not. Never ends: spawn it, abort it.
pub async fn upkeep(metrics: Metrics) {
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.inner.handle.run_upkeep();
    }
}
