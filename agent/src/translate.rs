//! Between the core's words and the control API's.

use crate::config::{Diagnostics, Problem, Severity};
use crate::switcher::Board;
use hotbunk_api::check::{CheckReport, Diagnostic};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::words;
use hotbunk_core::plan;
use hotbunk_core::program::{Cause, Failure, Step};
use hotbunk_core::queue::Refusal;
use hotbunk_core::spec::{DrainPolicy, Order, Strategy};
use hotbunk_core::state::Node;
use hotbunk_core::tier::Tier;

/// The API's word for a tier.
pub fn tier_out(tier: Tier) -> words::Tier {
    match tier {
        Tier::Awake => words::Tier::Awake,
        Tier::Parked => words::Tier::Parked,
        Tier::Level1 => words::Tier::Level1,
        Tier::Level2 => words::Tier::Level2,
        Tier::Stopped => words::Tier::Stopped,
    }
}

/// The core's word for a tier.
pub fn tier_in(tier: words::Tier) -> Tier {
    match tier {
        words::Tier::Awake => Tier::Awake,
        words::Tier::Parked => Tier::Parked,
        words::Tier::Level1 => Tier::Level1,
        words::Tier::Level2 => Tier::Level2,
        words::Tier::Stopped => Tier::Stopped,
    }
}

/// The API's word for a strategy.
pub fn strategy_out(strategy: Strategy) -> words::Strategy {
    match strategy {
        Strategy::Auto => words::Strategy::Auto,
        Strategy::SleepFirst => words::Strategy::SleepFirst,
        Strategy::WakeFirst => words::Strategy::WakeFirst,
        Strategy::Park => words::Strategy::Park,
    }
}

/// The core's word for a strategy.
pub fn strategy_in(strategy: words::Strategy) -> Strategy {
    match strategy {
        words::Strategy::Auto => Strategy::Auto,
        words::Strategy::SleepFirst => Strategy::SleepFirst,
        words::Strategy::WakeFirst => Strategy::WakeFirst,
        words::Strategy::Park => Strategy::Park,
    }
}

/// The API's word for an order.
pub fn order_out(order: Order) -> words::Order {
    match order {
        Order::MakeBeforeBreak => words::Order::MakeBeforeBreak,
        Order::BreakBeforeMake => words::Order::BreakBeforeMake,
    }
}

/// The core's word for a drain policy.
pub fn drain_in(drain: words::Drain) -> DrainPolicy {
    match drain {
        words::Drain::Wait => DrainPolicy::Wait,
        words::Drain::Freeze => DrainPolicy::Freeze,
        words::Drain::Abort => DrainPolicy::Abort,
    }
}

/// A failure; `phase` is the one that it began in.
pub fn failure(failure: &Failure, phase: Option<&str>) -> ApiError {
    let falling = matches!(phase, Some("sleep" | "pause" | "release_kv" | "verify_asleep" | "await_release"));
    let code = match failure.cause {
        Cause::DrainDeadline => ErrorCode::DrainDeadline,
        Cause::DrainImpossible => ErrorCode::Unsupported,
        Cause::NoRoom => ErrorCode::NoRoom,
        Cause::CallRefused | Cause::CallUnanswered if falling => ErrorCode::SleepFailed,
        Cause::CallRefused => ErrorCode::WakeFailed,
        Cause::CallUnanswered => ErrorCode::Timeout,
        Cause::NotAsleep => ErrorCode::SleepFailed,
        Cause::NotAwake | Cause::ResidenceMissing => ErrorCode::WakeFailed,
        Cause::ReleaseIncomplete => ErrorCode::SleepIncomplete,
        Cause::NoEvidence => ErrorCode::NoEvidence,
        Cause::ProbeFailed => ErrorCode::ProbeFailed,
        Cause::CanaryMismatch => ErrorCode::CanaryMismatch,
        Cause::SpawnFailed | Cause::NotReady | Cause::WarmUpFailed => ErrorCode::StartFailed,
        Cause::Leftovers => ErrorCode::StopFailed,
        Cause::Gone => ErrorCode::Crashed,
        Cause::Cancelled => ErrorCode::Cancelled,
        Cause::WrongTier | Cause::Drifted | Cause::NotAdopted => ErrorCode::Refused,
        Cause::PortTaken => ErrorCode::StartFailed,
    };
    let error = ApiError::new(code, failure.detail.clone());
    match failure.cause {
        Cause::DrainDeadline => {
            error.help("give it longer (--deadline), or let requests be frozen or ended (--drain)")
        }
        Cause::Gone | Cause::SpawnFailed | Cause::NotReady => {
            error.help("look at the engine's log (`ctl logs`)")
        }
        _ => error,
    }
}

/// A refusal.
pub fn refusal(refusal: &Refusal, board: &Board) -> ApiError {
    let code = match refusal {
        Refusal::Busy { .. } => ErrorCode::Busy,
        Refusal::Cannot { .. } | Refusal::TierExcluded { .. } => ErrorCode::Unsupported,
        Refusal::NoRoom { .. } | Refusal::NoHostMemory { .. } => ErrorCode::NoRoom,
        Refusal::NoEvidence { .. } => ErrorCode::NoEvidence,
        Refusal::WrongState { .. } | Refusal::TooManyAwake { .. } | Refusal::NoPlan(_) => ErrorCode::Refused,
        Refusal::TooLate(_) => ErrorCode::Refused,
        Refusal::NotUnderWay(_) => ErrorCode::AlreadyOver,
        Refusal::Paused | Refusal::Pinned { .. } | Refusal::NoJournal { .. } => ErrorCode::Refused,
        Refusal::Closing => ErrorCode::Unavailable,
    };
    let error = ApiError::new(code, refusal.to_string());
    match refusal {
        Refusal::Busy { id, .. } => match board.by_number(*id) {
            Some(operation) => error.operation(operation.id),
            None => error,
        },
        Refusal::NoPlan(_) | Refusal::NoRoom { .. } => {
            error.help("`ctl explain ENGINE` shows what would fit")
        }
        _ => error,
    }
}

/// Predicted duration of a leg in seconds.
pub fn leg_cost(node: &Node, step: &Step) -> Option<f64> {
    let cost = match step {
        Step::Fall { engine, tier } => plan::enter_cost(node.engine(*engine), *tier),
        Step::Rise(engine) => plan::leave_cost(node.engine(*engine), node.engine(*engine).tier),
        Step::Launch { engine, .. } => plan::leave_cost(node.engine(*engine), Tier::Stopped),
        _ => return None,
    };
    Some(cost.as_secs_f64())
}

/// What a check of the configuration has found.
pub fn diagnostics(ok: bool, diagnostics: &Diagnostics) -> CheckReport {
    let one = |p: &Problem| Diagnostic {
        error: p.severity == Severity::Error,
        line: p.position.and_then(|at| u32::try_from(at.line).ok()),
        column: p.position.and_then(|at| u32::try_from(at.column).ok()),
        message: p.message.clone(),
        help: p.help.clone(),
    };
    CheckReport {
        ok,
        diagnostics: diagnostics.problems().iter().map(one).collect(),
        rendered: diagnostics.render(false),
    }
}
