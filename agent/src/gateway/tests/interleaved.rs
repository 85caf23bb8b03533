//! The gate under loom: the file itself, compiled on loom's atomics and mutex, under every interleaving.

use gate::{Entry, Gate};
use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[expect(clippy::duplicate_mod, reason = "the same source on other atomics is the point")]
#[path = "../gate.rs"]
mod gate;

const ANY: u32 = u32::MAX;

/// Every interleaving in which a thread is interrupted three times at most: bugs need no more, and it ends.
fn model(case: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(case);
}

#[test]
fn nobody_gets_in_once_close_has_returned() {
    model(|| {
        let (gate, closed) = (Arc::new(Gate::new()), Arc::new(AtomicBool::new(false)));
        gate.open(1);
        let client = {
            let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
            thread::spawn(move || {
                let too_late = closed.load(Ordering::SeqCst);
                let entry = gate.enter(ANY);
                assert!(!too_late || entry == Entry::Closed, "a lease was given after the gate had closed");
                entry
            })
        };
        assert!(gate.close());
        closed.store(true, Ordering::SeqCst);
        let counted = gate.in_flight();
        // Whoever gets in is in the count that stood when the gate had closed.
        let entry = client.join().unwrap();
        assert_eq!(counted, u32::from(entry == Entry::In(1)));
        assert_eq!(gate.enter(ANY), Entry::Closed);
    });
}

#[test]
fn drained_comes_with_the_end_of_the_last_lease_and_not_before() {
    model(|| {
        let (gate, left) = (Arc::new(Gate::new()), Arc::new(AtomicBool::new(false)));
        gate.open(1);
        assert_eq!(gate.enter(ANY), Entry::In(1));
        let body = {
            let (gate, left) = (Arc::clone(&gate), Arc::clone(&left));
            thread::spawn(move || {
                left.store(true, Ordering::SeqCst);
                gate.leave();
            })
        };
        gate.close();
        // A wake-up that is missed is a deadlock, which loom reports.
        block_on(gate.drained());
        assert!(left.load(Ordering::SeqCst), "drained while a lease was there");
        assert_eq!(gate.in_flight(), 0);
        body.join().unwrap();
    });
}

#[test]
fn drained_waits_for_everyone_however_they_come_and_go() {
    model(|| {
        let gate = Arc::new(Gate::new());
        gate.open(7);
        let client = |gate: &Arc<Gate>| {
            let gate = Arc::clone(gate);
            thread::spawn(move || {
                if gate.enter(ANY) == Entry::In(7) {
                    gate.leave();
                }
            })
        };
        let clients = [client(&gate), client(&gate)];
        gate.close();
        block_on(gate.drained());
        assert_eq!(gate.in_flight(), 0);
        for client in clients {
            client.join().unwrap();
        }
        assert_eq!(gate.in_flight(), 0, "somebody got in after the drain");
    });
}

#[test]
fn a_frozen_lease_survives_the_gate_and_is_waited_for() {
    model(|| {
        let gate = Arc::new(Gate::new());
        gate.open(1);
        assert_eq!(gate.enter(ANY), Entry::In(1));
        gate.close();
        let body = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.leave())
        };
        gate.open(2);
        assert_eq!(gate.enter(ANY), Entry::In(2), "the next generation");
        gate.leave();
        gate.close();
        block_on(gate.drained());
        body.join().unwrap();
        assert_eq!(gate.in_flight(), 0);
        assert!(!gate.is_open());
    });
}

#[test]
fn a_drain_that_is_given_up_leaves_the_gate_as_it_was() {
    model(|| {
        let gate = Arc::new(Gate::new());
        gate.open(1);
        assert_eq!(gate.enter(ANY), Entry::In(1));
        gate.close();
        let body = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.leave().in_flight)
        };
        gate.open(1);
        let again = gate.enter(ANY);
        assert_eq!(again, Entry::In(1));
        let _ = body.join().unwrap();
        assert_eq!(gate.in_flight(), 1);
    });
}

#[test]
fn no_more_than_the_limit_are_in() {
    model(|| {
        let gate = Arc::new(Gate::new());
        gate.open(1);
        let other = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.enter(1))
        };
        let (mine, theirs) = (gate.enter(1), other.join().unwrap());
        assert_eq!([mine, theirs].iter().filter(|entry| **entry == Entry::In(1)).count(), 1);
        assert!([mine, theirs].contains(&Entry::Full));
    });
}
