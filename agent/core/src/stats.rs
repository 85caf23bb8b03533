//! Statistics of the reports: exact, small, and with no clock of their own.
//!
//! Durations stay integer nanoseconds ([`Duration`]) until the very end: they are sorted and ranked as integers and
//! become `f64` seconds once, in the result. Two rules for quantiles exist because the two reports use different ones:
//!
//! | report | rule | function |
//! |---|---|---|
//! | switch report | median: mean of the two middle values for even n; p95: nearest rank, the ⌈0.95·n⌉-th smallest | [`Stat`] |
//! | load report | linear interpolation between closest ranks (type 7, numpy's default) | [`quantile_type7`] |
//!
//! Of nothing there is no statistic: n = 0 gives `None`, never a row of zeros.

use crate::time::Moment;
use std::time::Duration;

/// Nanoseconds in a second.
const NANOS_PER_S: f64 = 1e9;

/// Summary of a small sample. The unit is that of the values: seconds where it was made from durations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stat {
    /// How many values.
    pub n: usize,
    /// Middle value; mean of the two middle ones for even n.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// The ⌈0.95·n⌉-th smallest value (nearest rank).
    pub p95: f64,
}

impl Stat {
    /// Summary of durations, in seconds; `None` of an empty sample.
    pub fn of_durations(values: &[Duration]) -> Option<Stat> {
        let mut nanos: Vec<u128> = values.iter().map(Duration::as_nanos).collect();
        nanos.sort_unstable();
        let n = nanos.len();
        let (low, high) = middle(&nanos)?;
        Some(Stat {
            n,
            // Added as integers, halved in floating point: the half nanosecond of an odd sum is kept.
            median: (low + high) as f64 / 2.0 / NANOS_PER_S,
            min: *nanos.first()? as f64 / NANOS_PER_S,
            max: *nanos.last()? as f64 / NANOS_PER_S,
            p95: *nanos.get(p95_index(n))? as f64 / NANOS_PER_S,
        })
    }

    /// Summary of plain numbers (GiB, percent, tokens per second); `None` of an empty sample.
    ///
    /// A value that is not finite is no measurement and is left out, so `n` tells how many were.
    pub fn of_values(values: &[f64]) -> Option<Stat> {
        let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        finite.sort_unstable_by(f64::total_cmp);
        let n = finite.len();
        let (low, high) = middle(&finite)?;
        Some(Stat {
            n,
            // Equal middles are returned as they are; halves are added so that two huge values cannot overflow.
            median: if low == high { low } else { low / 2.0 + high / 2.0 },
            min: *finite.first()?,
            max: *finite.last()?,
            p95: *finite.get(p95_index(n))?,
        })
    }
}

/// The two middle values of a sorted sample (twice the same for odd n).
fn middle<T: Copy>(sorted: &[T]) -> Option<(T, T)> {
    let n = sorted.len();
    let high = *sorted.get(n / 2)?;
    let low = if n.is_multiple_of(2) { *sorted.get(n / 2 - 1)? } else { high };
    Some((low, high))
}

/// Index of the ⌈0.95·n⌉-th smallest of `n` values, in integers: 0.95 has no exact binary form.
fn p95_index(n: usize) -> usize {
    (n * 95).div_ceil(100).saturating_sub(1)
}

/// Quantile `q` (0…1, clamped) of durations by linear interpolation (type 7), in seconds; `None` of an empty sample
/// or where `q` is not a number.
pub fn quantile_type7(values: &[Duration], q: f64) -> Option<f64> {
    if q.is_nan() {
        return None;
    }
    let mut nanos: Vec<u128> = values.iter().map(Duration::as_nanos).collect();
    nanos.sort_unstable();
    let last = nanos.len().checked_sub(1)?;
    let position = last as f64 * q.clamp(0.0, 1.0);
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    let (low, high) = (nanos[below] as f64, nanos[above] as f64);
    Some((low + (position - below as f64) * (high - low)) / NANOS_PER_S)
}

