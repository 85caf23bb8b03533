//! What is recorded and what happens: journal, logs, events.

use crate::control::backend::Backend;
use crate::control::extract::{Answer, Ask, Failure, Name};
use crate::control::router::Ctx;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::{Stream, StreamExt};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::event::EventsQuery;
use hotbunk_api::journal::{JournalPage, JournalQuery};
use hotbunk_api::logs::{LogTail, LogsQuery};

pub(in crate::control) async fn journal<B: Backend>(
    State(shared): Ctx<B>,
    Ask(query): Ask<JournalQuery>,
) -> Answer<JournalPage> {
    let query = JournalQuery { limit: Some(query.limit()), ..query };
    Ok(Json(shared.backend.journal(query).await?))
}

pub(in crate::control) async fn logs<B: Backend>(
    State(shared): Ctx<B>,
    Name(engine): Name,
    Ask(query): Ask<LogsQuery>,
) -> Answer<LogTail> {
    Ok(Json(shared.backend.logs(&engine, query.lines()).await?))
}

pub(in crate::control) async fn follow_logs<B: Backend>(
    State(shared): Ctx<B>,
    Name(engine): Name,
    Ask(query): Ask<LogsQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, axum::Error>> + use<B>>, Failure> {
    let lines = shared.backend.follow_logs(&engine, query.lines()).await?;
    let events = lines.map(|line| sse::Event::default().json_data(line)).take_until(shared.stopped());
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

pub(in crate::control) async fn events<B: Backend>(
    State(shared): Ctx<B>,
    Ask(query): Ask<EventsQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, axum::Error>> + use<B>>, Failure> {
    let since = last_event_id(&headers)?.or(query.since);
    let events = shared.backend.events(since).into_stream().map(|event| {
        sse::Event::default().id(event.seq.to_string()).event(event.what.kind()).json_data(&*event)
    });
    Ok(Sse::new(events.take_until(shared.stopped())).keep_alive(KeepAlive::default()))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| ApiError::new(ErrorCode::BadRequest, "`Last-Event-ID` is not the number of an event"))
}
