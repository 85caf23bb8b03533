//! The switch report for people: plain text, no colours, for terminals and log files alike.
//!
//! A simulated run's times are shown twice where its speed is not 1: as measured, and multiplied by the speed, which
//! is what stands against the reference. The reference (one NVIDIA L20) is shown beside runs of that machine, real or
//! simulated, and beside no other. A time too short to be held against it carries no deviation but `~`. Overhead is the
//! agent's own time and passes at no other speed than the wall's: it is not multiplied, in a time to first token
//! neither.

use super::compare::{Deviation, REFERENCE_OVERHEAD_S, compare, scaled_to_first_token, start_speed};
use super::reference::reference;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use hotbunk_api::report::{Stat, Status, Switch, SwitchReport};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A line under the header, none between rows: the tables are long.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The report as text, ending with a line break.
pub fn table(report: &SwitchReport) -> String {
    let sheet = Sheet::new(report);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", headline(report));
    section(&mut out, "Restarts, sleeps and wakes", sheet.engines());
    section(&mut out, "Load", sheet.load());
    section(&mut out, "Handoffs", sheet.handoffs(&report.switch));
    if sheet.has_reference && !report.switch.directions.is_empty() {
        let _ = writeln!(
            out,
            " (reference times to first token without the {REFERENCE_OVERHEAD_S} s that its tool took for itself)"
        );
    }
    if let Some(auto) = &report.switch_auto {
        section(&mut out, "Handoffs, auto series", sheet.handoffs_alone(auto));
    }
    section(&mut out, "Memory", sheet.memory());
    let _ = writeln!(out, "\n{}", requests(report));
    verdict(&mut out, report);
    out
}

fn headline(report: &SwitchReport) -> String {
    let mut line = format!("{}, {}", report.runtime, report.gpu);
    if let Some(run) = &report.run {
        line = format!("Plan {}: {line}", run.plan);
    }
    if let Some(s) = &report.simulated {
        line += &format!(
            "\nSimulated with profile {} at speed {}, host memory at 1/{}",
            s.profile, s.speed, s.host_scale
        );
        if let Some(start_speed) = s.start_speed {
            line += &format!(" (starts at speed {start_speed}, and compared at that)");
        }
    }
    line
}

fn section(out: &mut String, title: &str, rows: Option<Table>) {
    if let Some(table) = rows {
        let _ = writeln!(out, "\n{title}\n{}", table.trim_fmt());
    }
}

fn requests(report: &SwitchReport) -> String {
    let r = &report.requests;
    let mut line = format!("Requests: {}/{} ok", r.success, r.executed);
    if let Some(auto) = &report.requests_auto {
        line += &format!(", auto series {}/{} ok", auto.success, auto.executed);
    }
    if let Some(v) = r.verification.as_ref().filter(|v| v.executed > 0) {
        line += &format!(", verification {}/{} ok", v.success, v.executed);
    }
    line
}

fn verdict(out: &mut String, report: &SwitchReport) {
    match report.status {
        Status::Pass => out.push_str("PASS\n"),
        Status::Fail => {
            out.push_str("FAIL\n");
            for f in &report.failures {
                let step = f.step.map_or_else(String::new, |step| format!("step {}, ", step + 1));
                let _ = writeln!(out, "  {step}{}: {} ({})", f.what, f.message, f.code);
            }
        }
    }
}

/// What every section needs.
struct Sheet<'a> {
    report: &'a SwitchReport,
    speed: f64,
    deviations: BTreeMap<String, Deviation>,
    has_reference: bool,
}

impl<'a> Sheet<'a> {
    fn new(report: &'a SwitchReport) -> Self {
        let applies = match &report.simulated {
            Some(simulated) => simulated.profile == "l20",
            None => report.gpu.contains("L20"),
        };
        let reference = applies.then(reference).and_then(Result::ok);
        let found = reference.as_ref().map(|r| compare(report, r)).unwrap_or_default();
        Sheet {
            report,
            speed: report.simulated.as_ref().map_or(1.0, |s| s.speed),
            deviations: found.into_iter().map(|d| (d.path.clone(), d)).collect(),
            has_reference: reference.is_some(),
        }
    }

    fn is_scaled(&self) -> bool {
        self.speed != 1.0
    }

