//! Heads of messages on their way through: what concerns one connection stays on it, the rest passes as it came.
//!
//! Beyond RFC 9110's hop-by-hop headers, a client's credentials never reach an engine: they are the gateway's, and an
//! engine that demands a key is sent its own. Trailers pass where the client says that it takes them.

use crate::config::Secret;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use std::cell::Cell;

/// A request's name, in the engine's log as in the client's.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `1`: answer 409 at once rather than cause a switch.
pub(super) const NO_SWITCH: HeaderName = HeaderName::from_static("x-no-switch");
/// Place in the queue when the answer began, 1 is next.
pub(super) const QUEUE_POSITION: HeaderName = HeaderName::from_static("x-hotbunk-queue-position");
/// Seconds until the model should serve.
pub(super) const ETA: HeaderName = HeaderName::from_static("x-hotbunk-eta");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Names for requests that come without one: unique on this node, without asking anybody.
#[derive(Debug)]
pub(super) struct Ids {
    seed: u64,
    next: Cell<u64>,
}

impl Ids {
    /// A sequence of its own.
    pub(super) fn new() -> Self {
        let (high, low) = uuid::Uuid::now_v7().as_u64_pair();
        Ids { seed: high.rotate_left(32) ^ low, next: Cell::new(0) }
    }

    fn next(&self) -> HeaderValue {
        let n = self.next.get();
        self.next.set(n.wrapping_add(1));
        let mut text = [0; 32];
        let words = [self.seed, n].map(u64::to_be_bytes);
        for (pair, byte) in text.chunks_exact_mut(2).zip(words.as_flattened()) {
            let digit = |of: u8| b"0123456789abcdef"[usize::from(of & 15)];
            pair.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
        }
        HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("hotbunk"))
    }
}

/// Makes a client's headers an engine's; the request's id, which is the client's own where it sent one.
pub(super) fn to_engine(headers: &mut HeaderMap, ids: &Ids) -> HeaderValue {
    let takes_trailers = headers.get(TE).is_some_and(|te| {
        te.to_str().is_ok_and(|te| te.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers")))
    });
    hop_by_hop(headers);
    // Framing is made anew; the body is whole, so nothing has to be expected.
    for name in [CONTENT_LENGTH, EXPECT, AUTHORIZATION, API_KEY, NO_SWITCH] {
        headers.remove(name);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers.entry(REQUEST_ID).or_insert_with(|| ids.next()).clone()
}

/// A header that comes twice although there can be but one: whoever reads the message next might take the other one for
/// it (RFC 9110, 5.3; of `host`, RFC 9112, 3.2 demands a refusal).
pub(super) fn twice(headers: &HeaderMap) -> Option<&'static HeaderName> {
    // As many values as names: the usual case, and one comparison.
    if headers.len() == headers.keys_len() {
        return None;
    }
    SINGLE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some())
}

/// Headers of which there can be but one, and that say what a request is. Framing is the parser's.
static SINGLE: [HeaderName; 3] = [HOST, CONTENT_TYPE, CONTENT_ENCODING];

/// The engine's own key.
pub(super) fn set_key(headers: &mut HeaderMap, key: Option<&Secret>) {
    if let Some(mut value) = key.and_then(|k| HeaderValue::try_from(format!("Bearer {}", k.reveal())).ok()) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
}

/// Makes an engine's headers a client's.
pub(super) fn to_client(headers: &mut HeaderMap, id: &HeaderValue) {
    hop_by_hop(headers);
    headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
}

/// Headers of one connection, whatever `connection` names beside them.
static HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

fn hop_by_hop(headers: &mut HeaderMap) {
    // Mostly there is none: one look at what is there is cheaper than eight for what is not.
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(HOP_BY_HOP.iter()) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair =
            |(n, v): &(&str, &str)| (n.parse::<HeaderName>().unwrap(), v.parse::<HeaderValue>().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_concerns_one_connection_stays_on_it() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, Trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("authorization", "Bearer tenant"),
            ("x-api-key", "tenant"),
            ("expect", "100-continue"),
            ("content-length", "3"),
            ("x-no-switch", "1"),
            ("traceparent", "00-1"),
            ("host", "gateway"),
        ]);
        let ids = Ids::new();
        let id = to_engine(&mut headers, &ids);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "te", "traceparent", "x-request-id"]);
        assert_eq!(headers["te"], "trailers");
        assert_eq!(headers["x-request-id"], id);
        set_key(&mut headers, Some(&Secret::new("engine".into())));
        assert_eq!(headers["authorization"], "Bearer engine");
        assert!(headers["authorization"].is_sensitive());

        let again = to_engine(&mut map(&[]), &ids);
        assert_ne!(again, id);
        assert_eq!(to_engine(&mut map(&[("x-request-id", "mine")]), &ids), "mine");
        let mut answer =
            map(&[("connection", "close"), ("content-length", "5"), ("trailer", "x"), ("server", "uvicorn")]);
        to_client(&mut answer, &id);
        assert_eq!(answer.len(), 4);
        assert_eq!(answer["x-request-id"], id);
    }
}
