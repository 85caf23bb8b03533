//! Requests in, answers out: every refusal is JSON with a code, those of the HTTP layer too.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hotbunk_api::error::{ApiError, ErrorBody, ErrorCode};
use serde::de::DeserializeOwned;

/// Largest body that is read. A configuration or a plan of this size is a mistake.
pub(super) const MAX_BODY_BYTES: usize = 1024 * 1024;

/// An error as an answer.
#[derive(Debug)]
pub(super) struct Failure(pub(super) ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = self.0.retry_after_s.map(f64::ceil).filter(|s| s.is_finite() && *s >= 0.0);
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        if let Some(seconds) = retry_after.and_then(|s| HeaderValue::from_str(&s.to_string()).ok()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// What a handler gives.
pub(super) type Answer<T> = Result<Json<T>, Failure>;

fn bad_request(message: String) -> Failure {
    Failure(ApiError::new(ErrorCode::BadRequest, message))
}

/// A JSON body. The content type is not asked for: on this socket nothing else is spoken.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e: BytesRejection| {
            if e.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let message = format!("the body is larger than {MAX_BODY_BYTES} bytes");
                return Failure(ApiError::new(ErrorCode::TooLarge, message));
            }
            bad_request(format!("the body cannot be read: {}", e.body_text()))
        })?;
        serde_json::from_slice(&bytes)
            .map(Body)
            .map_err(|e| bad_request(format!("the body cannot be read: {e}")))
    }
}

/// A query string.
#[derive(Debug)]
pub(super) struct Ask<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Ask<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Ask(query))
            .map_err(|e| bad_request(format!("the query cannot be read: {}", e.body_text())))
    }
}

/// The one parameter in the path.
#[derive(Debug)]
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(name)| Name(name))
            .map_err(|e| bad_request(format!("the path cannot be read: {}", e.body_text())))
    }
}
