//! A token bucket: so many in a period on the long run, and a burst at once.
//!
//! Integers throughout, so that nothing is lost or gained by rounding however often it is asked: what is in the bucket
//! is counted in units of (one ÷ the period in nanoseconds), and each nanosecond brings `rate` of them.
//!
//! What a request will cost is not always known before. [`Bucket::take`] debits an estimate; [`Bucket::settle`] puts
//! it right by what it did cost, which may leave a debt that later requests wait for.

use crate::time::Moment;
use std::time::Duration;

/// How much in which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// So many, never 0.
    pub amount: u64,
    /// In this time, never zero.
    pub period: Duration,
    /// Most that is there at once, never 0.
    pub burst: u64,
}

impl Rate {
    fn period_ns(self) -> i128 {
        i128::try_from(self.period.as_nanos()).unwrap_or(i128::MAX).max(1)
    }

    fn full(self) -> i128 {
        i128::from(self.burst.max(1)).saturating_mul(self.period_ns())
    }
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    rate: Rate,
    /// Less than 0 is a debt.
    units: i128,
    at: Moment,
}

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate, now: Moment) -> Self {
        Bucket { rate, units: rate.full(), at: now }
    }

    fn refill(&mut self, now: Moment) {
        let passed = i128::try_from(now.since(self.at).as_nanos()).unwrap_or(i128::MAX);
        let came = passed.saturating_mul(i128::from(self.rate.amount.max(1)));
        self.units = self.units.saturating_add(came).min(self.rate.full());
        self.at = self.at.max(now);
    }

    /// Takes an amount, or says how long until it could. More than a burst is let pass when the bucket is full, and
    /// leaves a debt: otherwise it could never pass.
    ///
    /// # Errors
    /// The time until it would be there, if nobody else takes it.
    pub fn take(&mut self, amount: u64, now: Moment) -> Result<(), Duration> {
        self.refill(now);
        let cost = i128::from(amount).saturating_mul(self.rate.period_ns());
        let missing = cost.min(self.rate.full()).saturating_sub(self.units);
        if missing > 0 {
            let rate = i128::from(self.rate.amount.max(1));
            let wait = missing.saturating_add(rate - 1) / rate;
            return Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        self.units = self.units.saturating_sub(cost);
        Ok(())
    }

    /// Puts an estimate right: what was taken too much comes back, what was taken too little is owed.
    pub fn settle(&mut self, estimated: u64, real: u64, now: Moment) {
        self.refill(now);
        let back = (i128::from(estimated) - i128::from(real)).saturating_mul(self.rate.period_ns());
        self.units = self.units.saturating_add(back).min(self.rate.full());
    }

    /// What is there, rounded down; less than 0 is a debt.
    pub fn level(&self) -> i64 {
        i64::try_from(self.units.div_euclid(self.rate.period_ns())).unwrap_or(i64::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_then_the_rate() {
        let rate = Rate { amount: 10, period: SECOND, burst: 3 };
        let mut bucket = Bucket::new(rate, Moment(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(1, Moment(0)), Ok(()));
        }
        assert_eq!(bucket.take(1, Moment(0)), Err(Duration::from_millis(100)));
        let then = Moment(0) + Duration::from_millis(100);
        assert_eq!(bucket.take(1, then), Ok(()));
        assert_eq!(bucket.take(1, then), Err(Duration::from_millis(100)));
    }

    #[test]
    fn more_than_a_burst_passes_once_and_is_owed() {
        let rate = Rate { amount: 60, period: Duration::from_secs(60), burst: 10 };
        let mut bucket = Bucket::new(rate, Moment(0));
        assert_eq!(bucket.take(25, Moment(0)), Ok(()));
        assert_eq!(bucket.level(), -15);
        assert_eq!(bucket.take(1, Moment(0)), Err(16 * SECOND));
    }

    #[test]
    fn an_estimate_is_put_right_both_ways() {
        let rate = Rate { amount: 60, period: Duration::from_secs(60), burst: 100 };
        let mut bucket = Bucket::new(rate, Moment(0));
        assert_eq!(bucket.take(100, Moment(0)), Ok(()));
        bucket.settle(100, 30, Moment(0));
        assert_eq!(bucket.level(), 70);
        bucket.settle(30, 230, Moment(0));
        assert_eq!(bucket.level(), -130);
        bucket.settle(1000, 0, Moment(0));
        assert_eq!(bucket.level(), 100, "never more than a burst");
    }

    proptest! {
        /// Over any time no more than burst + rate × time passes, and whoever waits as long as told passes.
        #[test]
        fn never_more_than_allowed(
            amount in 1_u64..1000, period_ms in 1_u64..100_000, burst in 1_u64..100,
            asks in prop::collection::vec((0_u64..5_000_000_000, 1_u64..20), 1..60),
        ) {
            let rate = Rate { amount, period: Duration::from_millis(period_ms), burst };
            let mut bucket = Bucket::new(rate, Moment(0));
            let (mut now, mut passed) = (Moment(0), 0_u128);
            for (gap, wanted) in asks {
                now = now + Duration::from_nanos(gap);
                let wanted = wanted.min(burst);
                match bucket.take(wanted, now) {
                    Ok(()) => {}
                    Err(wait) => {
                        prop_assert!(wait > Duration::ZERO);
                        let just_before = now + wait - Duration::from_nanos(1);
                        prop_assert!(bucket.clone().take(wanted, just_before).is_err(), "told to wait too long");
                        now = now + wait;
                        prop_assert_eq!(bucket.take(wanted, now), Ok(()), "waited as told, and refused");
                    }
                }
                passed += u128::from(wanted);
                let period = u128::from(period_ms) * 1_000_000;
                prop_assert!(passed * period <= u128::from(burst) * period + u128::from(now.0) * u128::from(amount));
            }
        }

        /// Time that goes backwards, sums that overflow: no panic, never more than a burst.
        #[test]
        fn nothing_overflows(
            amount in any::<u64>(), period_ns in any::<u64>(), burst in any::<u64>(),
            asks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..20),
        ) {
            let rate = Rate { amount, period: Duration::from_nanos(period_ns), burst };
            let mut bucket = Bucket::new(rate, Moment(0));
            for (at, wanted, real) in asks {
                let _ = bucket.take(wanted, Moment(at));
                bucket.settle(wanted, real, Moment(at));
                prop_assert!(bucket.units <= rate.full());
            }
        }
    }
}
