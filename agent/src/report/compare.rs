//! A report beside the reference: how far each median lies from it.
//!
//! A simulated run divides engine times by its speed, so a time is multiplied by the speed before it is compared, and
//! a rate divided. Host memory is multiplied by the scale at which the simulation takes it. The agent's own overhead
//! passes at the wall's speed whatever the engines do: of a handoff's time to first token only the engines' part is
//! multiplied. Only what both reports hold is compared.

use hotbunk_api::report::{Direction, Stat, SwitchReport};

/// What each handoff of the reference took beyond sleep, wake and first token together: its tool's own time, in
/// seconds. Times to first token are compared with the reference less this.
pub const REFERENCE_OVERHEAD_S: f64 = 0.23;

/// What kind of figure is compared; says how it scales and what can be measured of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Seconds.
    Time,
    /// Seconds for one output token.
    TimePerToken,
    /// Tokens per second.
    Rate,
    /// Device memory, GiB.
    DeviceMemory,
    /// Host memory, GiB.
    HostMemory,
    /// Percent.
    Share,
}

/// One figure beside the reference's.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// Where it stands: `models.A.sleep.1.sleep_s`, `switch.directions.A→B.wake_s`, …; of a summary, the median.
    pub path: String,
    /// What kind of figure.
    pub quantity: Quantity,
    /// Ours as it would be on the machine that was simulated: seconds, tokens/s, GiB or percent.
    pub ours_scaled: f64,
    /// The reference's; for a handoff's time to first token less [`REFERENCE_OVERHEAD_S`].
    pub reference: f64,
    /// (ours − reference)/reference, percent.
    pub percent: f64,
    /// Ours as measured, not scaled, in the unit of the quantity.
    pub wall_measured: f64,
}

impl Deviation {
    /// Whether the time measured was long enough to be held against the reference: 50 ms, 2 ms for one token. What is
    /// shorter is mostly the measuring computer's own scheduling.
    pub fn is_binding(&self) -> bool {
        match self.quantity {
            Quantity::Time => self.wall_measured >= 0.050,
            Quantity::TimePerToken => self.wall_measured >= 0.002,
            Quantity::Rate | Quantity::DeviceMemory | Quantity::HostMemory | Quantity::Share => true,
        }
    }
}

/// Every figure that both reports hold, in the order of the report.
pub fn compare(report: &SwitchReport, reference: &SwitchReport) -> Vec<Deviation> {
    let mut list = List {
        speed: report.simulated.as_ref().map_or(1.0, |s| s.speed),
        start_speed: start_speed(report),
        host_scale: report.simulated.as_ref().map_or(1.0, |s| s.host_scale),
        deviations: Vec::new(),
    };
    for (engine, ours) in &report.models {
        let Some(theirs) = reference.models.get(engine) else { continue };
        let at = format!("models.{engine}");
        list.start(format!("{at}.restart_initial"), ours.restart_initial, theirs.restart_initial);
        list.start(format!("{at}.restart_warm"), ours.restart_warm, theirs.restart_warm);
        for (level, ours) in &ours.sleep {
            let Some(theirs) = theirs.sleep.get(level) else { continue };
            let at = format!("{at}.sleep.{level}");
            // The reference's cold sleep is the largest of its five. Where ours were all cold, there is no warm one to
            // hold against its median.
            let count = |stat: Option<Stat>| stat.map_or(0, |s| s.n);
            if count(ours.cold_sleep_s) < count(ours.sleep_s) {
                list.time(format!("{at}.sleep_s"), ours.sleep_s, theirs.sleep_s);
            }
            let cold = (median(ours.cold_sleep_s), theirs.sleep_s.map(|s| s.max));
            list.push(format!("{at}.cold_sleep_s"), Quantity::Time, cold.0, cold.1);
            list.time(format!("{at}.wake_api_s"), ours.wake_api_s, theirs.wake_api_s);
            list.time(format!("{at}.to_first_token_s"), ours.to_first_token_s, theirs.to_first_token_s);
            let residual = (median(ours.residual_gib), median(theirs.residual_gib));
            list.push(format!("{at}.residual_gib"), Quantity::DeviceMemory, residual.0, residual.1);
        }
        for ours in &ours.performance {
            let same = theirs
                .performance
                .iter()
                .find(|p| p.stage == ours.stage && p.concurrency == ours.concurrency);
            let Some(theirs) = same else { continue };
            let at = format!("{at}.performance.{}-{}", ours.stage, ours.concurrency);
            let rates = (median(ours.output_tps), median(theirs.output_tps));
            list.push(format!("{at}.output_tps"), Quantity::Rate, rates.0, rates.1);
            list.time(format!("{at}.ttft_s"), ours.ttft_s, theirs.ttft_s);
            let tpot = (median(ours.tpot_s), median(theirs.tpot_s));
            list.push(format!("{at}.tpot_s"), Quantity::TimePerToken, tpot.0, tpot.1);
        }
    }
    for (direction, ours) in &report.switch.directions {
        let Some(theirs) = reference.switch.directions.get(direction) else { continue };
        let at = format!("switch.directions.{direction}");
        let bare = median(theirs.to_first_token_s).map(|s| s - REFERENCE_OVERHEAD_S);
        let scaled = scaled_to_first_token(ours, list.speed);
        let path = format!("{at}.to_first_token_s");
        list.push_scaled(path, Quantity::Time, median(ours.to_first_token_s), scaled, bare);
        list.time(format!("{at}.sleep_s"), ours.sleep_s, theirs.sleep_s);
        list.time(format!("{at}.wake_s"), ours.wake_s, theirs.wake_s);
    }
    let (ours, theirs) = (&report.memory, &reference.memory);
    let peak = |stat: Option<Stat>| stat.map(|s| s.max);
    let device = (peak(ours.physical_peak_gib), peak(theirs.physical_peak_gib));
    list.push("memory.physical_peak_gib".to_owned(), Quantity::DeviceMemory, device.0, device.1);
    for (engine, peak) in &ours.rss_peak_gib {
        let theirs = theirs.rss_peak_gib.get(engine).copied().flatten();
        list.push(format!("memory.rss_peak_gib.{engine}"), Quantity::HostMemory, *peak, theirs);
    }
    for (engine, share) in &ours.l1_release_fraction {
        let theirs = theirs.l1_release_fraction.get(engine).copied().flatten();
        let path = format!("memory.l1_release_fraction.{engine}");
        list.push(path, Quantity::Share, median(*share), median(theirs));
    }
    list.deviations
}

