//! Batching, pausing and freezing, without a clock.

use super::*;
use crate::model::MIB;
use crate::profile::Profile;

fn model() -> Model {
    let profile = Profile::load("l20").unwrap();
    let engine = profile.engine("B").unwrap().clone();
    Model::new(profile.device, engine, 4096 * MIB)
}

fn context(model: &Model) -> StepContext<'_> {
    StepContext { model, speed: 1.0, identity: 7, kv_epoch: 0, extra_prefill_s: 0.0 }
}

fn request(id: u64, max_tokens: u32) -> NewRequest {
    NewRequest { id, prompt_tokens: 25, prompt_hash: 99, chain: 99, max_tokens, ignore_eos: true }
}

/// Runs until nothing can step; tokens by request.
fn run(s: &mut Scheduler, model: &Model, mut now: u64, steps: usize) -> (Vec<(u64, u32)>, u64) {
    let mut tokens = Vec::new();
    for _ in 0..steps {
        if !s.can_step() {
            break;
        }
        s.begin_step(now, context(model));
        now = s.deadline_ns().unwrap();
        for output in s.complete_step(context(model)).outputs {
            tokens.extend(output.token.map(|(token, _)| (output.request, token)));
        }
    }
    (tokens, now)
}

#[test]
fn steps_chain_by_deadline_however_late_the_caller_is() {
    let (model, mut s) = (model(), Scheduler::new());
    s.add(request(1, 10), 0);
    s.begin_step(1_000, context(&model));
    let first = s.deadline_ns().unwrap();
    s.complete_step(context(&model));
    s.begin_step(first + 3_000_000, context(&model));
    assert_eq!(s.deadline_ns().unwrap() - first, crate::clock::scaled_ns(model.tpot_s(1), 1.0));
    s.complete_step(context(&model));
    s.break_chain();
    s.begin_step(first + 9_000_000_000, context(&model));
    assert!(s.deadline_ns().unwrap() > first + 9_000_000_000);
}

#[test]
fn late_comers_join_a_prefill_and_all_four_get_the_ttft_of_four() {
    let (model, mut s) = (model(), Scheduler::new());
    s.add(request(1, 10), 0);
    s.begin_step(0, context(&model));
    for id in 2..=4 {
        s.add(request(id, 10), 1_000);
        s.join(1_000, context(&model));
    }
    assert_eq!(s.deadline_ns().unwrap(), crate::clock::scaled_ns(model.prefill_s(4, 100), 1.0));
    assert_eq!(s.complete_step(context(&model)).first_tokens.len(), 4);
}

#[test]
fn a_frozen_request_goes_on_with_the_same_tokens() {
    let model = model();
    let mut undisturbed = Scheduler::new();
    undisturbed.add(request(1, 50), 0);
    let (expected, _) = run(&mut undisturbed, &model, 0, 100);
    assert_eq!(expected.len(), 50);

    let mut frozen = Scheduler::new();
    frozen.add(request(1, 50), 0);
    let (mut got, now) = run(&mut frozen, &model, 0, 20);
    frozen.pause = Pause::All;
    assert!(!frozen.can_step());
    assert!(!frozen.reset_prefix_cache(false) && frozen.reset_prefix_cache(true));
    // Preempted, it is held by a pause for new requests too.
    frozen.pause = Pause::New;
    assert!(!frozen.can_step() && !frozen.has_work());
    frozen.pause = Pause::No;
    got.extend(run(&mut frozen, &model, now, 100).0);
    assert_eq!(got, expected);
    assert_eq!(frozen.stats(None, &model).preemptions, 1);
}

#[test]
fn paused_for_new_drains_and_keeps_new_ones_waiting() {
    let (model, mut s) = (model(), Scheduler::new());
    s.add(request(1, 5), 0);
    s.begin_step(0, context(&model));
    s.complete_step(context(&model));
    s.pause = Pause::New;
    s.add(request(2, 5), 0);
    let (tokens, _) = run(&mut s, &model, 0, 100);
    assert!(tokens.iter().all(|(id, _)| *id == 1) && tokens.len() == 4);
    assert_eq!((s.running(), s.stats(None, &model).waiting), (0, 1));
    let ended: Vec<_> = s.abort_all().into_iter().map(|o| (o.request, o.finish)).collect();
    assert_eq!(ended, vec![(2, Some(Finish::Abort))]);
}

#[test]
fn a_hit_in_a_kv_cache_that_is_no_more_yields_other_tokens() {
    let (model, mut s) = (model(), Scheduler::new());
    s.add(request(1, 5), 0);
    let (first, now) = run(&mut s, &model, 0, 10);
    s.add(request(1, 5), 0);
    let (hit, now) = run(&mut s, &model, now, 10);
    assert_eq!(hit, first);
    s.add(request(1, 5), 0);
    let stale = StepContext { kv_epoch: 1, ..context(&model) };
    s.begin_step(now, stale);
    let (token, _) = s.complete_step(stale).outputs[0].token.unwrap();
    assert_eq!(s.prefix_hits, 32);
    let chain = mix(99, 0x57a1e);
    assert_eq!(token, draw(chain, 7, 0, 1).token);
}
