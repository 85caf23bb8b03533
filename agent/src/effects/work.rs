//! The engines' own time, by the engines' own clock, so that the agent's overhead cannot hide in it.
//!
//! A simulated engine writes an operation log with true instants. vLLM from 0.32 has a metric that sums how long its
//! operations took, and every release one of the times to first token: the interval is then laid against the end of the
//! call, or the token, that it belongs to. Releases before that give no clock, and then there is no figure.

use super::{EngineSlot, Hands};
use crate::engine::{Operation, Operations};
use crate::journal::record::{EngineWork, Phase};
use hotbunk_core::time::Moment;
use hotbunk_sim::oplog::{Op, OpLogReader, OpRecord};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the metrics of an engine may take after an operation has ended.
const METRICS: Duration = Duration::from_secs(2);

/// Reads what the engines did.
#[derive(Debug, Default)]
pub struct WorkLog {
    /// By engine and file: newer settings may name another file.
    logs: HashMap<(String, PathBuf), OpLogReader>,
    sums: HashMap<String, Operations>,
}

/// A call of an operation, as the agent saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// Engine's name.
    pub engine: String,
    /// What.
    pub phase: Phase,
    /// Answer.
    pub ended: Moment,
}

/// One of the sums of vLLM's metric.
struct Kind {
    word: &'static str,
    of: fn(&Operations) -> Option<Operation>,
    phases: &'static [Phase],
}

const KINDS: [Kind; 4] = [
    Kind { word: "sleep", of: |o| o.sleep, phases: &[Phase::Sleep] },
    Kind { word: "wake", of: |o| o.wake, phases: &[Phase::Wake, Phase::WakeKv, Phase::WakeWeights] },
    Kind { word: "release_kv_cache", of: |o| o.release_kv_cache, phases: &[Phase::ReleaseKv] },
    Kind { word: "first_token", of: |o| o.first_token, phases: &[Phase::Probe] },
];

impl WorkLog {
    /// What the engines did between two instants; `None` where one that was called gives no clock.
    pub async fn collect(
        &mut self,
        hands: &Arc<Hands>,
        calls: &[Called],
        from: Moment,
        to: Moment,
    ) -> Option<Vec<EngineWork>> {
        let mut all = Vec::new();
        let mut complete = true;
        for slot in hands.engines.all().iter() {
            let called: Vec<&Called> = calls.iter().filter(|c| c.engine == slot.config.name).collect();
            match &slot.config.op_log {
                Some(path) => {
                    let reader = self
                        .logs
                        .entry((slot.config.name.clone(), path.clone()))
                        .or_insert_with(|| OpLogReader::open(path));
                    match reader.read_new() {
                        Ok(records) => all.extend(records.into_iter().filter_map(|r| within(r, from, to))),
                        Err(error) => {
                            tracing::warn!(
                                engine = slot.config.name,
                                error = super::chain(&error),
                                "operation log"
                            );
                            complete = false;
                        }
                    }
                }
                None => match self.by_metric(slot, &called).await {
                    Some(work) => all.extend(work),
                    None => complete &= called.is_empty(),
                },
            }
        }
        complete.then_some(all)
    }

    async fn by_metric(&mut self, slot: &EngineSlot, called: &[&Called]) -> Option<Vec<EngineWork>> {
        let now = slot.client()?.progress(METRICS).await.ok()?.operations;
        let before = self.sums.insert(slot.config.name.clone(), now)?;
        lay_out(&now, &before, called)
    }
}

/// Each sum's growth, laid against the end of the one call that made it grow; `None` where that cannot be told.
fn lay_out(now: &Operations, before: &Operations, called: &[&Called]) -> Option<Vec<EngineWork>> {
    let mut work = Vec::new();
    for kind in KINDS {
        let calls: Vec<&&Called> = called.iter().filter(|c| kind.phases.contains(&c.phase)).collect();
        let [call] = calls.as_slice() else {
            // One sum cannot be shared out among several calls.
            if calls.is_empty() { continue } else { return None }
        };
        let took = (kind.of)(now)?.took_since((kind.of)(before))?;
        work.push(EngineWork {
            engine: call.engine.clone(),
            work: kind.word.to_owned(),
            began: call.ended - took,
            ended: call.ended,
        });
    }
    Some(work)
}

fn within(record: OpRecord, from: Moment, to: Moment) -> Option<EngineWork> {
    let (began, ended) = (Moment(record.began_ns), Moment(record.ended_ns));
    (ended >= from && began <= to).then(|| EngineWork {
        engine: record.engine,
        work: word(record.op).to_owned(),
        began,
        ended,
    })
}

fn word(op: Op) -> &'static str {
    match op {
        Op::Start => "start",
        Op::Drain => "drain",
        Op::Sleep => "sleep",
        Op::Wake => "wake",
        Op::ReleaseKvCache => "release_kv_cache",
        Op::ReloadWeights => "reload_weights",
        Op::ResetPrefixCache => "reset_prefix_cache",
        Op::Pause => "pause",
        Op::Resume => "resume",
        Op::Rpc => "rpc",
        Op::FirstToken => "first_token",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(seconds: f64, ended: u64) -> Operations {
        let sum = Some(Operation { seconds, ended, in_flight: 0 });
        Operations { wake: sum, first_token: sum, ..Operations::default() }
    }

    fn called(phase: Phase, second: u64) -> Called {
        Called { engine: "B".into(), phase, ended: Moment(second * 1_000_000_000) }
    }

    #[test]
    fn a_wake_and_its_token_end_where_the_agent_saw_them_end() {
        let (wake, probe) = (called(Phase::Wake, 10), called(Phase::Probe, 12));
        let work = lay_out(&sums(3.5, 3), &sums(3.0, 2), &[&wake, &probe]).expect("both can be told");
        let told: Vec<(&str, Moment)> = work.iter().map(|w| (w.work.as_str(), w.began)).collect();
        assert_eq!(told, [("wake", Moment(9_500_000_000)), ("first_token", Moment(11_500_000_000))]);
    }

    #[test]
    fn what_cannot_be_told_apart_is_unknown() {
        let wake = called(Phase::Wake, 10);
        let twice = lay_out(&sums(3.5, 4), &sums(3.0, 2), &[&wake]);
        assert_eq!(twice, None, "somebody else woke it as well");
        let two = lay_out(&sums(3.5, 4), &sums(3.0, 2), &[&wake, &called(Phase::WakeKv, 11)]);
        assert_eq!(two, None, "one sum for two calls");
        let none = lay_out(&Operations::default(), &Operations::default(), &[&wake]);
        assert_eq!(none, None, "a release without the metric");
        assert_eq!(lay_out(&sums(3.0, 2), &sums(3.0, 2), &[]), Some(Vec::new()), "nothing was asked of it");
    }
}
