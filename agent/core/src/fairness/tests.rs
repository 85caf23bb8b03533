//! Whose turn it is, by a model clock: one device, engines that arrive, are served and are put out by [`next`] alone.

use super::*;
use proptest::prelude::*;

const STEP: Duration = Duration::from_millis(20);
const START: Moment = Moment(1_000_000_000_000);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn turn_of(min_residency: u64, max_wait: u64, weight: u32) -> Turn {
    Turn { min_residency: ms(min_residency), max_wait: ms(max_wait), weight, pinned: false }
}

/// One device that one engine may have at a time. Requests of the one that has it begin at once, those of others are held.
struct World {
    now: Moment,
    turns: Vec<Turn>,
    switch: Vec<Duration>,
    serving: usize,
    awake_since: Moment,
    /// To whom, until when.
    switching: Option<(usize, Moment)>,
    oldest: Vec<Option<Moment>>,
    running_until: Moment,
    /// How long each held request runs once it is served.
    runs: Duration,
    switches: u64,
    worst: Vec<Duration>,
}

impl World {
    fn new(turns: Vec<Turn>, switch: Vec<Duration>) -> Self {
        let count = turns.len();
        World {
            now: START,
            turns,
            switch,
            serving: 0,
            awake_since: START,
            switching: None,
            oldest: vec![None; count],
            running_until: START,
            runs: ms(100),
            switches: 0,
            worst: vec![Duration::ZERO; count],
        }
    }

    fn id(at: usize) -> EngineId {
        EngineId(u16::try_from(at).unwrap_or(u16::MAX))
    }

    fn request(&mut self, engine: usize) {
        if self.switching.is_none() && self.serving == engine {
            self.running_until = self.running_until.max(self.now + self.runs);
        } else {
            self.oldest[engine].get_or_insert(self.now);
        }
    }

    fn waiting(&self) -> Vec<Waiting> {
        let against = Against {
            until: self.awake_since + self.turns[self.serving].min_residency,
            weight: self.turns[self.serving].weight,
            busy: self.running_until > self.now,
        };
        let one = |(at, oldest): (usize, &Option<Moment>)| {
            Some(Waiting {
                engine: World::id(at),
                devices: vec![DeviceId(0)],
                oldest: (*oldest)?,
                turn: self.turns[at],
                first_token: self.switch[at],
                whole: self.switch[at],
                against: Some(against),
                free: self.switching.is_none(),
            })
        };
        self.oldest.iter().enumerate().filter_map(one).collect()
    }

    /// One step of the clock.
    fn pass(&mut self) {
        self.now = self.now + STEP;
        if let Some((to, until)) = self.switching
            && until <= self.now
        {
            self.switching = None;
            (self.serving, self.awake_since) = (to, self.now);
            if let Some(oldest) = self.oldest[to].take() {
                self.worst[to] = self.worst[to].max(self.now.since(oldest));
                self.running_until = self.now + self.runs;
            }
        }
        if let Some(engine) = next(&self.waiting(), self.now) {
            let to = usize::from(engine.0);
            self.switching = Some((to, self.now + self.switch[to]));
            self.running_until = self.now;
            self.switches += 1;
        }
    }

    fn run(&mut self, lasts: Duration, mut asks: impl FnMut(&mut World, u64)) {
        for step in 0..u64::try_from(lasts.as_millis() / STEP.as_millis()).unwrap_or(0) {
            asks(self, step);
            self.pass();
        }
    }
}

#[test]
fn two_models_that_alternate_do_not_thrash() {
    let mut world = World::new(vec![turn_of(2_000, 60_000, 1); 2], vec![ms(3_000); 2]);
    world.run(ms(60_000), |world, step| {
        if step % 10 == 0 {
            world.request(usize::try_from(step / 10 % 2).unwrap_or(0));
        }
    });
    assert!(world.switches <= 60 / (3 + 2) + 1, "{} switches", world.switches);
    assert!(world.switches >= 6, "{} switches: somebody was forgotten", world.switches);
    for worst in &world.worst {
        assert!(*worst <= ms(60_000 + 3_000), "{worst:?}");
    }
}

