//! One request, from its head to the head of its answer.
//!
//! ```text
//!   route ─► whose is it ─► body ─► model ─► engine ─► admit ─┬─ go ───────────────► open ─► answer
//!     │          │           │        │                       ├─ hold ─ lease ───────┘  │
//!    404        401      413, 408   400, 404                  └─ 409, 429, 503          └─ ended: once more from admit
//! ```
//!
//! Every answer but the engine's own is built here, so every one has a request id and the right form.

use super::answer::{Failure, Standing, json_answer};
use super::body::Unread;
use super::head::{self, REQUEST_ID};
use super::job::{Answered, Core, Cut, Job, ended};
use super::peek::Peek;
use super::relay::{Collected, LARGEST_DOCUMENT, Live, Passing, Reply, is_short};
use super::route::{Face, Route, Target, Why, route};
use super::sse::Watch;
use super::stream::Stream;
use super::upstream::Head;
use super::{body, form, models, peek};
use crate::gateway::{Aborted, Admit, Ask, BACK, Held, Lease, Refusal};
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::json;
use std::rc::Rc;
use tokio::time::{Instant, sleep_until};

/// A body that is larger is looked into on another thread, so that this one's other requests go on. Bytes.
const LARGE: usize = 1 << 20;
/// So much is read of a body that nobody wants, so that its sender hears why. Bytes.
const UNHEARD: u64 = 1 << 20;

/// Answers a request.
pub(super) async fn serve(core: Rc<Core>, request: Request<Unread>) -> Response<Reply> {
    let (mut parts, incoming) = request.into_parts();
    let target = match route(&parts.method, parts.uri.path()) {
        Route::Forward(target) => target,
        other => {
            // What there is, is for those who may ask for it.
            let needs_key = matches!(other, Route::Models | Route::Model(_));
            let refused = core.hub.authenticate(&parts.headers).err().filter(|_| needs_key);
            let id = head::to_engine(&mut parts.headers, &core.ids);
            body::discard(incoming, UNHEARD).await;
            if let Some(refusal) = refused {
                return Failure::from(refusal).answer(Face::OpenAi, &id).map(Reply::from);
            }
            return own(&core, other, parts.uri.path(), &id).map(Reply::from);
        }
    };
    match forward(core, target, parts, incoming).await {
        Ok(response) => response,
        Err((failure, id)) => failure.answer(target.face, &id).map(Reply::from),
    }
}

/// Answers a request that has come too late: the gateway goes.
pub(super) async fn turn_away(core: &Core, request: Request<Unread>) -> Response<Reply> {
    let (mut parts, incoming) = request.into_parts();
    let face = match route(&parts.method, parts.uri.path()) {
        Route::Forward(target) => target.face,
        _ => Face::OpenAi,
    };
    let id = head::to_engine(&mut parts.headers, &core.ids);
    body::discard(incoming, UNHEARD).await;
    Failure::from(Refusal::Restarting { retry_after: BACK }).answer(face, &id).map(Reply::from)
}

