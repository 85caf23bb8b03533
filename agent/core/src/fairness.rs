//! Whose turn it is: which engine, of those that requests wait for, takes a device next, and when.
//!
//! # The rule
//!
//! For an engine *i* that requests wait for, with its oldest since `o`:
//!
//! ```text
//!   s   predicted switch: until its first token, drain excluded
//!   b   block: how long the device is its own once it begins     b = max(whole switch, s + min_residency)
//!   D   latest start                                             D = o + max_wait − s
//!   p   patience                                                 p = o + max_wait × w(serving) / (w(serving) + w(i))
//!
//!   the order     everybody who waits for the same devices, by D + b
//!   L   the last instant at which that order can still be worked off with nobody late
//!                                                                L = min over i of (D(i) − Σ b of those before i)
//!
//!   turn(i)   nothing has to go for it               at once
//!             what has to go is idle                 when its residency is over
//!             what has to go is busy                 when its residency is over, and p has passed,
//!                                                    or L has, and i is the first of the order
//!   next      of those whose turn has come, the one with the earliest p (then the heavier, then the longer waiting),
//!             unless that would make somebody late who would not be, or later: then the first of the order
//! ```
//!
//! `idle`: no request is with it and none is held for it.
//!
//! # Why
//!
//! *Thrash.* Nobody is put out before its residency is over, so two switches on a device begin at least `switch +
//! residency` apart, whatever is asked: at most `T / (switch + residency) + 1` of them begin in a time `T`.
//!
//! *Starvation.* Let every engine have `max_wait ≥ s + Σ b` over the others that share a device with it ([`feasible`]).
//! Then nobody starts later than D. For as long as the engines before *i* in the order can be worked off before D(i),
//! that holds while the serving one is busy (at L, at the latest, the first begins), it holds when the first begins (its
//! block was counted), and it holds when somebody who is not the first begins (only if it does). It holds when a new one,
//! *j*, comes in: *j* goes behind everybody whose `D + b` is smaller, and is behind or before *i*; in the latter case
//! `D(i) + b(i) ≥ D(j) + b(j) ≥ now + Σ over all of b`, so that even everybody else once, the block under way included,
//! fits before D(i). Ordering by D alone would not do: an engine with a long block that comes in with a slightly earlier D
//! would make one late that has waited for long.
//!
//! *Weights* say how patient one is while another is busy, and who goes first among those that wait; never whether a bound
//! is met.
//!
//! *Drain.* What the outgoing engine's clients were admitted for is not counted in `s`: under the policy `wait` a switch
//! may take up to the drain deadline longer, and is given up then. Counting the deadline would put a model out half a
//! minute early for generations that mostly end within a second. Who needs a hard bound drains by `freeze` or `abort`.
//!
//! *Several devices.* An engine that spans several devices competes on each. Blocks are added up as if they were all on
//! one device, which errs on the early side.

use crate::ids::{DeviceId, EngineId};
use crate::spec::Turn;
use crate::time::Moment;
use std::time::Duration;
use thiserror::Error;

/// What has to go so that an engine can be awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Against {
    /// The last of their residencies ends.
    pub until: Moment,
    /// The greatest of their weights.
    pub weight: u32,
    /// Requests are with one of them, or held for it.
    pub busy: bool,
}

/// One engine that requests wait for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Which.
    pub engine: EngineId,
    /// What it competes for.
    pub devices: Vec<DeviceId>,
    /// Since when its oldest request has been waiting.
    pub oldest: Moment,
    /// Its bounds.
    pub turn: Turn,
    /// Predicted time to its first token, drain excluded.
    pub first_token: Duration,
    /// Predicted time until the whole switch is done, drain excluded.
    pub whole: Duration,
    /// What has to go for it; `None` where there is room beside what is awake.
    pub against: Option<Against>,
    /// Nobody works on the devices that its switch would take.
    pub free: bool,
}