/// Median time to first token at speed 1, s: the engines' part multiplied, the overhead as it is. Where no engine
/// gives a clock there is no telling them apart, and all is multiplied.
pub(super) fn scaled_to_first_token(direction: &Direction, speed: f64) -> Option<f64> {
    let measured = median(direction.to_first_token_s)?;
    let overhead = median(direction.overhead_s).unwrap_or(0.0);
    Some((measured - overhead) * speed + overhead)
}

/// What the times of starts were divided by.
pub(super) fn start_speed(report: &SwitchReport) -> f64 {
    report.simulated.as_ref().map_or(1.0, |s| s.start_speed.unwrap_or(s.speed))
}

fn median(stat: Option<Stat>) -> Option<f64> {
    stat.map(|s| s.median)
}

struct List {
    speed: f64,
    start_speed: f64,
    host_scale: f64,
    deviations: Vec<Deviation>,
}

impl List {
    fn time(&mut self, path: String, ours: Option<Stat>, theirs: Option<Stat>) {
        self.push(path, Quantity::Time, median(ours), median(theirs));
    }

    fn start(&mut self, path: String, ours: Option<Stat>, theirs: Option<Stat>) {
        let scaled = median(ours).map(|s| s * self.start_speed);
        self.push_scaled(path, Quantity::Time, median(ours), scaled, median(theirs));
    }

    fn push(&mut self, path: String, quantity: Quantity, ours: Option<f64>, theirs: Option<f64>) {
        let factor = match quantity {
            Quantity::Time | Quantity::TimePerToken => self.speed,
            Quantity::Rate => 1.0 / self.speed,
            Quantity::HostMemory => self.host_scale,
            Quantity::DeviceMemory | Quantity::Share => 1.0,
        };
        self.push_scaled(path, quantity, ours, ours.map(|ours| ours * factor), theirs);
    }

    fn push_scaled(
        &mut self,
        path: String,
        quantity: Quantity,
        measured: Option<f64>,
        scaled: Option<f64>,
        theirs: Option<f64>,
    ) {
        let (Some(wall_measured), Some(ours_scaled)) = (measured, scaled) else { return };
        let Some(reference) = theirs.filter(|r| *r != 0.0) else { return };
        let percent = (ours_scaled - reference) / reference * 100.0;
        self.deviations.push(Deviation { path, quantity, ours_scaled, reference, percent, wall_measured });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::reference;
    use hotbunk_api::report::Simulated;

    #[test]
    fn starts_are_compared_at_the_speed_that_they_ran_at() {
        let theirs = reference().expect("it is built in");
        let mut ours = theirs.clone();
        for model in ours.models.values_mut() {
            for stat in [&mut model.restart_initial, &mut model.restart_warm].into_iter().flatten() {
                stat.median /= 20.0;
            }
        }
        let at = |start_speed| Simulated { profile: "l20".into(), speed: 1.0, host_scale: 1.0, start_speed };
        let starts = |ours: &SwitchReport| -> Vec<f64> {
            let all = compare(ours, &theirs);
            all.iter().filter(|d| d.path.contains(".restart_")).map(|d| d.percent.round()).collect()
        };
        ours.simulated = Some(at(Some(20.0)));
        assert_eq!(starts(&ours), [0.0; 4]);
        ours.simulated = Some(at(None));
        assert_eq!(starts(&ours), [-95.0; 4]);
    }
}