#[test]
fn one_request_is_served_beside_five_a_second_for_another() {
    // Served in 300 ms each, so that there is always one running.
    let mut world = World::new(vec![turn_of(2_000, 20_000, 1); 2], vec![ms(3_000); 2]);
    world.runs = ms(300);
    world.run(ms(30_000), |world, step| {
        if step % 10 == 0 {
            world.request(0);
        }
        if step == 250 {
            world.request(1);
        }
    });
    let waited = world.worst[1];
    assert!(waited > Duration::ZERO && waited <= ms(20_000), "{waited:?}");
    // Equal weights: half of the wait is patience.
    assert!(waited >= ms(10_000 + 3_000), "{waited:?}");
}

#[test]
fn a_heavier_model_waits_less_while_another_is_busy() {
    let waits = |weight| {
        let turns = vec![turn_of(1_000, 20_000, 1), turn_of(1_000, 20_000, weight)];
        let mut world = World::new(turns, vec![ms(1_000); 2]);
        world.runs = ms(60_000);
        world.run(ms(30_000), |world, step| {
            if step == 0 {
                world.request(0);
                world.request(1);
            }
        });
        world.worst[1]
    };
    let (light, even, heavy) = (waits(1), waits(2), waits(9));
    assert!(light > even && even > heavy && heavy > Duration::ZERO, "{light:?} {even:?} {heavy:?}");
}

fn alone(oldest: u64, against: Option<Against>) -> Waiting {
    Waiting {
        engine: EngineId(1),
        devices: vec![DeviceId(0)],
        oldest: START + ms(oldest),
        turn: turn_of(2_000, 60_000, 1),
        first_token: ms(3_000),
        whole: ms(3_000),
        against,
        free: true,
    }
}

#[test]
fn nothing_in_the_way_is_no_reason_to_wait_and_residency_is() {
    assert_eq!(next(&[alone(0, None)], START), Some(EngineId(1)));
    let against = |busy| Against { until: START + ms(1_500), weight: 1, busy };
    let idle = [alone(0, Some(against(false)))];
    assert_eq!(next(&idle, START + ms(1_499)), None);
    assert_eq!(next(&idle, START + ms(1_500)), Some(EngineId(1)));
    let busy = [alone(0, Some(against(true)))];
    assert_eq!(next(&busy, START + ms(29_999)), None);
    assert_eq!(next(&busy, START + ms(30_000)), Some(EngineId(1)));
    assert_eq!(order(&busy)[0].turn, START + ms(30_000));
    assert_eq!(order(&busy)[0].latest, START + ms(57_000));
    // A heavy neighbour leaves it less than the bound asks for: the bound wins.
    let heavy = Against { weight: 1_000, ..against(true) };
    assert_eq!(order(&[alone(0, Some(heavy))])[0].turn, START + ms(57_000));
}

#[test]
fn a_long_block_does_not_slip_in_before_one_that_has_waited_for_long() {
    let against = Some(Against { until: START, weight: 99, busy: false });
    let long = Waiting {
        engine: EngineId(2),
        turn: turn_of(7_000, 8_000, 9_000),
        oldest: START + ms(94_900),
        ..alone(0, against)
    };
    let patient = Waiting {
        turn: turn_of(0, 100_000, 1),
        first_token: ms(2_000),
        whole: ms(2_000),
        ..alone(0, against)
    };
    // The long one would like to go earlier, and by its latest start it is the more urgent one; but its 10 s would make
    // the other, which must begin at 98 s, late.
    let both = [long.clone(), patient.clone()];
    assert_eq!(next(&both, START + ms(95_000)), Some(EngineId(1)));
    // With time enough it may go first.
    let both = [Waiting { oldest: START + ms(48_000), ..long }, patient];
    assert_eq!(next(&both, START + ms(50_000)), Some(EngineId(2)));
}

#[test]
fn bounds_that_cannot_be_met_are_named() {
    let contender = |name: &str, device: u16, turn: Turn, switch: u64| Contender {
        name: name.to_owned(),
        devices: vec![DeviceId(device)],
        turn,
        switch: ms(switch),
    };
    let (a, b) = (turn_of(2_000, 60_000, 1), turn_of(2_000, 7_900, 1));
    let all = [contender("A", 0, a, 3_000), contender("B", 0, b, 3_000), contender("C", 1, b, 90_000)];
    let infeasible = feasible(&all, &[1, 1]).unwrap_err();
    assert_eq!((infeasible.engine.as_str(), infeasible.least), ("B", ms(8_000)));
    assert_eq!(
        infeasible.to_string(),
        "B: max_wait is 7.9s, but A may each take the device before it (5s of switches and min_residency), and its own \
         switch takes 3s: it must be at least 8s, or the others' min_residency shorter"
    );
    // Where both may be awake together, nobody waits for anybody.
    assert_eq!(feasible(&all, &[2, 1]), Ok(()));
    assert_eq!(feasible(&[], &[]), Ok(()));
}