/// How long at least one of `intervals` (begin, end) was under way between `from` and `to`.
///
/// Intervals may overlap, touch, lie outside or come in any order; one that ends before it begins counts nothing.
pub fn union_of_intervals(intervals: &[(Moment, Moment)], from: Moment, to: Moment) -> Duration {
    let mut clipped: Vec<(u64, u64)> = intervals
        .iter()
        .map(|(began, ended)| (began.0.max(from.0), ended.0.min(to.0)))
        .filter(|(began, ended)| began < ended)
        .collect();
    clipped.sort_unstable();
    let mut covered = 0;
    let mut reached = 0;
    for (began, ended) in clipped {
        covered += ended.saturating_sub(began.max(reached));
        reached = reached.max(ended);
    }
    Duration::from_nanos(covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(values: &[u64]) -> Vec<Duration> {
        values.iter().map(|s| Duration::from_secs(*s)).collect()
    }

    #[test]
    fn nothing_has_no_statistic() {
        assert_eq!(Stat::of_durations(&[]), None);
        assert_eq!(Stat::of_values(&[]), None);
        assert_eq!(Stat::of_values(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(quantile_type7(&[], 0.5), None);
        assert_eq!(quantile_type7(&seconds(&[1]), f64::NAN), None);
    }

    #[test]
    fn the_two_rules_of_the_reference() {
        // As its restart_warm of two: the median lies between them, p95 is the larger.
        let two = Stat::of_durations(&seconds(&[2, 1])).expect("two values");
        assert_eq!((two.n, two.median, two.min, two.max, two.p95), (2, 1.5, 1.0, 2.0, 2.0));
        // ⌈0.95·20⌉ = 19: with twenty values the largest is left out, with nineteen it is not.
        let twenty: Vec<u64> = (1..=20).collect();
        assert_eq!(Stat::of_durations(&seconds(&twenty)).map(|s| s.p95), Some(19.0));
        assert_eq!(Stat::of_durations(&seconds(&twenty[..19])).map(|s| s.p95), Some(19.0));
        assert_eq!(Stat::of_durations(&seconds(&twenty[..18])).map(|s| s.p95), Some(18.0));
    }

    #[test]
    fn half_a_nanosecond_is_kept() {
        let s = Stat::of_durations(&[Duration::from_nanos(1), Duration::from_nanos(2)]).expect("two values");
        assert_eq!(s.median, 1.5e-9);
    }

    #[test]
    fn huge_values_do_not_overflow() {
        let s = Stat::of_values(&[f64::MAX, f64::MAX / 2.0]).expect("two values");
        assert!(s.median.is_finite());
        assert!(Stat::of_durations(&[Duration::MAX, Duration::MAX]).is_some());
    }

    #[test]
    fn type_7_as_numpy_has_it() {
        // numpy.quantile([1, 2, 3, 4], [0, .5, .95, 1]) = [1, 2.5, 3.85, 4]
        let values = seconds(&[4, 1, 3, 2]);
        for (q, expected) in [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0), (7.0, 4.0), (-1.0, 1.0)] {
            let got = quantile_type7(&values, q).expect("four values");
            assert!((got - expected).abs() < 1e-12, "q {q}: {got} is not {expected}");
        }
    }

    #[test]
    fn intervals_outside_inverted_or_nested_add_nothing() {
        let m = Moment;
        let all = [(m(0), m(5)), (m(12), m(18)), (m(13), m(14)), (m(30), m(40)), (m(19), m(11))];
        assert_eq!(union_of_intervals(&all, m(10), m(20)), Duration::from_nanos(6));
        assert_eq!(union_of_intervals(&all, m(20), m(10)), Duration::ZERO);
        assert_eq!(union_of_intervals(&[(m(0), m(u64::MAX))], m(3), m(9)), Duration::from_nanos(6));
    }

    proptest! {
        #[test]
        fn stat_equals_brute_force(values in prop::collection::vec(0u64..1_000_000_000_000, 1..200)) {
            let durations: Vec<Duration> = values.iter().copied().map(Duration::from_nanos).collect();
            let s = Stat::of_durations(&durations).expect("not empty");
            let n = values.len();
            // By counting instead of ranking: x is the p95 when it is the smallest value with 95 % at or below it.
            let p95 = values.iter().copied()
                .filter(|x| values.iter().filter(|v| *v <= x).count() * 100 >= 95 * n)
                .min().expect("the largest always qualifies");
            // A value is a middle one when at most half of the others lie strictly to either side.
            let middles: Vec<u64> = values.iter().copied().filter(|x| {
                let below = values.iter().filter(|v| *v < x).count();
                let above = values.iter().filter(|v| *v > x).count();
                below * 2 <= n && above * 2 <= n
            }).collect();
            let low = middles.iter().min().expect("a middle exists");
            let high = middles.iter().max().expect("a middle exists");
            prop_assert_eq!(s.n, n);
            prop_assert_eq!(s.p95, p95 as f64 / 1e9);
            prop_assert_eq!(s.median, (low + high) as f64 / 2.0 / 1e9);
            prop_assert_eq!(s.min, *values.iter().min().expect("not empty") as f64 / 1e9);
            prop_assert_eq!(s.max, *values.iter().max().expect("not empty") as f64 / 1e9);
        }

        #[test]
        fn both_constructors_agree(values in prop::collection::vec(0u32..1_000_000, 1..60)) {
            let durations: Vec<Duration> = values.iter().map(|v| Duration::from_secs(u64::from(*v))).collect();
            let plain: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            prop_assert_eq!(Stat::of_durations(&durations), Stat::of_values(&plain));
        }

        #[test]
        fn type_7_lies_on_the_polygon(values in prop::collection::vec(0u64..10_000, 1..40), q in 0.0f64..=1.0) {
            let durations: Vec<Duration> = values.iter().copied().map(Duration::from_secs).collect();
            let got = quantile_type7(&durations, q).expect("not empty");
            let mut sorted = values.clone();
            sorted.sort_unstable();
            // Walk the polygon through (k/(n−1), x_k) segment by segment.
            let n = sorted.len();
            let expected = if n == 1 { sorted[0] as f64 } else {
                let step = 1.0 / (n - 1) as f64;
                let k = (0..n - 1).find(|k| q <= (*k + 1) as f64 * step).unwrap_or(n - 2);
                let weight = (q - k as f64 * step) / step;
                sorted[k] as f64 * (1.0 - weight) + sorted[k + 1] as f64 * weight
            };
            prop_assert!((got - expected).abs() < 1e-6, "{} is not {}", got, expected);
        }

        #[test]
        fn union_equals_counting_cells(
            intervals in prop::collection::vec((0u64..60, 0u64..60), 0..12), from in 0u64..60, to in 0u64..60,
        ) {
            let moments: Vec<(Moment, Moment)> =
                intervals.iter().map(|(a, b)| (Moment(*a), Moment(*b))).collect();
            let cells = (from..to).filter(|c| intervals.iter().any(|(a, b)| a <= c && c < b)).count();
            prop_assert_eq!(
                union_of_intervals(&moments, Moment(from), Moment(to)),
                Duration::from_nanos(cells as u64)
            );
        }
    }
}
