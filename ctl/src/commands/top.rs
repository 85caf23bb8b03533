//! `ctl top`: the gateway as it works, once a second: who runs, who waits and for how long, whose turn is next.
//!
//! On a terminal it takes the whole screen until `q`; elsewhere it writes the same as text, again and again.

use crate::context::Context;
use crate::failure::Failure;
use crate::gateway;
use crate::output::Output;
use crate::progress::{operation_line, run_line};
use crate::words;
use hotbunk_api::error::ExitCode;
use hotbunk_api::gateway::{Eta, GatewayStatus, Maintenance};
use hotbunk_api::status::Status;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = words::duration)]
    interval: f64,
    /// End after so many looks
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u32>,
}

/// More often than this shows nothing new and costs the agent time.
const LEAST: Duration = Duration::from_millis(100);
/// How long the keyboard's thread may notice late that it is over.
const KEYS: Duration = Duration::from_millis(50);

/// What is shown.
struct View {
    node: String,
    gateway: Option<GatewayStatus>,
    maintenance: Option<Maintenance>,
    going_on: Vec<String>,
}

impl From<Status> for View {
    fn from(status: Status) -> Self {
        let mut going_on: Vec<String> =
            status.operation.iter().map(|o| format!("now:   {}", operation_line(o))).collect();
        going_on.extend(status.queue.iter().map(|o| format!("next:  {}", operation_line(o))));
        going_on.extend(status.cycle.iter().map(|run| format!("cycle: {}", run_line(run))));
        View { node: status.node.name, gateway: status.gateway, maintenance: status.maintenance, going_on }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let interval = Duration::try_from_secs_f64(args.interval).unwrap_or(Duration::from_secs(1)).max(LEAST);
    let looks = args.count.unwrap_or(u32::MAX);
    if context.json || !Output::is_terminal() {
        return plain(context, interval, looks).await;
    }
    let client = context.client()?;
    // Before the screen is taken, so that a missing agent is told on it as it was.
    let mut view = View::from(client.status().await?);
    let mut screen = Screen::take()?;
    let mut ticks = tokio::time::interval(interval);
    ticks.tick().await;
    for look in 1.. {
        screen.show(&view)?;
        if look >= looks {
            break;
        }
        tokio::select! {
            _ = ticks.tick() => view = client.status().await?.into(),
            key = screen.keys.recv() => match key {
                Some(Key::Quit) | None => break,
                Some(Key::Redraw) => {}
            },
        }
    }
    Ok(())
}

async fn plain(context: &Context, interval: Duration, looks: u32) -> Result<(), Failure> {
    let client = context.client()?;
    let mut ticks = tokio::time::interval(interval);
    for _ in 0..looks {
        ticks.tick().await;
        if context.out.is_closed() {
            break;
        }
        let status = client.status().await?;
        if context.json {
            context.out.json_line(&status.gateway)?;
        } else {
            context.out.line(format!("{}\n", text(&status.into())))?;
        }
    }
    Ok(())
}

/// The view for a pipe.
fn text(view: &View) -> String {
    let mut parts = Vec::new();
    match &view.gateway {
        Some(shown) => {
            parts.push(format!("{}: {}", view.node, gateway::title(shown)));
            parts.extend(view.maintenance.as_ref().map(gateway::maintenance));
            parts.push(String::new());
            parts.extend(gateway::tables(shown));
        }
        None => parts.push(format!("{}: the agent has no gateway", view.node)),
    }
    if !view.going_on.is_empty() {
        parts.push(String::new());
        parts.extend(view.going_on.iter().cloned());
    }
    parts.join("\n")
}

/// What the keyboard says.
enum Key {
    Quit,
    /// The terminal has another size, or any other key.
    Redraw,
}

/// The terminal, given back when this goes, however that comes about.
struct Screen {
    terminal: ratatui::DefaultTerminal,
    keys: mpsc::UnboundedReceiver<Key>,
    over: Arc<AtomicBool>,
}

impl Screen {
    fn take() -> Result<Self, Failure> {
        let terminal = ratatui::try_init().map_err(|e| broken(&e))?;
        let (pressed, keys) = mpsc::unbounded_channel();
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let key = match event::poll(KEYS) {
                    Ok(false) => continue,
                    Ok(true) => match event::read() {
                        Ok(event) => key(&event),
                        Err(_) => Some(Key::Quit),
                    },
                    Err(_) => Some(Key::Quit),
                };
                if key.is_some_and(|key| pressed.send(key).is_err()) {
                    return;
                }
            }
        });
        Ok(Screen { terminal, keys, over })
    }

    fn show(&mut self, view: &View) -> Result<(), Failure> {
        self.terminal.draw(|frame| draw(frame, view)).map(|_| ()).map_err(|e| broken(&e))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        ratatui::restore();
    }
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Failed, "output", format!("the terminal cannot be used: {error}"))
        .help("`ctl top | cat` writes plain text")
}

fn key(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(key) if key.kind == KeyEventKind::Press => {
            // In raw mode Ctrl-C is a key like others.
            let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || interrupt;
            Some(if quit { Key::Quit } else { Key::Redraw })
        }
        _ => None,
    }
}

