//! Gates, queues and leases, with the switcher played by the test.

use super::*;
use crate::gateway::{Aborted, Address, Eta};
use hotbunk_core::demand::Demand;
use hotbunk_core::effect::{Effect, Note};
use hotbunk_core::event::{By, Drain, Request, Use};
use hotbunk_core::ids::OperationId;
use hotbunk_core::program::{Cause, Failure, Step};
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::state::{Condition, Paused, Pausing};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Whether a future is there already.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn models_and_aliases_lead_to_their_engine() {
    let mut desk = Desk::new("", "");
    desk.serve(B);
    assert_eq!(desk.hub.resolve("org/A"), Some(A));
    assert_eq!(desk.hub.resolve("small-B"), Some(B));
    assert_eq!(desk.hub.resolve("B"), None, "an engine's name is no model");
    let models = desk.hub.models();
    let short: Vec<(&str, &str, bool)> =
        models.iter().map(|m| (m.id.as_str(), m.tier, m.alias_of.is_some())).collect();
    assert_eq!(
        short,
        [
            ("org/A", "stopped", false),
            ("small-A", "stopped", true),
            ("org/B", "awake", false),
            ("small-B", "awake", true)
        ]
    );
}

#[tokio::test]
async fn an_open_gate_lets_in_and_a_lease_says_where_to() {
    let mut desk = Desk::new("", "");
    desk.serve(A);
    desk.serve(A);
    let lease = go(desk.hub.admit(&desk.anybody(), ask(A)));
    assert_eq!((lease.engine(), lease.generation()), (A, 2));
    assert_eq!(lease.upstream().address(), &Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8101))));
    assert_eq!(lease.upstream().api_key().map(|key| key.reveal()), Some("engine-key"));
    assert_eq!(lease.upstream().incarnation(), 1);
    assert_eq!(desk.hub.in_flight(A), 1);
    assert!(!lease.frozen());
    drop(lease);
    assert_eq!(desk.hub.in_flight(A), 0);
    assert_eq!(desk.told(), [], "nobody waits: nobody is told");
}

#[tokio::test]
async fn those_who_wait_are_let_in_in_order_and_demand_is_told_at_its_edges_only() {
    let mut desk = Desk::new("", "");
    let anybody = desk.anybody();
    let mut held: Vec<_> = (0..5).map(|_| hold(desk.hub.admit(&anybody, ask(B)))).collect();
    let told = desk.told();
    assert!(
        matches!(told[..], [Event::Demand { engine: B, demand: Demand { held: 1, oldest: Some(_) } }]),
        "{told:?}"
    );
    assert_eq!(held.iter().map(|h| h.position()).collect::<Vec<_>>(), (1..=5).map(Some).collect::<Vec<_>>());
    // One in the middle hangs up.
    drop(held.remove(2));
    assert_eq!((desk.hub.held(B), desk.told().len()), (4, 0));
    // The oldest does: another one is the oldest now.
    drop(held.remove(0));
    assert!(matches!(desk.told()[..], [Event::Demand { demand: Demand { held: 3, oldest: Some(_) }, .. }]));
    desk.serve(B);
    assert!(matches!(desk.told()[..], [Event::Demand { demand: Demand { held: 0, oldest: None }, .. }]));
    for held in held {
        assert_eq!(held.await.unwrap().generation(), 1);
    }
    assert_eq!((desk.hub.in_flight(B), desk.hub.held(B)), (0, 0));
}

#[tokio::test]
async fn a_drain_is_closing_and_waiting_for_the_count() {
    let mut desk = Desk::new("", "");
    desk.serve(A);
    let lease = go(desk.hub.admit(&desk.anybody(), ask(A)));
    desk.close(A);
    assert!(lease.frozen());
    let waits = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    assert!(now(desk.hub.drained(A)).is_none());
    lease.finished();
    drop(lease);
    assert!(now(desk.hub.drained(A)).is_some());
    // Somebody waits, so the switcher is told that nothing runs any more.
    let told = desk.told();
    assert!(
        matches!(&told[..], [Event::Demand { .. }, Event::Uses(uses)]
            if matches!(uses[..], [Use { engine: A, in_flight: 0, at }] if at.0 > 0)),
        "{told:?}"
    );
    drop(waits);
}