impl Waiting {
    fn block(&self) -> Duration {
        let residency = if self.against.is_some() { self.turn.min_residency } else { Duration::ZERO };
        self.whole.max(self.first_token.saturating_add(residency))
    }

    /// Latest start, in signed nanoseconds: a bound may have been missed before the clock began.
    fn latest(&self) -> i128 {
        at(self.oldest) + long(self.turn.max_wait) - long(self.first_token)
    }

    fn patience_ends(&self) -> Moment {
        let Some(against) = self.against else { return self.oldest };
        let (theirs, own) = (u128::from(against.weight.max(1)), u128::from(self.turn.weight.max(1)));
        let nanos = self.turn.max_wait.as_nanos().saturating_mul(theirs) / (theirs + own);
        Moment(self.oldest.0.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Not before this: the residency of what has to go.
    fn ready(&self) -> Moment {
        self.against.map_or(self.oldest, |a| a.until)
    }

    /// In which order those that wait can all be served in time.
    fn rank(&self) -> impl Ord + use<> {
        let weight = std::cmp::Reverse(self.turn.weight);
        (self.latest() + long(self.block()), weight, self.oldest, self.engine)
    }

    /// In which order they would be served if time pressed nobody.
    fn wish(&self) -> impl Ord + use<> {
        (self.patience_ends(), std::cmp::Reverse(self.turn.weight), self.oldest, self.engine)
    }

    fn competes_with(&self, other: &Waiting) -> bool {
        self.devices.iter().any(|d| other.devices.contains(d))
    }
}

fn at(moment: Moment) -> i128 {
    i128::from(moment.0)
}

fn long(d: Duration) -> i128 {
    i128::try_from(d.as_nanos()).unwrap_or(i128::from(u64::MAX))
}

fn moment(nanos: i128) -> Moment {
    Moment(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

/// An engine's place among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which.
    pub engine: EngineId,
    /// When its turn comes, if nothing changes.
    pub turn: Moment,
    /// When its switch would have to begin so that its oldest request is served within its bound.
    pub latest: Moment,
}

/// Everybody who competes with one, itself included, in the order in which all can be served in time.
fn rivals<'a>(waiting: &'a [Waiting], of: &Waiting) -> Vec<&'a Waiting> {
    let mut rivals: Vec<&Waiting> = waiting.iter().filter(|w| w.competes_with(of)).collect();
    rivals.sort_by_key(|w| w.rank());
    rivals
}

/// When the turn of one of them comes.
fn turn(waiting: &[Waiting], of: &Waiting) -> Moment {
    let ready = of.ready();
    if !of.against.is_some_and(|a| a.busy) {
        return ready;
    }
    let rivals = rivals(waiting, of);
    let mut before = 0i128;
    let mut last = i128::MAX;
    for rival in &rivals {
        last = last.min(rival.latest() - before);
        before += long(rival.block());
    }
    let is_first = rivals.first().is_some_and(|first| first.engine == of.engine);
    let due = if is_first { of.patience_ends().min(moment(last)) } else { of.patience_ends() };
    ready.max(due)
}

/// Whether one of them may begin now without making another late that would not be, or later than it would be.
fn harms_nobody(waiting: &[Waiting], one: &Waiting, now: Moment) -> bool {
    let rivals = rivals(waiting, one);
    let Some(first) = rivals.first() else { return true };
    let first_begins = at(now.max(first.ready()));
    let (mut without, mut with) = (first_begins, first_begins.max(at(now) + long(one.block())));
    for rival in &rivals {
        if rival.engine == one.engine {
            return true;
        }
        if with > rival.latest().max(without) {
            return false;
        }
        without += long(rival.block());
        with += long(rival.block());
    }
    true
}

/// Who begins now, if anybody.
pub fn next(waiting: &[Waiting], now: Moment) -> Option<EngineId> {
    let mut wishes: Vec<&Waiting> = waiting.iter().filter(|w| w.free && turn(waiting, w) <= now).collect();
    wishes.sort_by_key(|w| w.wish());
    wishes.into_iter().find(|w| harms_nobody(waiting, w, now)).map(|w| w.engine)
}

/// Everybody who waits, the one whose turn comes first in front.
pub fn order(waiting: &[Waiting]) -> Vec<Place> {
    let mut sorted: Vec<&Waiting> = waiting.iter().collect();
    sorted.sort_by_key(|w| (turn(waiting, w), w.wish()));
    let place = |w: &Waiting| Place { engine: w.engine, turn: turn(waiting, w), latest: moment(w.latest()) };
    sorted.into_iter().map(place).collect()
}

/// When the switch of one of them will begin if nobody else comes.
pub fn forecast(waiting: &[Waiting], engine: EngineId, now: Moment) -> Moment {
    let Some(one) = waiting.iter().find(|w| w.engine == engine) else { return now };
    let mut rivals: Vec<&Waiting> = waiting.iter().filter(|w| w.competes_with(one)).collect();
    rivals.sort_by_key(|w| (turn(waiting, w).max(now), w.wish()));
    let mut begins = now;
    for rival in rivals {
        begins = begins.max(turn(waiting, rival));
        if rival.engine == engine {
            break;
        }
        begins = begins + rival.block();
    }
    begins
}

/// One model of a configuration, as far as its bounds are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// Configured name.
    pub name: String,
    /// Devices it competes for.
    pub devices: Vec<DeviceId>,
    /// Its bounds.
    pub turn: Turn,
    /// Predicted switch to it, drain excluded.
    pub switch: Duration,
}