/// What the gateway answers by itself.
fn own(core: &Core, route: Route, path: &str, id: &HeaderValue) -> Response<Bytes> {
    let ok = |document: &serde_json::Value| json_answer(StatusCode::OK, document, id);
    let failure = match route {
        Route::Health => return ok(&json!({ "status": "ok" })),
        Route::Models => return ok(&models::list(&core.hub, core.created)),
        Route::Ready => match models::ready(&core.hub) {
            Ok(document) => return ok(&document),
            Err(failure) => failure,
        },
        Route::Model(model) => match models::get(&core.hub, &model, core.created) {
            Ok(document) => return ok(&document),
            Err(failure) => failure,
        },
        Route::WrongMethod(allowed) => {
            let message = format!("{path} is asked with {allowed}");
            let failure = Failure::bad(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
            Failure { allow: Some(allowed), ..failure }
        }
        Route::Nowhere(why) => nowhere(why, path),
        Route::Forward(_) => nowhere(Why::Unknown, path),
    };
    failure.answer(Face::OpenAi, id)
}

fn nowhere(why: Why, path: &str) -> Failure {
    let shown: String = path.chars().take(200).collect();
    let message = match why {
        Why::Unknown => format!(
            "{shown} is no route of this gateway: it serves inference under /v1, spelled plainly, and GET /v1/models. \
             Engines are operated with `ctl`."
        ),
        Why::Operators => format!("{shown} changes an engine; it is not reachable here"),
        Why::Kept => format!(
            "{shown} names an answer that one engine keeps, and the id does not say which; send a new request with \
             `model` instead"
        ),
    };
    Failure::bad(StatusCode::NOT_FOUND, "not_found", message)
}

type Outcome = Result<Response<Reply>, (Failure, HeaderValue)>;

async fn forward(core: Rc<Core>, target: Target, mut parts: Parts, incoming: Unread) -> Outcome {
    let tenant = core.hub.authenticate(&parts.headers);
    let no_switch = parts.headers.get(head::NO_SWITCH).is_some_and(|v| v.to_str().is_ok_and(peek::is_yes));
    let id = head::to_engine(&mut parts.headers, &core.ids);
    let failed = |failure: Failure| (failure, id.clone());
    let readable = match tenant {
        Err(refusal) => Err(refusal.into()),
        Ok(_) if let Some(name) = head::twice(&parts.headers) => {
            let message =
                format!("the header `{name}` comes more than once, and not everybody reads the same one");
            Err(Failure::bad(StatusCode::BAD_REQUEST, "ambiguous_header", message))
        }
        Ok(_) if parts.headers.get(CONTENT_ENCODING).is_some_and(|v| v != "identity") => {
            let message = "compressed bodies are not supported: engines do not read them; send it as it is";
            Err(Failure::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_encoding", message))
        }
        Ok(tenant) => Ok(tenant),
    };
    let tenant = match readable {
        Ok(tenant) => tenant,
        Err(failure) => {
            body::discard(incoming, UNHEARD).await;
            return Err(failed(failure));
        }
    };
    let body = body::read(incoming, core.hub.settings().max_body).await.map_err(|e| failed(e.into()))?;
    let asked = look(&core, target, no_switch, &parts, body.clone()).await.map_err(failed)?;
    let head = Head { method: Method::POST, uri: origin(parts.uri), headers: parts.headers };
    let job =
        Job { core, tenant, ask: asked.ask, target, head, body, prompt_tokens: asked.prompt_tokens, id };
    Ok(run(Box::new(job)).await)
}

/// Only path and query: whatever authority the client wrote is ours, not the engine's.
fn origin(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// What a body says, as far as admission needs it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    ask: Ask,
    prompt_tokens: u64,
}

async fn look(
    core: &Rc<Core>,
    target: Target,
    no_switch: bool,
    parts: &Parts,
    body: Bytes,
) -> Result<Asked, Failure> {
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if body.len() <= LARGE {
        return asked(core, target, &peek_into(content_type, &body)?, &body, no_switch);
    }
    let content_type = content_type.to_owned();
    let text = body.clone();
    // Of the text itself nothing is kept that is large.
    let seen = tokio::task::spawn_blocking(move || -> Result<Peek<'static>, Failure> {
        let seen = peek_into(&content_type, &text)?;
        Ok(Peek { model: seen.model.into_owned().into(), ..seen })
    });
    let seen = seen.await.map_err(|_| Failure::ours("internal", "the body could not be read", 1))?;
    asked(core, target, &seen?, &body, no_switch)
}

fn peek_into<'a>(content_type: &str, body: &'a [u8]) -> Result<Peek<'a>, Failure> {
    if form::is_form(content_type) {
        return Ok(form::peek(content_type, body)?);
    }
    Ok(peek::peek(body)?)
}

fn asked(
    core: &Core,
    target: Target,
    seen: &Peek<'_>,
    body: &[u8],
    no_switch: bool,
) -> Result<Asked, Failure> {
    let engine = core.hub.resolve(&seen.model).ok_or_else(|| models::unknown(&core.hub, &seen.model))?;
    let ask = Ask {
        engine,
        stream: seen.stream && target.streams,
        body_bytes: body.len() as u64,
        tokens_estimate: seen.prompt_tokens.saturating_add(seen.answer_tokens),
        no_switch: no_switch || !target.inference,
    };
    Ok(Asked { ask, prompt_tokens: seen.prompt_tokens })
}

