//! What a switch would do: the core's plan and its alternatives in the control API's words.

use crate::switcher::Board;
use crate::translate::{self, order_out, strategy_out, tier_out};
use hotbunk_api::explain as wire;
use hotbunk_core::ids::EngineId;
use hotbunk_core::ledger::{self, human};
use hotbunk_core::plan::{self, Ask, Candidate, Faster, Plan};
use hotbunk_core::state::Node;

/// Answers `ctl explain` and `ctl switch --dry-run`. Pure.
pub fn explain(node: &Node, board: &Board, ask: &Ask) -> wire::Explanation {
    let engine = node.engine(ask.to);
    let chosen = plan::choose(node, ask);
    let candidates = plan::candidates(node, ask);
    let from = candidates
        .iter()
        .filter_map(|c| c.verdict.as_ref().ok())
        .chain(chosen.as_ref().ok())
        .find_map(|p| p.outgoing.first())
        .map(|id| name(node, *id));
    let awake = engine.is_serving();
    let takes = chosen.as_ref().map(|p| p.first_token).unwrap_or_default();
    wire::Explanation {
        engine: engine.spec.name.clone(),
        from,
        nothing_to_do: awake.then(|| format!("{} is awake already", engine.spec.name)),
        refused: chosen.as_ref().err().filter(|_| !awake).map(|r| translate::refusal(r, board)),
        chosen: chosen.as_ref().ok().filter(|_| !awake).map(|p| plan_out(node, ask, p)),
        alternatives: if awake {
            Vec::new()
        } else {
            candidates.iter().map(|c| alternative(node, ask, c)).collect()
        },
        faster: if awake || chosen.is_err() {
            Vec::new()
        } else {
            plan::faster(node, ask, takes).iter().map(|f| faster(node, f)).collect()
        },
    }
}

fn name(node: &Node, id: EngineId) -> String {
    node.engine(id).spec.name.clone()
}

fn plan_out(node: &Node, ask: &Ask, plan: &Plan) -> wire::Plan {
    let step = |s: &hotbunk_core::program::Step| wire::PlanStep {
        sentence: s.sentence(node),
        engine: s.engine().map(|e| name(node, e)).unwrap_or_default(),
        eta_s: translate::leg_cost(node, s),
    };
    wire::Plan {
        strategy: Some(strategy_out(ask.strategy)),
        order: Some(order_out(plan.order)),
        leave: Some(tier_out(plan.leave)),
        steps: plan.steps.iter().map(step).collect(),
        first_token_s: Some(plan.first_token.as_secs_f64()),
        total_s: Some(plan.total.as_secs_f64()),
        peaks: peaks(node, ask, plan),
    }
}

fn peaks(node: &Node, ask: &Ask, plan: &Plan) -> Vec<wire::Peak> {
    let devices = node.engine(ask.to).spec.devices.iter();
    devices
        .map(|d| wire::Peak {
            device: node.device(*d).spec.name.clone(),
            peak_bytes: Some(plan.peak),
            limit_bytes: ledger::limit(node, *d),
        })
        .collect()
}

fn alternative(node: &Node, ask: &Ask, candidate: &Candidate) -> wire::Alternative {
    let plan = candidate.verdict.as_ref().ok();
    wire::Alternative {
        order: order_out(candidate.order),
        leave: tier_out(candidate.leave),
        verdict: match &candidate.verdict {
            Ok(_) => wire::Verdict::Fits,
            Err(refusal) => wire::Verdict::Refused { because: refusal.to_string() },
        },
        first_token_s: plan.map(|p| p.first_token.as_secs_f64()),
        return_s: plan.map(|p| p.back.as_secs_f64()),
        peaks: plan.map(|p| peaks(node, ask, p)).unwrap_or_default(),
    }
}

/// One thing that would make a handoff faster, in words.
pub(crate) fn faster(node: &Node, found: &Faster) -> wire::Faster {
    match found {
        Faster::KvCache { engine, at_most, now, order, leave, saves } => {
            let who = name(node, *engine);
            wire::Faster {
                sentence: format!(
                    "start {who} with --kv-cache-memory-bytes {at_most} ({}) or less instead of {}: then {} × {leave} fits",
                    human(*at_most),
                    human(*now),
                    order.as_str(),
                ),
                change: wire::Change::KvCache {
                    engines: vec![wire::KvSize {
                        engine: who,
                        at_most_bytes: *at_most,
                        now_bytes: Some(*now),
                    }],
                },
                order: Some(order_out(*order)),
                leave: Some(tier_out(*leave)),
                saves_s: Some(saves.as_secs_f64()),
            }
        }
        Faster::HostMemory { engine, missing, saves } => {
            let who = name(node, *engine);
            wire::Faster {
                sentence: format!("with {} more host memory {who} could be left at level1", human(*missing)),
                change: wire::Change::HostMemory { engine: who, missing_bytes: *missing },
                order: None,
                leave: None,
                saves_s: Some(saves.as_secs_f64()),
            }
        }
    }
}
