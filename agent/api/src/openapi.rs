//! The OpenAPI 3.1 document, made from [`Route`] and the types themselves.

use crate::check::{CheckReport, CheckRequest};
use crate::cycle::{CycleList, CycleRun, RunCycle};
use crate::doctor::DoctorReport;
use crate::error::ErrorBody;
use crate::event::{Event, EventsQuery};
use crate::explain::{ExplainRequest, Explanation};
use crate::journal::{JournalPage, JournalQuery};
use crate::logs::{LogLine, LogTail, LogsQuery};
use crate::operation::{Operation, OperationList, Submit, WaitQuery};
use crate::reload::{ReloadReport, ReloadRequest};
use crate::route::{Method, Route};
use crate::status::Status;
use crate::version::{API_VERSION, VersionInfo};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// What a route takes and gives.
struct Shape {
    summary: &'static str,
    /// Statuses of success with what they mean.
    success: &'static [(&'static str, &'static str)],
    query: Option<Value>,
    body: Option<Value>,
    answer: Value,
    media: &'static str,
}

const OK: &[(&str, &str)] = &[("200", "As asked for.")];
const ACCEPTED: &[(&str, &str)] = &[
    ("200", "The same id and request were posted before, or it joined one that runs: as that stands."),
    ("202", "Accepted."),
];
const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";

fn shape(route: Route, g: &mut SchemaGenerator) -> Shape {
    fn of<T: JsonSchema>(g: &mut SchemaGenerator) -> Value {
        g.subschema_for::<T>().to_value()
    }
    let read = |summary, answer| Shape { summary, success: OK, query: None, body: None, answer, media: JSON };
    match route {
        Route::Version => read("Who answers", of::<VersionInfo>(g)),
        Route::OpenApi => read("This document", json!({ "type": "object" })),
        Route::Status => read("The node at this instant", of::<Status>(g)),
        Route::Operations => read("Operations, newest first", of::<OperationList>(g)),
        Route::Submit => Shape {
            success: ACCEPTED,
            body: Some(of::<Submit>(g)),
            ..read("Ask for an operation", of::<Operation>(g))
        },
        Route::Operation => {
            Shape { query: Some(of::<WaitQuery>(g)), ..read("One operation", of::<Operation>(g)) }
        }
        Route::CancelOperation => read("Give an operation up", of::<Operation>(g)),
        Route::Explain => Shape {
            body: Some(of::<ExplainRequest>(g)),
            ..read(
                "What a switch would do, what else could be done, what would make it faster",
                of::<Explanation>(g),
            )
        },
        Route::Cycles => read("Cycle runs, newest first, and plans", of::<CycleList>(g)),
        Route::RunCycle => Shape {
            success: ACCEPTED,
            body: Some(of::<RunCycle>(g)),
            ..read("Begin a cycle run", of::<CycleRun>(g))
        },
        Route::Cycle => Shape {
            query: Some(of::<WaitQuery>(g)),
            ..read("One cycle run (`latest`: the newest)", of::<CycleRun>(g))
        },
        Route::CancelCycle => {
            read("Give a cycle run up; the node is left as it was found", of::<CycleRun>(g))
        }
        Route::Report => read("Switch report of a run (`latest`: the newest)", json!({ "type": "object" })),
        Route::ReportTable => Shape {
            media: "text/plain",
            ..read("The report as a readable table", json!({ "type": "string" }))
        },
        Route::Journal => {
            Shape { query: Some(of::<JournalQuery>(g)), ..read("The journal", of::<JournalPage>(g)) }
        }
        Route::Logs => Shape {
            query: Some(of::<LogsQuery>(g)),
            ..read("Last lines of an engine's log", of::<LogTail>(g))
        },
        Route::FollowLogs => Shape {
            query: Some(of::<LogsQuery>(g)),
            media: SSE,
            ..read("An engine's log as it is written; each event's data is a line", of::<LogLine>(g))
        },
        Route::Events => Shape {
            query: Some(of::<EventsQuery>(g)),
            media: SSE,
            ..read("What changes, as it changes; `Last-Event-ID` resumes", of::<Event>(g))
        },
        Route::Doctor => read("What the agent finds around it", of::<DoctorReport>(g)),
        Route::Check => Shape {
            body: Some(of::<CheckRequest>(g)),
            ..read("Check a configuration's text; nothing is applied", of::<CheckReport>(g))
        },
        Route::Reload => Shape {
            body: Some(of::<ReloadRequest>(g)),
            ..read("Apply the configuration file as it is now, all of it or nothing", of::<ReloadReport>(g))
        },
    }
}