    fn new_table(&self, left: &[&str], middle: &[&str]) -> Table {
        let mut header: Vec<String> = left.iter().chain(middle).map(|s| (*s).to_owned()).collect();
        if self.is_scaled() {
            header.push(format!("× {}", self.speed));
        }
        if self.has_reference {
            header.extend(["reference".to_owned(), "deviation".to_owned()]);
        }
        plain_table(header, left.len())
    }

    /// The columns after the measured ones: scaled, reference, deviation.
    fn beside(&self, path: &str, scaled: Option<f64>) -> Vec<String> {
        let mut cells = Vec::new();
        if self.is_scaled() {
            cells.push(number(scaled));
        }
        if self.has_reference {
            let deviation = self.deviations.get(path);
            cells.push(number(deviation.map(|d| d.reference)));
            cells.push(match deviation {
                Some(d) if d.is_binding() => format!("{:+.1} %", d.percent),
                Some(_) => "~".to_owned(),
                None => String::new(),
            });
        }
        cells
    }

    /// One row of a time: what, n, median, max.
    fn time_row(&self, table: &mut Table, what: [&str; 2], path: &str, stat: Option<Stat>) {
        self.scaled_row(table, what, path, stat, stat.map(|s| s.median * self.speed));
    }

    fn scaled_row(
        &self,
        table: &mut Table,
        what: [&str; 2],
        path: &str,
        stat: Option<Stat>,
        scaled: Option<f64>,
    ) {
        let Some(s) = stat else { return };
        let measured = [s.n.to_string(), number(Some(s.median)), number(Some(s.max))];
        table.add_row(what.map(str::to_owned).into_iter().chain(measured).chain(self.beside(path, scaled)));
    }

    fn engines(&self) -> Option<Table> {
        let mut table = self.new_table(&["engine", "seconds"], &["n", "median", "max"]);
        for (engine, model) in &self.report.models {
            let at = format!("models.{engine}");
            for (what, field, stat) in [
                ("first start to first token", "restart_initial", model.restart_initial),
                ("restart to first token", "restart_warm", model.restart_warm),
            ] {
                let scaled = stat.map(|s| s.median * start_speed(self.report));
                self.scaled_row(&mut table, [engine, what], &format!("{at}.{field}"), stat, scaled);
            }
            let mut row = |what: &str, path: String, stat| {
                self.time_row(&mut table, [engine, what], &path, stat);
            };
            for (level, sleep) in &model.sleep {
                let at = format!("{at}.sleep.{level}");
                let name = if level.len() == 1 { format!("level {level}") } else { level.clone() };
                row(&format!("{name}: sleep"), format!("{at}.sleep_s"), sleep.sleep_s);
                row(&format!("{name}: cold sleep"), format!("{at}.cold_sleep_s"), sleep.cold_sleep_s);
                row(&format!("{name}: wake"), format!("{at}.wake_api_s"), sleep.wake_api_s);
                row(
                    &format!("{name}: wake to first token"),
                    format!("{at}.to_first_token_s"),
                    sleep.to_first_token_s,
                );
            }
        }
        some_rows(table)
    }

    fn load(&self) -> Option<Table> {
        let mut table = self.new_table(&["engine", "stage", "figure"], &["n", "median"]);
        for (engine, model) in &self.report.models {
            for p in &model.performance {
                let at = format!("models.{engine}.performance.{}-{}", p.stage, p.concurrency);
                let stage = format!("{} × {}", p.stage, p.concurrency);
                let mut row = |figure: &str, path: &str, stat: Option<Stat>, scale: f64| {
                    let Some(s) = stat else { return };
                    let cells = [
                        engine.clone(),
                        stage.clone(),
                        figure.to_owned(),
                        s.n.to_string(),
                        number(Some(s.median)),
                    ];
                    let beside = self.beside(&format!("{at}.{path}"), Some(s.median * scale));
                    table.add_row(cells.into_iter().chain(beside));
                };
                row("tokens/s", "output_tps", p.output_tps, 1.0 / self.speed);
                row("first token, s", "ttft_s", p.ttft_s, self.speed);
                row("per token, s", "tpot_s", p.tpot_s, self.speed);
            }
        }
        some_rows(table)
    }

