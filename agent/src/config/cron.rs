//! When a schedule is due: five-field cron expressions on the node's local time.
//!
//! croner searches over its own civil time; [`Local`] lends it jiff's calendar and time zones. A time that the clock
//! skips when it is set forward is made up for right after the gap, one that comes twice is met once.

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::AmbiguousOffset;
use jiff::{SignedDuration, Timestamp, ZonedDateTime};

use super::checked::Schedule;

impl Schedule {
    /// When it is due next, strictly after `now`, in `now`'s time zone. `None` if never.
    pub fn next_after(&self, now: &ZonedDateTime) -> Option<ZonedDateTime> {
        next_after(&parse(&self.cron).ok()?, now)
    }
}

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// It does not parse.
    #[error("this is no cron expression: {0}")]
    Syntax(String),
    /// It parses, and names a day that does not exist.
    #[error("this never comes")]
    Never,
}

/// Parses an expression and makes sure that it comes at all.
pub(super) fn check(text: &str) -> Result<(), Error> {
    let cron =
        parse(text).map_err(|error| Error::Syntax(error.to_string().trim_end_matches('.').to_owned()))?;
    let start = Timestamp::UNIX_EPOCH.to_zoned_datetime(jiff::tz::TimeZone::UTC);
    next_after(&cron, &start).map(|_| ()).ok_or(Error::Never)
}

fn parse(text: &str) -> Result<Cron, CronError> {
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build().parse(text)
}

fn next_after(cron: &Cron, now: &ZonedDateTime) -> Option<ZonedDateTime> {
    cron.find_next_occurrence(&Local(now.clone()), false).ok().map(|Local(next)| next)
}

/// jiff's local time as croner sees it.
#[derive(Clone)]
struct Local(ZonedDateTime);

/// croner's civil time as jiff's; fails outside jiff's years.
fn to_jiff(civil: CivilDateTime) -> Result<DateTime, CronError> {
    let part = |value: u32| i8::try_from(value).map_err(|_| CronError::InvalidDate);
    let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?;
    let (month, day) = (part(civil.month())?, part(civil.day())?);
    let (hour, minute, second) = (part(civil.hour())?, part(civil.minute())?, part(civil.second())?);
    DateTime::new(year, month, day, hour, minute, second, 0).map_err(|_| CronError::InvalidDate)
}

impl CronDateTime for Local {
    fn to_civil(&self) -> CivilDateTime {
        let unsigned = |value: i8| value.unsigned_abs().into();
        let at = &self.0;
        CivilDateTime::from_ymd_hms_opt(
            at.year().into(),
            unsigned(at.month()),
            unsigned(at.day()),
            unsigned(at.hour()),
            unsigned(at.minute()),
            unsigned(at.second()),
        )
        // jiff's parts are always those of a real instant, so this stands for nothing.
        .unwrap_or(CivilDateTime::new(
            CivilDate::from_parts_unchecked(1970, 1, 1),
            CivilTime::from_parts_unchecked(0, 0, 0),
        ))
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.0.weekday().to_sunday_zero_offset().unsigned_abs().into())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let ambiguous = self.0.time_zone().to_ambiguous_zoned_datetime(to_jiff(civil)?);
        let resolved =
            |zoned: Result<ZonedDateTime, jiff::Error>| zoned.map(Local).map_err(|_| CronError::InvalidTime);
        Ok(match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => Resolution::Single(resolved(ambiguous.unambiguous())?),
            AmbiguousOffset::Fold { .. } => {
                Resolution::Ambiguous(resolved(ambiguous.clone().earlier())?, resolved(ambiguous.later())?)
            }
            AmbiguousOffset::Gap { .. } => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Local)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.timestamp().cmp(&other.0.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn at(text: &str, zone: &TimeZone) -> ZonedDateTime {
        zone.to_zoned_datetime(text.parse::<DateTime>().unwrap()).unwrap()
    }

    fn next(cron: &str, from: &ZonedDateTime) -> String {
        next_after(&parse(cron).unwrap(), from)
            .map_or_else(|| "never".to_owned(), |next| next.datetime().to_string())
    }

    #[test]
    fn the_next_night_is_found() {
        let utc = TimeZone::UTC;
        assert_eq!(next("30 3 * * *", &at("2026-11-30T03:29:59", &utc)), "2026-11-30T03:30:00");
        assert_eq!(
            next("30 3 * * *", &at("2026-11-30T03:30:00", &utc)),
            "2026-12-01T03:30:00",
            "strictly after"
        );
        assert_eq!(next("0 0 29 2 *", &at("2026-11-30T00:00:00", &utc)), "2028-02-29T00:00:00");
        assert_eq!(next("0 4 * * MON", &at("2026-11-30T12:00:00", &utc)), "2026-12-07T04:00:00");
    }

    #[test]
    fn clocks_that_are_set_are_no_trouble() {
        // Central Europe by rule, so that no database of time zones is needed.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        // 02:30 does not exist on 29 March 2026, and comes twice on 25 October.
        assert_eq!(next("30 2 * * *", &at("2026-03-28T12:00:00", &zone)), "2026-03-29T03:00:00");
        let first = next_after(&parse("30 2 * * *").unwrap(), &at("2026-10-25T00:00:00", &zone)).unwrap();
        let second = next_after(&parse("30 2 * * *").unwrap(), &first).unwrap();
        assert_eq!(second.datetime().to_string(), "2026-10-26T02:30:00");
    }

    #[test]
    fn what_never_comes_is_refused() {
        assert_eq!(check("0 0 30 2 *"), Err(Error::Never));
        for wrong in ["", "* * *", "61 * * * *", "* * * * * *", "@yesterday", "0 0 * * FOO"] {
            assert!(matches!(check(wrong), Err(Error::Syntax(_))), "{wrong}");
        }
        assert_eq!(check("@daily"), Ok(()));
    }
}
