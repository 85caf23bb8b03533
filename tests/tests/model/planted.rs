//! Bugs put between the core and the world. The check must find each of them.

use crate::system::{NOW, Planted, Sys};
use hotbunk_core::adopt::Process;
use hotbunk_core::call::SleepingAnswer;
use hotbunk_core::demand::Demand;
use hotbunk_core::effect::{StepResult, Ticket};
use hotbunk_core::event::{Event, Request, Use};
use hotbunk_core::revise::Change;
use hotbunk_core::tier::Tier;

/// A reservation is dropped after each step.
pub(crate) fn dropped_reservation() -> Planted {
    Planted { node: |node| node.engines.iter_mut().for_each(|e| e.reserved = 0), ..Planted::default() }
}

/// Exits of an earlier life are taken for the current one's.
pub(crate) fn stale_life() -> Planted {
    let event = |sys: &Sys, event: &mut Event| {
        if let Event::Exited { engine, life, .. } = event {
            *life = sys.node.engine(*engine).life;
        }
    };
    Planted { event, ..Planted::default() }
}

/// Surveys of an earlier generation are taken for the current one's.
pub(crate) fn stale_generation() -> Planted {
    let event = |sys: &Sys, event: &mut Event| {
        if let Event::Surveyed { engine, generation, .. } = event {
            *generation = sys.node.engine(*engine).generation;
        }
    };
    Planted { event, ..Planted::default() }
}

/// Device bytes are said to be as wanted without being read.
pub(crate) fn skipped_verification() -> Planted {
    Planted { unread: true, ..Planted::default() }
}

/// A late reply is taken for the one that is waited for.
pub(crate) fn late_reply() -> Planted {
    let event = |sys: &Sys, event: &mut Event| {
        let Event::Done { ticket, .. } = event else { return };
        let mut waited: Vec<Ticket> = Vec::new();
        waited.extend(sys.node.operations.iter().filter_map(|op| op.current.as_ref()).map(|c| c.ticket));
        if let (false, Some(other)) = (waited.contains(ticket), waited.first()) {
            *ticket = *other;
        }
    };
    Planted { event, ..Planted::default() }
}

/// What was kept is believed, and nothing is looked at.
pub(crate) fn record_believed() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        let Event::Adopted(adoption) = event else { return };
        for a in &mut adoption.engines {
            let Some(kept) = &a.kept else { continue };
            a.found.process = if kept.process { Process::Lives } else { Process::None };
            let is_sleeping = kept.tier != Tier::Awake;
            a.found.sleeping = SleepingAnswer::Says { is_sleeping };
            a.found.bytes = None;
        }
    };
    Planted { event, ..Planted::default() }
}

/// What was reserved is forgotten with the agent that reserved it.
pub(crate) fn reservation_forgotten() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        let Event::Adopted(adoption) = event else { return };
        adoption.engines.iter_mut().filter_map(|a| a.kept.as_mut()).for_each(|k| k.reserved = 0);
    };
    Planted { event, ..Planted::default() }
}

/// What was under way is forgotten.
pub(crate) fn work_forgotten() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        let Event::Adopted(adoption) = event else { return };
        adoption.work = None;
    };
    Planted { event, ..Planted::default() }
}

/// That nobody waits any more is never heard.
pub(crate) fn deaf_to_hang_ups() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        if let Event::Demand { engine, demand: Demand { held: 0, .. } } = *event {
            *event = Event::Uses(vec![Use { engine, in_flight: 0, at: NOW }]);
        }
    };
    Planted { event, ..Planted::default() }
}

/// Nothing is done of its own accord: a cycle run is said to have the engines to itself, for ever.
pub(crate) fn blind_to_surplus() -> Planted {
    Planted { node: |node| node.cycle = true, ..Planted::default() }
}

/// That requests are held is never heard.
pub(crate) fn deaf_to_requests() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        if let Event::Demand { demand, .. } = event {
            *demand = Demand::default();
        }
    };
    Planted { event, ..Planted::default() }
}

/// That engines are configured otherwise is never heard.
pub(crate) fn deaf_to_the_file() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        let Event::Revised(revision) = event else { return };
        let same = |change: &mut Change| {
            if let Change::Settings(_) = change {
                *change = Change::Same;
            }
        };
        revision.engines.iter_mut().for_each(same);
    };
    Planted { event, ..Planted::default() }
}

/// That engines are not configured any more is never heard.
pub(crate) fn deaf_to_removals() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        let Event::Revised(revision) = event else { return };
        let removed = |change: &&mut Change| matches!(change, Change::Retired);
        revision.engines.iter_mut().filter(removed).for_each(|change| *change = Change::Same);
    };
    Planted { event, ..Planted::default() }
}

/// A file is held against what was configured last, and not against what a process runs with.
pub(crate) fn judged_by_the_last_file() -> Planted {
    let event = |sys: &Sys, event: &mut Event| {
        let Event::Revised(revision) = event else { return };
        for (change, e) in revision.engines.iter_mut().zip(&sys.node.engines) {
            if let (Change::Same, Some(former)) = (&*change, &e.revised) {
                *change = Change::Settings(former.clone());
            }
        }
    };
    Planted { event, ..Planted::default() }
}

/// That requests run is never heard.
pub(crate) fn blind_to_use() -> Planted {
    let event = |_: &Sys, event: &mut Event| match event {
        Event::Uses(uses) => uses.iter_mut().for_each(|u| u.in_flight = 0),
        Event::Surveyed { survey, .. } => survey.running = survey.running.map(|_| 0),
        _ => {}
    };
    Planted { event, ..Planted::default() }
}

/// A server that is held is taken for ours before all is proven.
pub(crate) fn ours_at_once() -> Planted {
    let node = |node: &mut hotbunk_core::state::Node| {
        let held = node.operations.iter().find_map(|op| match (&op.request, &op.current) {
            (Request::Adopt(engine), Some(current)) => {
                matches!(current.step, hotbunk_core::program::Step::WarmUp(_)).then_some(*engine)
            }
            _ => None,
        });
        if let Some(engine) = held {
            node.engine_mut(engine).process = true;
        }
    };
    Planted { node, ..Planted::default() }
}

/// A server that is found where an engine should be is taken for the engine.
pub(crate) fn ours_when_found() -> Planted {
    let event = |sys: &Sys, event: &mut Event| {
        let Event::Adopted(adoption) = event else { return };
        for a in adoption.engines.iter_mut().filter(|a| sys.port_is_taken(usize::from(a.engine.0))) {
            a.found.process = Process::Lives;
            a.found.sleeping = SleepingAnswer::Says { is_sleeping: false };
        }
    };
    Planted { event, ..Planted::default() }
}

/// Whose bytes stay after an end is never heard.
pub(crate) fn deaf_to_strangers() -> Planted {
    let event = |_: &Sys, event: &mut Event| {
        if let Event::Done { result: StepResult::OutOfBounds { shown }, .. } = event {
            shown.iter_mut().for_each(|shown| shown.strangers = None);
        }
    };
    Planted { event, ..Planted::default() }
}
