//! The one thing that is asked of a simulated engine alone: its pace.

use super::{Client, Error};
use serde_json::json;
use std::time::Duration;

impl Client {
    /// `POST /sim/speed`: from the next operation on a simulated engine divides its times by `speed`. No other engine
    /// has that route.
    ///
    /// # Errors
    /// Nobody answers, or the engine does not know the route.
    pub async fn set_simulated_speed(&self, speed: f64, deadline: Duration) -> Result<(), Error> {
        let body = json!({ "speed": speed });
        self.post("/sim/speed", Some(&body), deadline).await.ok("POST /sim/speed").map(drop)
    }
}
