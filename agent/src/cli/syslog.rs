//! Lines as systemd's journal wants them: each begins with its priority, by which `journalctl -p warning` picks it out, and
//! bears no time of its own, since the journal has one.

use std::fmt;
use std::sync::OnceLock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether stderr is the journal: `$JOURNAL_STREAM` names the stream that systemd has connected, by device and inode.
pub(super) fn is_stderr() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        rustix::fs::fstat(std::io::stderr())
            .is_ok_and(|stream| named == format!("{}:{}", stream.st_dev, stream.st_ino))
    })
}

/// Log events with their priority in front.
pub(super) struct Prioritised<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// As syslog numbers them.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// What is said without the log, line by line: a line that is indented, or begins with a number as an excerpt of a file does,
/// goes with the one before.
pub(super) fn prioritised(text: &str) -> String {
    let mut priority = 6;
    let line = |line: &str| {
        let goes_on = line.starts_with(|c: char| c == ' ' || c == '.' || c.is_ascii_digit());
        if line.starts_with("error") {
            priority = 3;
        } else if line.starts_with("warning") {
            priority = 4;
        } else if !goes_on {
            priority = 6;
        }
        format!("<{priority}>{line}\n")
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_s_lines_have_its_priority() {
        let text = "error: port 1 is taken\n  --> a.toml:3:1\n   |\n12 | port = 1\n...\nwarning: odd\n  = help: x\na.toml: 1 error";
        let wanted = "<3>error: port 1 is taken\n<3>  --> a.toml:3:1\n<3>   |\n<3>12 | port = 1\n<3>...\n<4>warning: odd\n\
                      <4>  = help: x\n<6>a.toml: 1 error\n";
        assert_eq!(prioritised(text), wanted);
    }

    #[test]
    fn an_event_s_priority_comes_first() {
        use std::io::Write;
        use std::sync::{Arc, Mutex};
        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<u8>>>);
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).without_time().map_event_format(Prioritised);
        tracing::subscriber::with_default(lines.with_writer(move || writer.clone()).finish(), || {
            tracing::error!(engine = "A", "it crashed");
            tracing::info!("up");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("<3>ERROR") && lines[0].ends_with("it crashed engine=\"A\""), "{text}");
        assert!(lines[1].starts_with("<6> INFO") && lines[1].ends_with("up"), "{text}");
    }
}