#[tokio::test]
async fn a_frozen_lease_goes_on_and_an_aborted_one_is_told() {
    let mut desk = Desk::new("", "");
    desk.serve(A);
    let frozen = go(desk.hub.admit(&desk.anybody(), ask(A)));
    desk.close(A);
    desk.serve(A);
    assert!(!frozen.frozen());
    assert_eq!((frozen.generation(), desk.hub.in_flight(A)), (1, 1));
    assert!(now(frozen.aborted()).is_none());
    desk.close(A);
    desk.hub.abort(A);
    assert_eq!(frozen.aborted().await, Aborted::Drain);
    desk.serve(A);
    let next = go(desk.hub.admit(&desk.anybody(), ask(A)));
    assert!(now(next.aborted()).is_none(), "an abort is for those that were there");
    // The process dies.
    let engine = desk.node.engine_mut(A);
    (engine.admission, engine.dead) = (false, true);
    desk.apply();
    assert_eq!(next.aborted().await, Aborted::Died);
}

#[tokio::test]
async fn a_plain_request_waits_no_longer_than_its_deadline() {
    let desk = Desk::new("[gateway]\nhold_deadline = \"20ms\"", "");
    let held = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    let refusal = held.await.unwrap_err();
    assert_eq!((refusal.code(), refusal.status().as_u16()), ("not_ready_in_time", 503));
    assert!(refusal.retry_after_seconds().is_some());
    assert_eq!(desk.hub.held(A), 0);
}

#[tokio::test]
async fn a_failed_engine_refuses_without_retry_after_and_a_crashed_one_with_it() {
    let mut desk = Desk::new("", "");
    let held = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    desk.node.engine_mut(A).condition = Condition::Failed("crashed 6 times; CUDA out of memory".to_owned());
    desk.apply();
    let refusal = held.await.unwrap_err();
    assert_eq!((refusal.code(), refusal.retry_after()), ("engine_failed", None));
    assert!(refusal.to_string().contains("CUDA out of memory"), "{refusal}");
    assert_eq!(refused(desk.hub.admit(&desk.anybody(), ask(A))), refusal);

    desk.node.engine_mut(A).condition = Condition::Backoff(hotbunk_core::time::Moment(5));
    desk.apply();
    let refusal = refused(desk.hub.admit(&desk.anybody(), ask(A)));
    assert_eq!(refusal.code(), "engine_down");
    assert!(refusal.retry_after().is_some());

    desk.node.engine_mut(A).condition = Condition::Moving;
    desk.apply();
    let held = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    desk.node.closing = true;
    desk.apply();
    assert_eq!(held.await.unwrap_err().code(), "shutting_down");
}

#[tokio::test]
async fn whoever_forbids_a_switch_is_refused_at_once() {
    let mut desk = Desk::new("", "");
    let no_switch = Ask { no_switch: true, ..ask(A) };
    let refusal = refused(desk.hub.admit(&desk.anybody(), no_switch));
    assert_eq!((refusal.status().as_u16(), refusal.retry_after()), (409, None));
    assert_eq!(desk.told(), [], "it is no demand");
    desk.serve(A);
    drop(go(desk.hub.admit(&desk.anybody(), no_switch)));
}

#[tokio::test]
async fn the_bytes_that_wait_are_bounded_and_given_back() {
    let mut desk = Desk::new("[gateway]\nmax_body = \"1MiB\"\nhold_bytes = \"1MiB\"\nhold_requests = 3", "");
    let big = Ask { body_bytes: 1 << 19, ..ask(A) };
    let first = hold(desk.hub.admit(&desk.anybody(), big));
    let second = hold(desk.hub.admit(&desk.anybody(), Ask { engine: B, ..big }));
    let refusal = refused(desk.hub.admit(&desk.anybody(), ask(A)));
    assert_eq!((refusal.code(), refusal.status().as_u16()), ("queue_full", 503));
    drop(second);
    let (third, fourth) =
        (hold(desk.hub.admit(&desk.anybody(), ask(A))), hold(desk.hub.admit(&desk.anybody(), ask(A))));
    assert_eq!(refused(desk.hub.admit(&desk.anybody(), ask(A))).code(), "queue_full", "three wait");
    desk.serve(A);
    for held in [first, third, fourth] {
        drop(held.await.unwrap());
    }
    drop(hold(desk.hub.admit(&desk.anybody(), Ask { body_bytes: 1 << 20, ..ask(B) })));
}