/// The parameters of a route: those in its path, then one for each field of its query.
fn parameters(route: Route, query: Option<&Value>, g: &SchemaGenerator) -> Vec<Value> {
    let mut list = Vec::new();
    let path = route.path();
    if let (Some(open), Some(close)) = (path.find('{'), path.find('}')) {
        list.push(json!({
            "name": &path[open + 1..close], "in": "path", "required": true, "schema": { "type": "string" },
        }));
    }
    let definition = query
        .and_then(|q| q["$ref"].as_str())
        .and_then(|reference| reference.rsplit('/').next())
        .and_then(|name| g.definitions().get(name));
    let fields = definition.and_then(|d| d["properties"].as_object());
    for (name, schema) in fields.into_iter().flatten() {
        let mut schema = schema.clone();
        let about = schema.as_object_mut().and_then(|s| s.remove("description")).unwrap_or(Value::Null);
        list.push(json!({ "name": name, "in": "query", "description": about, "schema": schema }));
    }
    if route == Route::Events {
        list.push(json!({
            "name": "Last-Event-ID", "in": "header", "description": "Begin after this number.",
            "schema": { "type": "integer", "minimum": 0 },
        }));
    }
    list
}

/// Makes the document.
pub fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut g = settings.into_generator();
    let error = g.subschema_for::<ErrorBody>().to_value();

    let mut paths = Map::new();
    for &route in Route::ALL {
        let shape = shape(route, &mut g);
        let mut responses = Map::new();
        for (status, about) in shape.success {
            responses.insert(
                (*status).to_owned(),
                json!({ "description": about, "content": { shape.media: { "schema": shape.answer } } }),
            );
        }
        responses.insert(
            "default".to_owned(),
            json!({ "description": "Refused or failed.", "content": { JSON: { "schema": error } } }),
        );
        let mut operation = json!({
            "operationId": format!("{route:?}"), "summary": shape.summary, "responses": responses,
        });
        let parameters = parameters(route, shape.query.as_ref(), &g);
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        if let Some(body) = shape.body {
            operation["requestBody"] = json!({ "required": true, "content": { JSON: { "schema": body } } });
        }
        let method = match route.method() {
            Method::Get => "get",
            Method::Post => "post",
        };
        let entry = paths.entry(route.path()).or_insert_with(|| Value::Object(Map::new()));
        entry[method] = operation;
    }

    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hotbunk control API",
            "version": API_VERSION.to_string(),
            "description": "JSON over HTTP on the agent's unix socket. Durations are seconds (`_s`), instants seconds \
                            since the Unix epoch (`_at`), memory is bytes (`_bytes`); unknown is null.",
        },
        "servers": [{ "url": "http://localhost", "description": "The agent's control socket." }],
        "paths": paths,
        "components": { "schemas": g.take_definitions(true) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Set `HOTBUNK_BLESS=1` to write the document anew after a wanted change.
    #[test]
    fn the_document_is_the_one_checked_in() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/openapi.json");
        let made = format!("{:#}\n", openapi());
        if std::env::var_os("HOTBUNK_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap();
        assert!(
            checked_in == made,
            "{} is not what the types say; HOTBUNK_BLESS=1 writes it anew",
            path.display()
        );
    }

    #[test]
    fn every_route_is_in_it_and_every_reference_leads_somewhere() {
        let document = openapi();
        for route in Route::ALL {
            let method = if route.method() == Method::Get { "get" } else { "post" };
            assert!(document["paths"][route.path()][method].is_object(), "{route:?}");
        }
        let text = document.to_string();
        for piece in text.split("\"$ref\":\"").skip(1) {
            let pointer = piece.split('"').next().unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    #[test]
    fn what_serde_writes_is_what_the_schemas_say() {
        let document = openapi();
        let schema = json!({
            "$ref": "#/components/schemas/Submit", "components": document["components"],
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let good = json!({ "id": "x", "request": { "kind": "switch", "engine": "B", "strategy": "park" } });
        assert!(validator.is_valid(&good), "{:?}", validator.validate(&good).err());
        assert!(
            !validator
                .is_valid(&json!({ "request": { "kind": "switch", "engine": "B", "strategy": "fast" } }))
        );
        assert!(
            !validator.is_valid(&json!({ "request": { "kind": "switch", "engine": "B", "lave": "parked" } }))
        );
        assert!(!validator.is_valid(&json!({ "request": { "kind": "wake" } })));
    }
}