fn draw(frame: &mut Frame<'_>, view: &View) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(shown) = &view.gateway else {
        let text = format!("{}: the agent has no gateway (q quits)", view.node);
        return frame.render_widget(Paragraph::new(text), frame.area());
    };
    let tenants = if shown.tenants.len() > 1 { shown.tenants.len() + 2 } else { 0 };
    let height = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
    let [title, pause, lines, people, going_on, rest] = Layout::vertical([
        height(1),
        height(usize::from(view.maintenance.is_some())),
        height(shown.lines.len() + 3),
        height(tenants),
        height(view.going_on.len()),
        Constraint::Fill(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::styled(format!("{}: {}", view.node, gateway::title(shown)), bold), title);
    if let Some(paused) = &view.maintenance {
        frame
            .render_widget(Line::styled(gateway::maintenance(paused), Style::new().fg(Color::Yellow)), pause);
    }
    let rows = shown.lines.iter().map(|line| {
        let colour = match (line.open, line.held, &line.eta) {
            (_, _, Eta::Never { .. }) => Color::Red,
            (true, ..) => Color::Green,
            (false, 0, _) => Color::Reset,
            (false, ..) => Color::Yellow,
        };
        cells(gateway::line_row(shown, line), &gateway::LINES_RIGHT).style(Style::new().fg(colour))
    });
    let [engine, gate, running, held, oldest, ready, turn] = [12, 7, 9, 6, 10, 10, 0].map(Constraint::Min);
    let widths = [engine, gate, running, held, oldest, ready, turn];
    let header = |names: &[&str], right: &[usize]| {
        cells(names.iter().map(|name| (*name).to_owned()).collect(), right).style(bold).top_margin(1)
    };
    let table = Table::new(rows, widths.map(fixed)).header(header(&gateway::LINES, &gateway::LINES_RIGHT));
    frame.render_widget(table, lines);
    if tenants > 0 {
        let rows = shown.tenants.iter().map(|t| cells(gateway::tenant_row(t), &gateway::TENANTS_RIGHT));
        let widths =
            [Constraint::Length(20), Constraint::Length(9), Constraint::Length(6), Constraint::Length(14)];
        let head = cells(gateway::TENANTS.iter().map(|n| (*n).to_owned()).collect(), &gateway::TENANTS_RIGHT);
        frame.render_widget(Table::new(rows, widths).header(head.style(bold)), people);
    }
    let now: Vec<Line<'_>> = view.going_on.iter().map(|line| Line::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(now), going_on);
    let [_, foot] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(rest);
    frame.render_widget(Line::styled("q quits", Style::new().add_modifier(Modifier::DIM)), foot);
}

/// The last column takes what is left.
fn fixed(width: Constraint) -> Constraint {
    match width {
        Constraint::Min(0) => Constraint::Fill(1),
        Constraint::Min(n) => Constraint::Length(n),
        other => other,
    }
}

fn cells(texts: Vec<String>, right: &[usize]) -> Row<'static> {
    let cell = |(at, text): (usize, String)| {
        let line = Line::raw(text);
        Cell::from(if right.contains(&at) { line.right_aligned() } else { line })
    };
    Row::new(texts.into_iter().enumerate().map(cell).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotbunk_api::gateway::{LineStatus, MaintenanceStage, TenantStatus, Turn};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let line = |engine: &str, open: bool, in_flight: u32, held: u32, eta: Eta| LineStatus {
            engine: engine.to_owned(),
            open,
            in_flight,
            max_in_flight: (engine == "A").then_some(16),
            held,
            oldest_s: (held > 0).then_some(1.25),
            eta,
            used_at: None,
        };
        let tenant = |name: &str, in_flight, held, switch_s| TenantStatus {
            name: name.to_owned(),
            in_flight,
            held,
            switch_s,
        };
        View {
            node: "node-7".to_owned(),
            gateway: Some(GatewayStatus {
                listen: Some("127.0.0.1:8000".to_owned()),
                held_bytes: 3 << 20,
                held_bytes_limit: 1 << 30,
                lines: vec![
                    line("A", true, 12, 0, Eta::Serving),
                    line("B", false, 0, 7, Eta::In { s: 2.4 }),
                    line("llama-8b", false, 0, 1, Eta::In { s: 14.0 }),
                    line("C", false, 0, 0, Eta::Never { reason: "C has failed (exit code 1)".to_owned() }),
                ],
                turns: vec![
                    Turn { engine: "llama-8b".to_owned(), turn_s: 0.0, latest_s: -0.5 },
                    Turn { engine: "B".to_owned(), turn_s: 1.5, latest_s: 57.0 },
                ],
                tenants: vec![tenant("default", 2, 1, 0.0), tenant("research", 10, 7, 93.5)],
            }),
            maintenance: None,
            going_on: vec!["now:   switch A → B: wake on B (step 2 of 5), 0.31 s to go".to_owned()],
        }
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen() {
        insta::assert_snapshot!(drawn(&view(), 90, 20));
    }

    #[test]
    fn the_text() {
        insta::assert_snapshot!(text(&view()));
    }

    #[test]
    fn maintenance_is_shown_and_a_gateway_that_is_off() {
        let mut view = view();
        view.maintenance =
            Some(Maintenance { for_s: 125.0, stage: MaintenanceStage::Lasts, served: vec!["A".to_owned()] });
        if let Some(gateway) = &mut view.gateway {
            gateway.listen = None;
            gateway.tenants.truncate(1);
        }
        insta::assert_snapshot!(drawn(&view, 90, 14));
    }

    #[test]
    fn no_size_breaks_it() {
        for (width, height) in [(1, 1), (5, 40), (200, 2), (40, 8)] {
            drawn(&view(), width, height);
            drawn(&View { gateway: None, ..view() }, width, height);
        }
    }

    #[test]
    fn keys_that_end_it() {
        let press = |code, modifiers| Event::Key(event::KeyEvent::new(code, modifiers));
        let quits = |event: &Event| matches!(key(event), Some(Key::Quit));
        assert!(quits(&press(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(quits(&press(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!quits(&press(KeyCode::Char('c'), KeyModifiers::NONE)));
    }
}
