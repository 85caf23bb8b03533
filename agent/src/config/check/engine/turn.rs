//! Whose turn it is: the engine's own side of it.

use std::time::Duration;

use hotbunk_core::spec::{Rung, Turn};
use hotbunk_core::tier::Tier;

use super::OneEngine;
use crate::config::check::missing;
use crate::config::reader::Field;
use crate::config::units;

/// Heaviest weight; beyond it the lighter ones would hardly ever be served.
const HEAVIEST: u32 = 1000;

impl OneEngine<'_, '_, '_> {
    pub(super) fn turn(&mut self) -> Turn {
        let raw = self.raw;
        let default = Turn::default();
        let key = self.key("max_wait");
        let max_wait =
            self.checking.duration(&raw.max_wait, &key, default.max_wait, Duration::from_millis(100));
        let min_residency = raw.min_residency.get().map_or(default.min_residency, |span| span.0);
        let key = self.key("weight");
        let weight = self.checking.weight(&raw.weight, &key);
        Turn { min_residency, max_wait, weight, pinned: raw.pinned.or(false) }
    }

    /// A count that is not 0.
    pub(super) fn count(&mut self, field: &Field<u32>, key: &str) -> Option<u32> {
        let key = self.key(key);
        self.checking.count(field, &key)
    }

    /// Rungs in their order, later ones deeper, each in a tier that the engine may be in.
    pub(super) fn idle(&mut self, sleep_tiers: &[Tier]) -> Vec<Rung> {
        let Some(list) = self.raw.idle.located() else { return Vec::new() };
        let mut rungs: Vec<Rung> = Vec::new();
        for (k, raw) in list.value.iter().enumerate() {
            let path = self.key(&format!("idle[{k}]"));
            let (after, tier) = (raw.value.after.located(), raw.value.tier.located());
            for (name, absent, example) in [
                ("after", raw.value.after.is_absent(), "`after = \"30s\"`"),
                ("tier", raw.value.tier.is_absent(), "`tier = \"parked\"`"),
            ] {
                if absent {
                    missing(self.checking.problems, &raw.span, &path, name, example);
                }
            }
            let (Some(after), Some(tier)) = (after, tier) else { continue };
            self.checking.at_least(after, &format!("{path}.after"), Duration::from_secs(1));
            let allowed = tier.value == Tier::Stopped || sleep_tiers.contains(&tier.value);
            if !allowed {
                let help = match tier.value {
                    Tier::Awake => "name the tier that it is put into: parked, level1, level2 or stopped",
                    Tier::Parked => "allow it with `park = true` and a level, or name another tier",
                    _ => "allow it in `levels`, or name another tier",
                };
                let message = format!("it may not be put to {}", tier.value);
                self.checking
                    .problems
                    .error("bad_rung", &tier.span, format!("{path}.tier"), message)
                    .help(help);
            }
            if let Some(last) = rungs.last()
                && (after.value.0 <= last.after || tier.value <= last.tier)
            {
                let message = format!(
                    "after {} it is to be {} already: a later rung is a deeper one",
                    units::format_duration(last.after),
                    last.tier
                );
                self.checking
                    .problems
                    .error("rung_order", &raw.span, path, message)
                    .help("write the rungs from the shortest time and the shallowest tier to the longest and deepest");
            }
            rungs.push(Rung { after: after.value.0, tier: tier.value });
        }
        if self.raw.pinned.or(false)
            && let (Some(pinned), false) = (self.raw.pinned.located(), rungs.is_empty())
        {
            let key = self.key("idle");
            self.checking
                .problems
                .error("conflict", &list.span, key, "a pinned engine stays awake, and this puts it to sleep")
                .related(&pinned.span, "pinned here")
                .help("drop one of the two");
        }
        rungs
    }
}

impl super::Checking<'_> {
    /// A weight, 1 where none is given.
    pub(in crate::config::check) fn weight(&mut self, field: &Field<u32>, key: &str) -> u32 {
        let Some(given) = field.located() else { return 1 };
        if !(1..=HEAVIEST).contains(&given.value) {
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` is from 1 to {HEAVIEST}"))
                .help("leave it out for 1; 2 gives twice as much as 1");
        }
        given.value.clamp(1, HEAVIEST)
    }

    /// A count that is not 0; `None` is no limit.
    pub(in crate::config::check) fn count(&mut self, field: &Field<u32>, key: &str) -> Option<u32> {
        let given = field.located()?;
        if given.value == 0 {
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` of 0 would let nothing through"))
                .help("leave it out for no limit");
        }
        Some(given.value.max(1))
    }
}
