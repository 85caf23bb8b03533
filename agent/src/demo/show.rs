//! Progress: a bar on a terminal, else one line a step.

use crate::cli::say;
use hotbunk_api::cycle::CycleRun;
use hotbunk_api::words::State;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Follows a run.
#[derive(Debug)]
pub(super) struct Progress {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins to show.
    pub(super) fn follow(mut run: watch::Receiver<CycleRun>) -> Progress {
        let total = u64::from(run.borrow().steps_total);
        let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:32} {pos}/{len} {msg}");
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(total));
        if let (Some(bar), Ok(style)) = (&bar, style) {
            bar.set_style(style);
        }
        let shown = bar.clone();
        let task = tokio::spawn(async move {
            let mut told = 0;
            loop {
                {
                    let run = run.borrow_and_update();
                    match &shown {
                        Some(bar) => {
                            bar.set_position(u64::from(run.steps_done));
                            if let Some(step) = run.steps.iter().find(|s| s.state == State::Running) {
                                bar.set_message(step.sentence.clone());
                            }
                        }
                        None => {
                            for step in run.steps.iter().skip(told).take_while(|s| s.state.is_over()) {
                                told += 1;
                                let took = step.duration_s.unwrap_or(0.0);
                                let verdict =
                                    step.error.as_ref().map_or("ok".to_owned(), |e| e.message.clone());
                                say(&format!("[{told}/{total}] {}: {verdict} ({took:.2} s)", step.sentence));
                            }
                        }
                    }
                }
                if run.changed().await.is_err() {
                    return;
                }
            }
        });
        Progress { task, bar }
    }

    /// Ends it.
    pub(super) fn finish(self) {
        self.task.abort();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