    fn handoffs(&self, switch: &Switch) -> Option<Table> {
        let mut table = self.new_table(&["direction", "seconds"], &["n", "median", "max"]);
        for (name, d) in &switch.directions {
            let path = |field: &str| format!("switch.directions.{name}.{field}");
            let (first_token, scaled) = (d.to_first_token_s, scaled_to_first_token(d, self.speed));
            let what = [name.as_str(), "to first token"];
            self.scaled_row(&mut table, what, &path("to_first_token_s"), first_token, scaled);
            self.time_row(&mut table, [name, "sleep"], &path("sleep_s"), d.sleep_s);
            self.time_row(&mut table, [name, "wake"], &path("wake_s"), d.wake_s);
            self.overhead_row(&mut table, name, d.overhead_s);
        }
        self.overhead_row(&mut table, "all", switch.overhead_s);
        some_rows(table)
    }

    fn overhead_row(&self, table: &mut Table, direction: &str, stat: Option<Stat>) {
        let Some(s) = stat else { return };
        let mut cells = vec![direction.to_owned(), "overhead".to_owned()];
        cells.extend([s.n.to_string(), number(Some(s.median)), number(Some(s.max))]);
        if self.is_scaled() {
            cells.push(String::new());
        }
        if self.has_reference {
            cells.extend([number(Some(REFERENCE_OVERHEAD_S)), String::new()]);
        }
        table.add_row(cells);
    }

    /// A series that the reference has not.
    fn handoffs_alone(&self, switch: &Switch) -> Option<Table> {
        let bare = Sheet {
            report: self.report,
            speed: self.speed,
            deviations: BTreeMap::new(),
            has_reference: false,
        };
        bare.handoffs(switch)
    }

    fn memory(&self) -> Option<Table> {
        let mut header = vec!["figure".to_owned(), "measured".to_owned()];
        if self.has_reference {
            header.extend(["reference".to_owned(), "deviation".to_owned()]);
        }
        let mut table = plain_table(header, 1);
        let mut row = |what: String, path: &str, value: Option<f64>| {
            let Some(value) = value else { return };
            let mut cells = vec![what, number(Some(value))];
            if self.has_reference {
                let deviation = self.deviations.get(path);
                cells.push(number(deviation.map(|d| d.reference)));
                cells.push(deviation.map_or_else(String::new, |d| format!("{:+.1} %", d.percent)));
            }
            table.add_row(cells);
        };
        let memory = &self.report.memory;
        let peak = memory.physical_peak_gib.map(|s| s.max);
        row("device peak, GiB".to_owned(), "memory.physical_peak_gib", peak);
        for (engine, model) in &self.report.models {
            for (level, sleep) in &model.sleep {
                let path = format!("models.{engine}.sleep.{level}.residual_gib");
                let what = format!("device after {engine}'s sleep {level}, GiB");
                row(what, &path, sleep.residual_gib.map(|s| s.median));
            }
        }
        for (engine, share) in &memory.l1_release_fraction {
            let path = format!("memory.l1_release_fraction.{engine}");
            row(format!("released by {engine} at level 1, %"), &path, share.map(|s| s.median));
        }
        for (engine, peak) in &memory.rss_peak_gib {
            // Compared at the scale of the simulation, shown at it as well.
            let scale = self.report.simulated.as_ref().map_or(1.0, |s| s.host_scale);
            let path = format!("memory.rss_peak_gib.{engine}");
            let times = if scale == 1.0 { String::new() } else { format!(" × {scale}") };
            row(format!("host peak of {engine} (RSS{times}), GiB"), &path, peak.map(|p| p * scale));
        }
        some_rows(table)
    }
}

fn plain_table(header: Vec<String>, left_columns: usize) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header);
    for column in table.column_iter_mut().skip(left_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn some_rows(table: Table) -> Option<Table> {
    (!table.is_empty()).then_some(table)
}

/// Four significant digits or so; nothing for the unknown.
fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(v) if v.abs() >= 1000.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 100.0 => format!("{v:.1}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.2}"),
        Some(v) if v.abs() >= 0.1 => format!("{v:.3}"),
        Some(v) => format!("{v:.4}"),
    }
}