#[tokio::test]
async fn a_limit_of_the_engine_holds_and_newcomers_do_not_overtake() {
    let mut desk = Desk::new("", "max_in_flight = 2");
    desk.serve(A);
    assert_eq!(desk.hub.eta(A), Eta::Serving);
    let (one, two) =
        (go(desk.hub.admit(&desk.anybody(), ask(A))), go(desk.hub.admit(&desk.anybody(), ask(A))));
    let third = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    let fourth = hold(desk.hub.admit(&desk.anybody(), Ask { no_switch: true, ..ask(A) }));
    drop(one);
    let three = third.await.unwrap();
    drop(two);
    // The gate closes as the fourth gets its lease, or before it looks: it is there, and counted.
    assert_eq!(desk.hub.in_flight(A), 2);
    let fifth = hold(desk.hub.admit(&desk.anybody(), Ask { no_switch: true, ..ask(A) }));
    desk.close(A);
    assert_eq!(fifth.await.unwrap_err().code(), "would_switch", "it waited for room, not for a switch");
    drop((three, fourth));
    assert_eq!(desk.hub.in_flight(A), 0, "a lease that nobody took is given back");
}

/// Threads that come, wait, hang up and go, and a gate that opens and closes: in the end nothing is left.
#[test]
fn nothing_leaks_under_a_crowd() {
    let mut desk = Desk::new("", "max_in_flight = 3");
    let hub = Arc::clone(&desk.hub);
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let (hub, tenant) = (Arc::clone(&hub), desk.anybody());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(async {
                    let mut served = 0;
                    for i in 0..300 {
                        match hub.admit(&tenant, ask(A)) {
                            Admit::Go(lease) => drop(lease),
                            Admit::Hold(held) if (i + n) % 3 == 0 => drop(held),
                            Admit::Hold(held) => drop(held.await.unwrap()),
                            Admit::Refuse(refusal) => panic!("{refusal}"),
                        }
                        served += 1;
                    }
                    served
                })
            })
        })
        .collect();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while clients.iter().any(|client| !client.is_finished()) {
        assert!(std::time::Instant::now() < end, "somebody waits before an open gate");
        desk.serve(A);
        std::thread::yield_now();
        desk.close(A);
        assert!(desk.hub.in_flight(A) <= 3);
        // Open long enough for whoever is left.
        desk.serve(A);
    }
    for client in clients {
        assert_eq!(client.join().unwrap(), 300);
    }
    assert_eq!((hub.in_flight(A), hub.held(A)), (0, 0));
    desk.close(A);
    assert!(now(hub.drained(A)).is_some());
}

/// Nobody may ever ask for its model again, and still a frozen request has to go on.
#[tokio::test]
async fn frozen_requests_are_demand_until_they_go_on_or_go() {
    let mut desk = Desk::new("", "");
    let freeze = |desk: &mut Desk| {
        let engine = desk.node.engine_mut(A);
        (engine.admission, engine.frozen, engine.tier) = (false, true, Tier::Parked);
        desk.apply();
    };
    for goes_on in [true, false] {
        desk.serve(A);
        let lease = go(desk.hub.admit(&desk.anybody(), ask(A)));
        desk.close(A);
        assert_eq!(desk.told(), [], "what is drained is no demand");
        freeze(&mut desk);
        let told = desk.told();
        let wanted = |d: &Demand| d.held == 1 && d.oldest.is_some();
        assert!(matches!(&told[..], [Event::Demand { engine: A, demand }] if wanted(demand)), "{told:?}");
        desk.apply();
        assert_eq!(desk.told(), [], "once");
        if goes_on {
            desk.node.engine_mut(A).frozen = false;
            desk.serve(A);
            drop(lease);
        } else {
            drop(lease);
        }
        let told = desk.told();
        assert!(
            matches!(&told[..], [Event::Demand { engine: A, demand }] if *demand == Demand::default()),
            "{told:?}"
        );
        desk.node.engine_mut(A).frozen = false;
    }
    desk.serve(A);
    desk.close(A);
    freeze(&mut desk);
    assert_eq!(desk.told(), [], "nobody is frozen where nobody ran");
}