/// Bounds that cannot all be met.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{engine}: max_wait is {max_wait:?}, but {} may each take the device before it ({theirs:?} of switches and \
     min_residency), and its own switch takes {own:?}: it must be at least {least:?}, or the others' min_residency \
     shorter", others.join(", ")
)]
pub struct Infeasible {
    /// Whose bound.
    pub engine: String,
    /// It is.
    pub max_wait: Duration,
    /// Who may go first.
    pub others: Vec<String>,
    /// How long they may take altogether.
    pub theirs: Duration,
    /// Its own switch.
    pub own: Duration,
    /// It must be at least.
    pub least: Duration,
}

/// Whether every model's `max_wait` can be met whatever is asked of the others:
///
/// ```text
///   max_wait(i)  ≥  switch(i) + Σ over the others that share a device with it of (switch + min_residency)
/// ```
///
/// `max_awake` by device: where all engines of a device may be awake together nobody waits for anybody. Pinned engines
/// give no turn away, so whoever must wait for one waits for ever; that is for the operator to want, and not counted.
///
/// # Errors
/// The first bound that cannot be met, with what it would have to be.
pub fn feasible(all: &[Contender], max_awake: &[u16]) -> Result<(), Infeasible> {
    let contested = |device: &DeviceId| {
        let there = all.iter().filter(|c| c.devices.contains(device)).count();
        there > usize::from(max_awake.get(usize::from(device.0)).copied().unwrap_or(1).max(1))
    };
    for (index, one) in all.iter().enumerate() {
        let competes = |c: &Contender| c.devices.iter().any(|d| one.devices.contains(d) && contested(d));
        let others: Vec<&Contender> =
            all.iter().enumerate().filter(|(at, c)| *at != index && competes(c)).map(|(_, c)| c).collect();
        let block = |c: &&Contender| c.switch.saturating_add(c.turn.min_residency);
        let theirs = others.iter().map(block).fold(Duration::ZERO, Duration::saturating_add);
        let least = theirs.saturating_add(one.switch);
        if !others.is_empty() && one.turn.max_wait < least {
            return Err(Infeasible {
                engine: one.name.clone(),
                max_wait: one.turn.max_wait,
                others: others.iter().map(|c| c.name.clone()).collect(),
                theirs,
                own: one.switch,
                least,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
