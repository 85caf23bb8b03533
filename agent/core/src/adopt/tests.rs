//! The tables say something of everything that may be found, and nothing twice.

use super::*;

const PLACES: [Place; 6] =
    [Place::Awake, Place::Asleep, Place::Stopped, Place::Adrift, Place::Moving, Place::Unknown];
const DOINGS: [Doing; 18] = [
    Doing::Drain,
    Doing::DrainOver,
    Doing::Sleep,
    Doing::Pause0,
    Doing::ReleaseKv,
    Doing::Wake,
    Doing::WakeWeights,
    Doing::Reload,
    Doing::Small,
    Doing::Worker,
    Doing::Look,
    Doing::Measure,
    Doing::Probe,
    Doing::Spawn,
    Doing::Stop,
    Doing::Hold,
    Doing::Keep,
    Doing::LetGo,
];
const SAYS: [Says; 6] = [Says::Nobody, Says::Ended, Says::Silent, Says::Asleep, Says::Awake, Says::Strange];
const BYTES: [Bytes; 4] = [Bytes::There, Bytes::Gone, Bytes::Half, Bytes::Unknown];

fn evidence() -> impl Iterator<Item = (Says, Bytes)> {
    SAYS.into_iter().flat_map(|s| BYTES.into_iter().map(move |b| (s, b)))
}

#[test]
fn every_case_has_a_row_and_every_row_a_case() {
    let mut used = vec![false; AT_REST.len() + IN_STEP.len()];
    for (says, bytes) in evidence() {
        for place in PLACES {
            let found = at_rest(place, says, bytes).unwrap_or_else(|| panic!("{place:?} {says:?} {bytes:?}"));
            used[AT_REST.iter().position(|r| std::ptr::eq(r, found)).unwrap()] = true;
        }
        for doing in DOINGS {
            let found = in_step(doing, says, bytes).unwrap_or_else(|| panic!("{doing:?} {says:?} {bytes:?}"));
            used[AT_REST.len() + IN_STEP.iter().position(|r| std::ptr::eq(r, found)).unwrap()] = true;
        }
    }
    let idle: Vec<usize> = used.iter().enumerate().filter(|(_, u)| !**u).map(|(at, _)| at).collect();
    assert!(idle.is_empty(), "rows that nothing leads to: {idle:?}");
}

/// What makes the tables safe, whatever their rows say one by one.
#[test]
fn the_tables_keep_what_they_promise() {
    for (says, bytes) in evidence() {
        let dead = matches!(says, Says::Nobody | Says::Ended);
        // Who served serves on, unless it died, was moved by somebody else, or would die of the next request.
        let served = at_rest(Place::Awake, says, bytes).unwrap().then;
        let harmed = dead || matches!(says, Says::Strange | Says::Asleep) || bytes == Bytes::Gone;
        assert!(served == Rest::Believe || harmed, "{says:?} {bytes:?}: {served:?}");
        // Nobody is believed awake whose memory is known to be gone.
        for place in [Place::Awake, Place::Unknown] {
            let then = at_rest(place, says, bytes).unwrap().then;
            assert!(!(then == Rest::Believe && says == Says::Awake && bytes == Bytes::Gone));
        }
        for doing in DOINGS {
            let then = in_step(doing, says, bytes).unwrap().then;
            // Nothing is asked of a process that has ended, or of a stranger.
            let asks = matches!(then, Then::Again | Then::GoOn | Then::Wait | Then::WaitAgain);
            let may = matches!(doing, Doing::Stop | Doing::LetGo)
                || (doing == Doing::Spawn && says != Says::Ended)
                || (doing == Doing::Hold && says == Says::Nobody);
            assert!(!asks || may || !(dead || says == Says::Strange), "{doing:?} {says:?} {bytes:?}");
            // No control call while another may still run in the engine.
            let call = !matches!(
                doing,
                Doing::Drain
                    | Doing::DrainOver
                    | Doing::Look
                    | Doing::Measure
                    | Doing::Probe
                    | Doing::Spawn
                    | Doing::Stop
                    | Doing::Hold
                    | Doing::Keep
                    | Doing::LetGo
            );
            assert!(!(call && says == Says::Silent && then == Then::Again), "{doing:?} {bytes:?}");
            // No probe without memory.
            assert!(!(doing == Doing::Probe && bytes == Bytes::Gone && then == Then::Again));
        }
    }
}

#[test]
fn words_are_lower_case() {
    assert_eq!(words(&[Doing::WakeWeights, Doing::Stop]), "wake weights, stop");
    assert_eq!(words::<Doing>(&[]), "any");
    assert!(markdown().lines().count() == AT_REST.len() + IN_STEP.len() + 5);
}