#[tokio::test]
async fn a_switch_that_fails_is_told_to_whoever_waited_and_charged_to_whoever_caused_it() {
    let mut desk = Desk::new("", "");
    let waits = hold(desk.hub.admit(&desk.anybody(), ask(B)));
    let id = OperationId(3);
    let drain = Drain::default();
    let accepted = Note::Accepted {
        id,
        request: Request::Switch { to: B, strategy: None, leave: None, drain },
        by: By::Gateway,
        outgoing: vec![A],
        strategy: None,
        order: None,
        leave: None,
        drain: DrainPolicy::Wait,
        steps: Vec::new(),
    };
    let begin = clock::now();
    let drained = Note::StepEnded {
        id,
        index: 0,
        step: Step::Drain(A),
        began: begin,
        failure: None,
        first_token: None,
    };
    let ended = |cause| Note::Ended {
        id,
        failure: Some(Failure { cause, engine: B, detail: "/wake_up answered 500".to_owned() }),
        accepted: begin,
        first_token: None,
    };
    desk.hub.follow(&desk.node, &[Effect::Note(accepted.clone())], begin);
    desk.hub.follow(&desk.node, &[Effect::Note(drained)], begin + Duration::from_secs(2));
    // One that somebody else's command has pushed aside is no failure, and none that waits for a neighbour's repair.
    let end = begin + Duration::from_secs(5);
    desk.hub.follow(&desk.node, &[Effect::Note(ended(Cause::Cancelled))], end);
    assert_eq!(desk.hub.held(B), 1);
    assert_eq!(desk.anybody().switch_time(), Duration::from_secs(3), "the drain is not counted");
    let again = [Effect::Note(accepted.clone()), Effect::Note(ended(Cause::Drifted))];
    desk.hub.follow(&desk.node, &again, begin);
    assert_eq!(desk.hub.held(B), 1);
    desk.hub.follow(&desk.node, &[Effect::Note(accepted), Effect::Note(ended(Cause::CallRefused))], end);
    let refusal = waits.await.unwrap_err();
    assert_eq!((refusal.code(), refusal.status().as_u16()), ("switch_failed", 503));
    assert!(refusal.to_string().contains("/wake_up answered 500") && refusal.retry_after().is_some());
    // Whoever comes later may wait for the next attempt.
    desk.apply();
    drop(hold(desk.hub.admit(&desk.anybody(), ask(B))));
}

#[tokio::test]
async fn maintenance_refuses_whoever_waits_and_whoever_comes() {
    let mut desk = Desk::new("", "");
    let waits = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    let paused = |stage| Some(Paused { since: clock::now(), served: vec![A], stage });
    desk.node.paused = paused(Pausing::Begins);
    desk.apply();
    assert_eq!(waits.await.unwrap_err().code(), "paused");
    assert_eq!(refused(desk.hub.admit(&desk.anybody(), ask(B))).code(), "paused");
    desk.node.paused = paused(Pausing::Ends);
    desk.apply();
    drop(hold(desk.hub.admit(&desk.anybody(), ask(B))));
}

#[tokio::test]
async fn how_engines_are_used_is_told_once() {
    let mut desk = Desk::new("", "");
    desk.serve(A);
    desk.serve(B);
    assert_eq!(desk.hub.uses(&desk.node), []);
    let lease = go(desk.hub.admit(&desk.anybody(), ask(A)));
    let uses = desk.hub.uses(&desk.node);
    assert_eq!(uses.iter().map(|u| (u.engine, u.in_flight)).collect::<Vec<_>>(), [(A, 1)]);
    let engine = desk.node.engine_mut(A);
    (engine.in_flight, engine.used_at) = (1, uses[0].at);
    assert_eq!(desk.hub.uses(&desk.node), []);
    // It brought nothing: that is no use of it, only an end.
    drop(lease);
    let uses = desk.hub.uses(&desk.node);
    assert_eq!((uses[0].in_flight, uses[0].at), (0, hotbunk_core::time::Moment(0)));
}

#[tokio::test]
async fn at_an_agent_that_leaves_nobody_waits_whatever_the_switcher_still_says() {
    let mut desk = Desk::new("", "max_in_flight = 1");
    desk.serve(A);
    let running = go(desk.hub.admit(&desk.anybody(), ask(A)));
    let held = [A, B].map(|engine| hold(desk.hub.admit(&desk.anybody(), ask(engine))));
    desk.told();
    desk.hub.leave();
    for held in held {
        assert_eq!(held.await.unwrap_err().code(), "restarting");
    }
    let nobody = |engine| Event::Demand { engine, demand: Demand::default() };
    assert_eq!(desk.told(), [nobody(A), nobody(B)], "nothing is done for them any more");
    // The switcher goes on with what is under way, and its gates stand as they stood.
    desk.serve(A);
    let no_switch = Ask { no_switch: true, ..ask(B) };
    for ask in [ask(A), ask(B), no_switch] {
        let refusal = refused(desk.hub.admit(&desk.anybody(), ask));
        assert_eq!((refusal.code(), refusal.retry_after_seconds()), ("restarting", Some(2)));
    }
    assert_eq!(now(running.aborted()), None, "what runs goes on");
    drop(running);
    let running = go(desk.hub.admit(&desk.anybody(), ask(A)));
    desk.hub.shut();
    assert_eq!(refused(desk.hub.admit(&desk.anybody(), ask(A))).code(), "restarting");
    desk.hub.cut();
    assert_eq!(running.aborted().await, Aborted::Leaving);
    drop(running);
    assert_eq!((desk.hub.all_in_flight(), desk.hub.held(A), desk.hub.held(B)), (0, 0, 0));
}
