//! Cycles that run by themselves, by the clock on the wall.

use crate::config::cycle_plan::{CyclePlan, Options};
use crate::config::{PlanRef, Schedule};
use crate::cycle::{By, Cycles};
use crate::events::{Context, Incident};
use crate::switcher::Handle;
use hotbunk_api::cycle::PlanSource;
use jiff::{SignedDuration, ZonedDateTime};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// One task for each schedule. Clones are the same; with the last one they end.
#[derive(Debug, Clone)]
pub struct Schedules {
    cycles: Cycles,
    switcher: Handle,
    tasks: Arc<Mutex<Vec<Task>>>,
}

#[derive(Debug)]
struct Task {
    schedule: Schedule,
    task: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        // A run that it has begun goes on: it is a task of its own.
        self.task.abort();
    }
}

impl Schedules {
    /// None yet.
    pub fn new(cycles: Cycles, switcher: Handle) -> Self {
        Schedules { cycles, switcher, tasks: Arc::default() }
    }

    /// These, and no others. One that is the same as before goes on waiting.
    pub fn set(&self, schedules: &[Schedule]) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = |schedule| tokio::spawn(keep(schedule, self.cycles.clone(), self.switcher.clone()));
        keep_those(&mut tasks, schedules, begin);
    }

    /// None any more.
    pub fn end(&self) {
        self.set(&[]);
    }
}

fn keep_those(tasks: &mut Vec<Task>, schedules: &[Schedule], begin: impl Fn(Schedule) -> JoinHandle<()>) {
    tasks.retain(|task| schedules.contains(&task.schedule));
    for schedule in schedules {
        if !tasks.iter().any(|task| task.schedule == *schedule) {
            tasks.push(Task { schedule: schedule.clone(), task: begin(schedule.clone()) });
        }
    }
}

async fn keep(schedule: Schedule, cycles: Cycles, switcher: Handle) {
    let mut clock = Clock { expected: None, last: ZonedDateTime::now() };
    loop {
        let due = match clock.look(|after| schedule.next_after(after), ZonedDateTime::now()) {
            Look::Never => {
                tracing::warn!(schedule = schedule.name, "its cron expression never comes true again");
                return;
            }
            Look::Wait(wait) => {
                tokio::time::sleep(wait).await;
                continue;
            }
            Look::Due => begin(&schedule, &cycles, &switcher).await,
            Look::Missed(at) => Err(format!("the clock was set past its time, {at}")),
        };
        if let Err(reason) = due {
            let incident = Incident::CycleSkipped { plan: schedule.name.clone(), reason };
            drop(cycles.recorder().record_one(&Context::none(), incident).await);
        }
    }
}

/// A clock that is set meanwhile is noticed so soon; a timer that is later than this slept through it.
const LOOK: SignedDuration = SignedDuration::from_secs(60);

/// What is to be done now.
#[derive(Debug, PartialEq)]
enum Look {
    /// It will not come again.
    Never,
    /// Nothing yet.
    Wait(Duration),
    /// It is time.
    Due,
    /// It was time while nobody could look: the clock was set forward, or the machine slept.
    Missed(ZonedDateTime),
}

/// One schedule's view of the clock on the wall, which may be set at any moment.
#[derive(Debug)]
struct Clock {
    /// When it is due next, as was worked out at the last look.
    expected: Option<ZonedDateTime>,
    /// The last time that it was due: timers may fire a moment early, and no time of day comes twice for that.
    last: ZonedDateTime,
}

impl Clock {
    /// Looks at the clock. `next_after` is the schedule's.
    fn look(
        &mut self,
        next_after: impl Fn(&ZonedDateTime) -> Option<ZonedDateTime>,
        now: ZonedDateTime,
    ) -> Look {
        if let Some(expected) = self.expected.take_if(|at| *at <= now) {
            let late = now.timestamp().duration_since(expected.timestamp());
            self.last = expected.clone();
            // Looked at twice as often as this, so it is not the timer that was late.
            return if late < LOOK * 2 { Look::Due } else { Look::Missed(expected) };
        }
        // Set back by more than a timer's moment: what was due in a time that is to come again is no measure.
        if self.last.timestamp().duration_since(now.timestamp()) > LOOK {
            self.last = now.clone();
        }
        let Some(next) = next_after(if now > self.last { &now } else { &self.last }) else {
            return Look::Never;
        };
        let wait = next.timestamp().duration_since(now.timestamp()).min(LOOK);
        self.expected = Some(next);
        Look::Wait(Duration::try_from(wait).unwrap_or_default())
    }
}

