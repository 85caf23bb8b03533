//! What the engines of a node would do on it: each switch that could be asked for now, and its way back.

use super::check;
use crate::explain;
use hotbunk_api::doctor::{DoctorCheck, DoctorVerdict};
use hotbunk_core::ids::EngineId;
use hotbunk_core::plan::{self, Ask, Plan};
use hotbunk_core::program::Step;
use hotbunk_core::state::Node;
use hotbunk_core::tier::Tier;

/// Every engine that does not serve: the switch to it, and from there back to whoever it would replace.
pub(super) fn all(node: &Node) -> Vec<DoctorCheck> {
    let idle = node.ids().filter(|id| !node.engine(*id).is_serving() && !node.engine(*id).retired);
    idle.flat_map(|to| there_and_back(node, to)).collect()
}

fn there_and_back(node: &Node, to: EngineId) -> Vec<DoctorCheck> {
    let name = |id: EngineId| node.engine(id).spec.name.as_str();
    let title = format!("switch to {}", name(to));
    let (there, planned) = judge(node, to, title);
    let mut checks = vec![there];
    if let Some(planned) = planned {
        let next = plan::after(node, &planned);
        for back in &planned.outgoing {
            let title = format!("and back from {} to {}", name(to), name(*back));
            checks.push(judge(&next, *back, title).0);
        }
    }
    checks
}

fn judge(node: &Node, to: EngineId, title: String) -> (DoctorCheck, Option<Plan>) {
    let ask = Ask {
        to,
        strategy: node.policy.strategy,
        leave: node.policy.leave,
        drain: node.policy.drain,
        spare_pinned: false,
    };
    let chosen = match plan::choose(node, &ask) {
        Ok(chosen) => chosen,
        Err(refusal) => return (check(title, DoctorVerdict::Warning, refusal.to_string()), None),
    };
    let steps: Vec<String> = chosen.steps.iter().map(|s: &Step| s.sentence(node)).collect();
    let known = if is_measured(node, &chosen) { "measured" } else { "estimated" };
    let found = format!(
        "{}; first token in about {:.2} s, done in {:.2} s ({known})",
        steps.join(", then "),
        chosen.first_token.as_secs_f64(),
        chosen.total.as_secs_f64()
    );
    let faster = plan::faster(node, &ask, chosen.first_token);
    let advice = faster.iter().map(|f| {
        let f = explain::faster(node, f);
        let saves = f.saves_s.map(|s| format!(" (saves {s:.2} s)")).unwrap_or_default();
        format!("{}{saves}", f.sentence)
    });
    let advice: Vec<String> = advice.collect();
    let help = (!advice.is_empty()).then(|| format!("faster: {}", advice.join("; or ")));
    (DoctorCheck { help, ..check(title, DoctorVerdict::Ok, found) }, Some(chosen))
}

/// Whether every leg of a plan has been done before, so that its time is known and not worked out from bytes.
fn is_measured(node: &Node, plan: &Plan) -> bool {
    plan.steps.iter().all(|step| match step {
        Step::Fall { engine, tier } => node.engine(*engine).costs.enter[*tier as usize].is_some(),
        Step::Rise(engine) => {
            let e = node.engine(*engine);
            e.costs.leave[e.tier as usize].is_some()
        }
        Step::Launch { engine, .. } => node.engine(*engine).costs.leave[Tier::Stopped as usize].is_some(),
        _ => true,
    })
}
