//! Waiting for conditions.

use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine. Only a broken program takes that long.
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a condition holds.
///
/// # Panics
/// It did not within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    let mut condition = condition;
    async move {
        let deadline = Instant::now() + PATIENCE;
        while !condition().await {
            assert!(Instant::now() < deadline, "{place}: waited in vain for {what}");
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Waits until there is something.
///
/// # Panics
/// There was nothing within [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    let mut look = look;
    async move {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(Instant::now() < deadline, "{place}: waited in vain for {what}");
            tokio::time::sleep(LOOK).await;
        }
    }
}
