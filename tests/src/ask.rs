//! Requests for operations, without the fields that a test leaves out.

use hotbunk_api::operation::{EngineRequest, OperationRequest, SleepRequest, StopRequest, SwitchRequest};
use hotbunk_api::words::{Drain, Strategy, Tier};

/// A switch in the making.
#[derive(Debug, Clone)]
pub struct Switch(SwitchRequest);

impl Switch {
    /// To this engine, the node's defaults for everything else.
    pub fn to(engine: &str) -> Self {
        let engine = engine.to_owned();
        Switch(SwitchRequest { engine, strategy: None, leave: None, drain: None, deadline_s: None })
    }

    /// By this plan.
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.0.strategy = Some(strategy);
        self
    }

    /// Leaving the outgoing engine there.
    #[must_use]
    pub fn leave(mut self, tier: Tier) -> Self {
        self.0.leave = Some(tier);
        self
    }

    /// Treating running requests so.
    #[must_use]
    pub fn drain(mut self, drain: Drain) -> Self {
        self.0.drain = Some(drain);
        self
    }

    /// Waiting for them so long, seconds.
    #[must_use]
    pub fn deadline_s(mut self, seconds: f64) -> Self {
        self.0.deadline_s = Some(seconds);
        self
    }
}

impl From<Switch> for OperationRequest {
    fn from(switch: Switch) -> Self {
        OperationRequest::Switch(switch.0)
    }
}

/// A sleep.
#[derive(Debug, Clone)]
pub struct Sleep;

impl Sleep {
    /// Puts an engine to sleep.
    pub fn at(engine: &str, tier: Tier) -> OperationRequest {
        OperationRequest::Sleep(SleepRequest {
            engine: engine.to_owned(),
            tier: Some(tier),
            drain: None,
            deadline_s: None,
        })
    }
}

fn engine(engine: &str) -> EngineRequest {
    EngineRequest { engine: engine.to_owned() }
}

fn whole(engine: &str) -> StopRequest {
    StopRequest { engine: engine.to_owned(), drain: None, deadline_s: None }
}

/// Wakes an engine beside what is awake.
pub fn wake(name: &str) -> OperationRequest {
    OperationRequest::Wake(engine(name))
}

/// Starts an engine.
pub fn start(name: &str) -> OperationRequest {
    OperationRequest::Start(engine(name))
}

/// Stops an engine.
pub fn stop(name: &str) -> OperationRequest {
    OperationRequest::Stop(whole(name))
}

/// Stops and starts an engine.
pub fn restart(name: &str) -> OperationRequest {
    OperationRequest::Restart(whole(name))
}

/// Leaves the failed state.
pub fn reset(name: &str) -> OperationRequest {
    OperationRequest::Reset(engine(name))
}

/// Takes over what runs on its port.
pub fn adopt(name: &str) -> OperationRequest {
    OperationRequest::Adopt(engine(name))
}