async fn begin(schedule: &Schedule, cycles: &Cycles, switcher: &Handle) -> Result<(), String> {
    if schedule.unless_serving {
        cycles.in_flight(switcher).await?;
    }
    let options = Options::default();
    let (plan, steps) = match &schedule.plan {
        PlanRef::BuiltIn(name) => {
            let source = PlanSource::Named { name: name.clone() };
            cycles.read(&source, &options).map_err(|e| e.message)?
        }
        PlanRef::File(path) => {
            let path = path.display().to_string();
            let (plan, _) = CyclePlan::open(&path).map_err(|d| d.to_string())?;
            cycles.expand(plan, &options).map_err(|e| e.message)?
        }
    };
    let id = format!("{}-{}", schedule.name, uuid::Uuid::now_v7().simple());
    cycles.begin(id, plan, steps, By::Schedule).map(drop).map_err(|e| e.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_still_configured_goes_on_waiting_and_nothing_else_does() {
        let schedule = |name: &str, cron: &str| Schedule {
            name: name.to_owned(),
            cron: cron.to_owned(),
            plan: PlanRef::BuiltIn("quick".to_owned()),
            unless_serving: true,
        };
        let begin = |_| tokio::spawn(std::future::pending());
        let (a, b) = (schedule("a", "0 1 * * *"), schedule("b", "0 2 * * *"));
        let mut tasks = Vec::new();
        keep_those(&mut tasks, &[a.clone(), b.clone()], begin);
        let (of_a, of_b) = (tasks[0].task.id(), tasks[1].task.abort_handle());
        // One goes on, one is another one now.
        keep_those(&mut tasks, &[schedule("b", "0 3 * * *"), a], begin);
        let all: Vec<_> = tasks.iter().map(|task| (task.schedule.name.as_str(), task.task.id())).collect();
        assert_eq!(all.len(), 2);
        assert!(all.contains(&("a", of_a)) && !all.contains(&("b", of_b.id())), "{all:?}");
        while !of_b.is_finished() {
            tokio::task::yield_now().await;
        }
        keep_those(&mut tasks, &[], begin);
        assert!(tasks.is_empty());
    }

    /// 2026-11-30 at an hour and minute.
    fn at(hour: i8, minute: i8, second: i8) -> ZonedDateTime {
        jiff::civil::date(2026, 11, 30).at(hour, minute, second, 0).in_tz("UTC").expect("a time")
    }

    /// Due at every full hour.
    fn hourly(after: &ZonedDateTime) -> Option<ZonedDateTime> {
        let hour = after.with().minute(0).second(0).subsec_nanosecond(0).build().ok()?;
        hour.checked_add(SignedDuration::from_hours(1)).ok()
    }

    /// Looks at these times; what is not waiting.
    fn looks(clock: &mut Clock, times: &[ZonedDateTime]) -> Vec<Look> {
        let all = times.iter().map(|now| clock.look(hourly, now.clone()));
        all.filter(|look| !matches!(look, Look::Wait(_))).collect()
    }

    fn clock() -> Clock {
        Clock { expected: None, last: at(1, 59, 0) }
    }

    #[test]
    fn it_is_due_once_even_where_the_timer_is_early_or_late() {
        let times = [at(1, 59, 30), at(1, 59, 59), at(2, 0, 0), at(2, 0, 1), at(2, 0, 1), at(2, 59, 59)];
        assert_eq!(looks(&mut clock(), &times), [Look::Due]);
        // A moment early: the look after it comes at the same minute once more.
        assert_eq!(looks(&mut clock(), &[at(1, 59, 30), at(2, 1, 0), at(2, 1, 1)]), [Look::Due]);
    }

    #[test]
    fn what_a_clock_set_forward_has_jumped_over_is_said_and_not_made_up_for() {
        let times = [at(1, 30, 0), at(6, 30, 0), at(6, 30, 1), at(7, 0, 0)];
        assert_eq!(looks(&mut clock(), &times), [Look::Missed(at(2, 0, 0)), Look::Due]);
    }

    #[test]
    fn a_clock_set_back_by_hours_does_not_stop_it_for_hours() {
        let mut clock = clock();
        assert_eq!(looks(&mut clock, &[at(1, 59, 30), at(2, 0, 0)]), [Look::Due]);
        // Back to 21:30 of the day before, as where it had been wrong until now.
        let yesterday =
            |hour, minute| at(hour, minute, 0).checked_sub(SignedDuration::from_hours(24)).expect("a time");
        let times = [yesterday(21, 30), yesterday(21, 59), yesterday(22, 0)];
        assert_eq!(looks(&mut clock, &times), [Look::Due]);
        // By a second only: the same full hour is not met twice.
        let mut clock = Clock { expected: None, last: at(2, 0, 0) };
        assert_eq!(looks(&mut clock, &[at(1, 59, 59), at(2, 0, 0), at(2, 0, 1)]), []);
    }

    #[test]
    fn the_clock_is_looked_at_every_minute_at_least() {
        let mut clock = clock();
        assert_eq!(clock.look(hourly, at(2, 10, 0)), Look::Wait(Duration::from_secs(60)));
        assert_eq!(clock.look(|_| None, at(2, 10, 0)), Look::Never);
    }
}
