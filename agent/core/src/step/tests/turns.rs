//! Turns through the whole of `step`, by a model clock: requests that come by the millisecond, a gateway that holds them
//! and lets them through, and actions that take their time.

use super::*;
use crate::call::Call;
use crate::demand::Demand;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the gateway knows of one engine.
#[derive(Default)]
struct Held {
    waiting: Vec<Moment>,
    running: Vec<Moment>,
    used_at: Moment,
    worst: Duration,
    served: u32,
}

/// One device, two engines and a gateway.
struct Shift {
    session: Session,
    held: Vec<Held>,
    /// When the action under way ends.
    due: Option<Moment>,
    runs: Duration,
    switches: u32,
}

impl Shift {
    fn new(runs: Duration, max_wait: Duration) -> Self {
        let mut session = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        for id in [A, B] {
            session.node.engine_mut(id).spec.turn.max_wait = max_wait;
            session.node.engine_mut(id).awake_since = session.now;
        }
        let held = [A, B].map(|_| Held::default()).into();
        Shift { session, held, due: None, runs, switches: 0 }
    }

    fn id(at: usize) -> EngineId {
        EngineId(u16::try_from(at).unwrap_or(0))
    }

    /// What is new of every engine's use, and then an event, as the shell tells them.
    fn say(&mut self, event: Event) {
        let now = self.session.now;
        for (at, held) in self.held.iter_mut().enumerate() {
            held.used_at =
                held.running.iter().filter(|end| **end <= now).fold(held.used_at, |a, b| a.max(*b));
            held.running.retain(|end| *end > now);
            let in_flight = u32::try_from(held.running.len()).unwrap_or(u32::MAX);
            let e = self.session.node.engine(Shift::id(at));
            let at_used = if in_flight > 0 { now } else { held.used_at };
            if (e.in_flight > 0) != (in_flight > 0) || (in_flight == 0 && e.used_at < at_used) {
                self.session.say(Event::Uses(vec![Use { engine: Shift::id(at), in_flight, at: at_used }]));
            }
        }
        self.session.say(event);
        self.let_through();
        self.switches += self.session.log.iter().filter(|l| l.contains(" switch ")).count() as u32;
        self.session.log.clear();
        let now = self.session.now;
        self.due = match self.session.waiting.first() {
            None => None,
            Some(_) if self.due.is_some_and(|due| due > now) => self.due,
            // The whole of a switch takes 3 s.
            Some((_, Action::Call { call: Call::WakeUp { .. }, .. })) => Some(now + ms(2_800)),
            Some((_, Action::Call { .. })) => Some(now + ms(100)),
            // Until the last of its requests has ended.
            Some((_, Action::Drain { engine, .. })) => {
                let running = &self.held[usize::from(engine.0)].running;
                Some(running.iter().copied().max().unwrap_or(now))
            }
            Some(_) => Some(now),
        };
    }

    fn let_through(&mut self) {
        let now = self.session.now;
        for at in 0..self.held.len() {
            let engine = Shift::id(at);
            let held = &mut self.held[at];
            if !self.session.node.engine(engine).is_serving() || held.waiting.is_empty() {
                continue;
            }
            for since in std::mem::take(&mut held.waiting) {
                held.worst = held.worst.max(now.since(since));
                held.running.push(now + self.runs);
                held.served += 1;
            }
            let in_flight = u32::try_from(held.running.len()).unwrap_or(u32::MAX);
            self.session.say(Event::Uses(vec![Use { engine, in_flight, at: now }]));
            self.session.say(Event::Demand { engine, demand: Demand::default() });
        }
    }

    fn request(&mut self, engine: EngineId) {
        let now = self.session.now;
        let serves = self.session.node.engine(engine).is_serving();
        let held = &mut self.held[usize::from(engine.0)];
        if serves {
            held.running.push(now + self.runs);
            held.served += 1;
            return;
        }
        held.waiting.push(now);
        let demand = Demand {
            held: u32::try_from(held.waiting.len()).unwrap_or(u32::MAX),
            oldest: held.waiting.first().copied(),
        };
        if demand.held == 1 {
            self.say(Event::Demand { engine, demand });
        }
    }

    /// Lives until then, whatever is due.
    fn until(&mut self, end: Moment) {
        loop {
            let now = self.session.now;
            let deadline = self.session.node.next_deadline(now);
            // The gateway tells when an engine falls idle while something is held.
            let somebody = self.held.iter().any(|h| !h.waiting.is_empty());
            let idle = self.held.iter().filter_map(|h| h.running.iter().max().copied()).filter(|_| somebody);
            let next = [self.due, deadline].into_iter().flatten().chain(idle.filter(|at| *at > now)).min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.session.now = next.max(now);
            if self.due.is_some_and(|due| due <= self.session.now) {
                self.due = None;
                self.answer();
            } else {
                self.say(Event::Tick);
            }
        }
        self.session.now = end;
    }

    fn answer(&mut self) {
        self.session.ok();
        self.say(Event::Tick);
    }
}

#[test]
fn two_models_asked_for_in_turns_do_not_thrash_and_nobody_waits_too_long() {
    let mut shift = Shift::new(ms(100), ms(60_000));
    let start = shift.session.now;
    for at in 0..300u64 {
        shift.until(start + ms(at * 200));
        shift.request(if at % 2 == 0 { A } else { B });
    }
    shift.until(start + ms(60_000));
    let most = 60 / (3 + 2) + 1;
    assert!(shift.switches <= most, "{} switches", shift.switches);
    assert!(shift.switches >= most - 3, "{} switches: somebody was forgotten", shift.switches);
    for held in &shift.held {
        assert!(held.worst <= ms(60_000 + 3_000) && held.served > 100, "{:?}, {}", held.worst, held.served);
    }
}

#[test]
fn one_request_among_five_a_second_for_another_is_served_in_time() {
    let mut shift = Shift::new(ms(300), ms(20_000));
    let start = shift.session.now;
    for at in 0..200u64 {
        shift.until(start + ms(at * 200));
        shift.request(A);
        if at == 25 {
            shift.request(B);
        }
    }
    shift.until(start + ms(40_000));
    let waited = shift.held[1].worst;
    assert!(shift.held[1].served == 1 && waited <= ms(20_000), "{waited:?}");
    // Half of it is patience; A was served meanwhile, and again as soon as B fell idle.
    assert!(waited >= ms(10_000), "{waited:?}");
    assert!(
        shift.switches == 2 && shift.held[0].served > 150,
        "{}, {}",
        shift.switches,
        shift.held[0].served
    );
}