/// From admission to the head of an answer.
async fn run(mut job: Box<Job>) -> Response<Reply> {
    let mut again = true;
    // What is said of the wait, once there was one.
    let mut waited = None;
    loop {
        let lease = match job.admit() {
            Admit::Go(lease) => lease,
            Admit::Refuse(refusal) => return refuse(&job, &refusal.into(), waited.as_ref()),
            Admit::Hold(mut held) => {
                let standing = Standing { position: held.position(), eta: held.eta() };
                let Some(outcome) = hold(&job, &mut held).await else {
                    let now = Standing { position: held.position(), eta: held.eta() };
                    return begin_held(held, job, again, &now);
                };
                let standing = waited.insert(standing);
                match outcome {
                    Ok(lease) => lease,
                    Err(refusal) => return refuse(&job, &refusal.into(), Some(standing)),
                }
            }
        };
        let cut = match job.open(lease).await {
            Ok(answered) => match answer(job, answered, again).await {
                Ok(mut response) => {
                    if let Some(standing) = waited {
                        standing.write(response.headers_mut());
                    }
                    return response;
                }
                Err((kept, cut)) => {
                    job = kept;
                    cut
                }
            },
            Err(cut) => cut,
        };
        match cut {
            Cut::Aborted(Aborted::Drain) if again => again = false,
            Cut::Aborted(why) => return refuse(&job, &ended(why), waited.as_ref()),
            Cut::Failed(failure) => return refuse(&job, &failure, waited.as_ref()),
        }
    }
}

/// Waits for a lease. `None`: a stream has waited so long that it should begin.
async fn hold(job: &Job, held: &mut Held) -> Option<Result<Lease, Refusal>> {
    if !job.ask.stream {
        return Some(held.await);
    }
    let begin = Instant::now() + job.core.hub.settings().keep_alive;
    tokio::select! {
        biased;
        outcome = held => Some(outcome),
        () = sleep_until(begin) => None,
    }
}

fn refuse(job: &Job, failure: &Failure, waited: Option<&Standing>) -> Response<Reply> {
    let mut response = failure.answer(job.face(), &job.id).map(Reply::from);
    if let Some(standing) = waited {
        standing.write(response.headers_mut());
    }
    response
}

/// The gateway's own head for a stream that still waits.
fn begin_held(held: Held, job: Box<Job>, again: bool, standing: &Standing) -> Response<Reply> {
    let id = job.id.clone();
    let mut response = Response::new(Reply::from(Stream::held(held, job, again)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(REQUEST_ID, id);
    standing.write(headers);
    response
}

/// An engine's answer as the client gets it; or the job back, where it was none.
async fn answer(job: Box<Job>, answered: Answered, again: bool) -> Result<Response<Reply>, (Box<Job>, Cut)> {
    let id = job.id.clone();
    let with = |mut parts: hyper::http::response::Parts, reply: Reply| {
        head::to_client(&mut parts.headers, &id);
        Response::from_parts(parts, reply)
    };
    if answered.is_stream() {
        let (parts, live) = Live::new(answered, &job);
        return Ok(with(parts, Stream::live(live, job, again).into()));
    }
    if !(job.target.inference && answered.is_document() && is_short(answered.response.headers())) {
        let (parts, passing) = Passing::new(answered, &job);
        return Ok(with(parts, passing.into()));
    }
    match Collected::read(answered, &job.core.pool, LARGEST_DOCUMENT).await {
        Err(cut) => Err((job, cut)),
        Ok(Collected::TooLong { answered, read }) => {
            let (parts, passing) = Passing::new(*answered, &job);
            Ok(with(parts, passing.after(read).into()))
        }
        Ok(Collected::Whole { head, body, leased }) => {
            let mut watch = Watch::new(job.face());
            if watch.look_at_answer(&body) {
                leased.lease.settle(0);
                return Err((job, Cut::Aborted(Aborted::Drain)));
            }
            if let Some(tokens) = watch.usage() {
                leased.lease.settle(tokens);
            }
            leased.lease.finished();
            Ok(with(head, body.into()))
        }
    }
}