/// An engine of a random setting: min_residency, max_wait beyond what is least, weight, switch; all in ms.
type Drawn = (u64, u64, u32, u64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn nobody_waits_longer_than_a_feasible_bound(
        drawn in prop::collection::vec((0u64..4_000, 0u64..20_000, 1u32..8, 40u64..4_000), 2..5),
        asks in prop::collection::vec((0u64..3_000, 0usize..5), 1..80),
        runs in prop_oneof![Just(10u64), Just(1_000), Just(600_000)],
    ) {
        let all: u64 = drawn.iter().map(|(residency, _, _, switch)| residency + switch).sum();
        let bound = |d: &Drawn| all - d.0 + d.1;
        let turns: Vec<Turn> = drawn.iter().map(|d| turn_of(d.0, bound(d), d.2)).collect();
        let switch: Vec<Duration> = drawn.iter().map(|d| ms(d.3)).collect();
        let contenders: Vec<Contender> = turns.iter().zip(&switch).enumerate().map(|(at, (turn, switch))| Contender {
            name: at.to_string(), devices: vec![DeviceId(0)], turn: *turn, switch: *switch,
        }).collect();
        prop_assert_eq!(feasible(&contenders, &[1]), Ok(()));
        let mut world = World::new(turns.clone(), switch.clone());
        world.runs = ms(runs);
        let mut at = 0;
        let mut due = 0;
        world.run(ms(150_000), |world, step| {
            while at < asks.len() && due <= step * 20 {
                world.request(asks[at].1 % turns.len());
                due += asks[at].0;
                at += 1;
            }
        });
        // What is still held has waited as well.
        for (engine, turn) in turns.iter().enumerate() {
            let held = world.oldest[engine].map_or(Duration::ZERO, |oldest| world.now.since(oldest));
            // The clock steps: one step late to begin, one to end, for each that goes before.
            let slack = STEP * u32::try_from(2 * turns.len()).unwrap();
            let worst = world.worst[engine].max(held);
            prop_assert!(worst <= turn.max_wait + slack, "{engine} waited {worst:?} of {:?}", turn.max_wait);
        }
        // Every switch began no sooner than a switch and a residency after the one before.
        let least = drawn.iter().map(|(residency, _, _, switch)| residency + switch).min().unwrap_or(1).max(20);
        prop_assert!(world.switches <= 150_000 / least + 1, "{} switches", world.switches);
    }

    #[test]
    fn no_figures_panic_it(
        figures in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>(), prop::option::of((any::<u64>(), any::<u32>(), any::<bool>())), 0u16..3),
            0..5,
        ),
        now in any::<u64>(),
    ) {
        let secs = Duration::from_secs;
        let waiting: Vec<Waiting> = figures.iter().enumerate().map(|(at, f)| Waiting {
            engine: World::id(at),
            devices: vec![DeviceId(f.6), DeviceId(f.6 / 2)],
            oldest: Moment(f.0),
            turn: Turn { min_residency: secs(f.1), max_wait: secs(f.2), weight: f.3, pinned: false },
            first_token: secs(f.4),
            whole: secs(f.4 / 3),
            against: f.5.map(|(until, weight, busy)| Against { until: Moment(until), weight, busy }),
            free: f.3 % 3 > 0,
        }).collect();
        let now = Moment(now);
        let due = next(&waiting, now);
        prop_assert!(due.is_none_or(|e| waiting.iter().any(|w| w.engine == e && w.free)));
        let places = order(&waiting);
        prop_assert_eq!(places.len(), waiting.len());
        for place in places {
            prop_assert!(forecast(&waiting, place.engine, now) >= now);
        }
        // Nobody's turn comes before nobody's instant: what is due now was announced.
        if let Some(engine) = due {
            prop_assert!(order(&waiting).iter().any(|p| p.engine == engine && p.turn <= now));
        }
    }
}
