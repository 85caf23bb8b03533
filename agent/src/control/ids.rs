//! The same id twice is one operation.
//!
//! A client that lost the answer to a request posts it again, under the id that it chose. What was asked for under an
//! id is kept here for the last ids; it decides whether the new request is the same (then the resource that it led to
//! is the answer) or another one (then it is a conflict). A request can lead to a resource of another id, where it
//! joined an operation that was running: the id stays good as a name for it.

use hotbunk_api::error::{ApiError, ErrorCode};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Ids that are remembered. An id that is forgotten is looked up in the backend, which knows those of its own
/// resources.
const REMEMBERED: usize = 4096;

/// What was asked for under which id. `R` is the request.
#[derive(Debug)]
pub(super) struct Ids<R> {
    known: Mutex<Known<R>>,
    /// Held from looking an id up to recording it, so that two posts at once cannot both find it new.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Known<R> {
    asked: HashMap<String, (R, String)>,
    order: VecDeque<String>,
}

impl<R: PartialEq> Ids<R> {
    pub(super) fn new() -> Self {
        let known = Known { asked: HashMap::new(), order: VecDeque::new() };
        Ids { known: Mutex::new(known), turn: tokio::sync::Mutex::new(()) }
    }

    /// The resource that this request under this id has led to before; `None` where the id is new here.
    pub(super) fn before(&self, id: &str, request: &R) -> Result<Option<String>, ApiError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.asked.get(id) {
            None => Ok(None),
            Some((asked, resource)) if asked == request => Ok(Some(resource.clone())),
            Some((_, resource)) => Err(conflict(id, resource)),
        }
    }

    /// The resource that an id names: itself, unless it joined another.
    pub(super) fn resolve(&self, id: &str) -> String {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked.get(id).map_or_else(|| id.to_owned(), |(_, resource)| resource.clone())
    }

    /// Records what a request has led to.
    pub(super) fn record(&self, id: String, request: R, resource: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.order.len() == REMEMBERED
            && let Some(oldest) = known.order.pop_front()
        {
            known.asked.remove(&oldest);
        }
        known.order.push_back(id.clone());
        known.asked.insert(id, (request, resource));
    }
}

/// The id belongs to another request.
pub(super) fn conflict(id: &str, resource: &str) -> ApiError {
    ApiError::new(ErrorCode::IdConflict, format!("the id `{id}` was used for another request"))
        .help("choose another id, or leave it out")
        .operation(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_is_found_and_another_one_is_a_conflict() {
        let ids = Ids::new();
        assert_eq!(ids.before("x", &1).unwrap(), None);
        ids.record("x".into(), 1, "running".into());
        assert_eq!(ids.before("x", &1).unwrap().as_deref(), Some("running"));
        assert_eq!(ids.before("x", &2).unwrap_err().code, ErrorCode::IdConflict);
        assert_eq!((ids.resolve("x"), ids.resolve("y")), ("running".to_owned(), "y".to_owned()));
    }

    #[test]
    fn memory_is_bounded() {
        let ids = Ids::new();
        for n in 0..=REMEMBERED {
            ids.record(n.to_string(), n, n.to_string());
        }
        assert_eq!(ids.before("0", &7).unwrap(), None, "the oldest is forgotten");
        assert!(ids.before("1", &7).is_err());
    }
}
