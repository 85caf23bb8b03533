//! Sizes, durations, instants and tables for people. Unknown is a dash.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hotbunk_api::words::Tier;

/// What stands for a value that is not known.
pub(crate) const UNKNOWN: &str = "–";

/// A duration with as many digits as matter: `42 ms`, `1.59 s`, `2 min 5 s`, `3 h 12 min`, `5 d 2 h`.
pub(crate) fn seconds(s: f64) -> String {
    if !s.is_finite() || s < 0.0 {
        return UNKNOWN.to_owned();
    }
    if s < 0.001 {
        return if s == 0.0 { "0 s".to_owned() } else { format!("{:.2} ms", s * 1e3) };
    }
    if s < 0.0995 {
        return format!("{:.0} ms", s * 1e3);
    }
    if s < 9.995 {
        return format!("{s:.2} s");
    }
    if s < 119.95 {
        return format!("{s:.1} s");
    }
    let whole = s.round();
    let parts = |big: f64, big_unit: &str, small: f64, small_unit: &str| {
        format!("{:.0} {big_unit} {:.0} {small_unit}", (whole / big).floor(), ((whole % big) / small).floor())
    };
    if whole < 7_200.0 {
        parts(60.0, "min", 1.0, "s")
    } else if whole < 172_800.0 {
        parts(3_600.0, "h", 60.0, "min")
    } else {
        parts(86_400.0, "d", 3_600.0, "h")
    }
}

/// The same for what may not be known.
pub(crate) fn maybe_seconds(s: Option<f64>) -> String {
    s.map_or_else(|| UNKNOWN.to_owned(), seconds)
}

/// A size in binary units: `27.98 GiB`, `597 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = n as f64;
    const KIB: f64 = 1024.0;
    if value >= KIB * KIB * KIB {
        format!("{:.2} GiB", value / (KIB * KIB * KIB))
    } else if value >= KIB * KIB {
        format!("{:.0} MiB", value / (KIB * KIB))
    } else if value >= KIB {
        format!("{:.0} KiB", value / KIB)
    } else {
        format!("{n} B")
    }
}

/// The same for what may not be known.
pub(crate) fn maybe_bytes(n: Option<u64>) -> String {
    n.map_or_else(|| UNKNOWN.to_owned(), bytes)
}

/// Anything that may not be known.
pub(crate) fn maybe(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |v| v.to_string())
}

/// A tier as it stands in a sentence: `A is parked`, `A is at level1`.
pub(crate) fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Awake => "awake",
        Tier::Parked => "parked",
        Tier::Level1 => "at level1",
        Tier::Level2 => "at level2",
        Tier::Stopped => "stopped",
    }
}

/// An instant in local time, to the millisecond.
pub(crate) fn instant(epoch_s: f64) -> String {
    format_instant(epoch_s, "%Y-%m-%d %H:%M:%S%.3f")
}

/// An instant in local time, to the second.
pub(crate) fn date(epoch_s: f64) -> String {
    format_instant(epoch_s, "%Y-%m-%d %H:%M:%S")
}

fn format_instant(epoch_s: f64, format: &str) -> String {
    // A millisecond is shown, so rounding to microseconds keeps .9999 from becoming .999.
    let micros = (epoch_s * 1e6).round();
    if !micros.is_finite() || micros.abs() > 1e17 {
        return UNKNOWN.to_owned();
    }
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let timestamp = jiff::Timestamp::from_microsecond(micros as i64);
    timestamp.map_or_else(
        |_| UNKNOWN.to_owned(),
        |t| t.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime(format).to_string(),
    )
}

/// A table without borders, two spaces between columns. `right` are the columns with numbers.
pub(crate) fn table(header: &[&str], right: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let cases = [
            (0.0, "0 s"),
            (0.0004, "0.40 ms"),
            (0.042, "42 ms"),
            (0.1, "0.10 s"),
            (1.594, "1.59 s"),
            (12.34, "12.3 s"),
            (125.4, "2 min 5 s"),
            (11_520.0, "3 h 12 min"),
            (439_200.0, "5 d 2 h"),
            (f64::NAN, UNKNOWN),
            (-1.0, UNKNOWN),
        ];
        for (s, text) in cases {
            assert_eq!(seconds(s), text, "{s}");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(30_045_000_000), "27.98 GiB");
        assert_eq!(bytes(597 * 1024 * 1024), "597 MiB");
        assert_eq!(
            (bytes(2048), bytes(7), maybe_bytes(None)),
            ("2 KiB".into(), "7 B".into(), UNKNOWN.into())
        );
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let text =
            table(&["NAME", "SIZE"], &[1], [vec!["a".into(), "7".into()], vec!["long".into(), "12".into()]]);
        assert_eq!(text, "NAME  SIZE\na        7\nlong    12");
    }
}
