//! Those that wait, in an order that is fair between tenants.
//!
//! Start-time fair queueing: each entry gets a *start* on a virtual clock, the later of the clock's now and the end of
//! its tenant's previous entry; an entry is one unit long, divided by its tenant's weight. The least start goes first,
//! of equals the one that came first, and the clock moves to that start.
//!
//! So a tenant whose queue was empty starts at now, before all but one entry of everyone else, however many those have
//! waiting: a flood delays nobody but the one who sent it. Between two tenants that both have entries waiting, what
//! they get is in the ratio of their weights, give or take one entry each. Within a tenant the order is that of arrival.

use std::collections::BTreeMap;

/// Length of an entry of weight 1 on the virtual clock.
const UNIT: u64 = 1 << 32;

/// Names an entry as long as it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Whose.
    pub tenant: u16,
    seq: u64,
}

#[derive(Debug)]
struct Flow<T> {
    /// By arrival.
    entries: BTreeMap<u64, T>,
    /// Start of the first entry on the virtual clock, or of the next one to come.
    start: u64,
    /// Length of each on the virtual clock.
    length: u64,
}

/// A fair queue.
#[derive(Debug)]
pub struct Queue<T> {
    flows: BTreeMap<u16, Flow<T>>,
    now: u64,
    seq: u64,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { flows: BTreeMap::new(), now: 0, seq: 0, len: 0 }
    }
}

impl<T> Queue<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry at the end of its tenant's queue. A `weight` of 0 counts as 1.
    pub fn push(&mut self, tenant: u16, weight: u32, item: T) -> Place {
        let seq = self.seq;
        self.seq += 1;
        let now = self.now;
        let flow = self.flows.entry(tenant).or_insert_with(|| Flow {
            entries: BTreeMap::new(),
            start: now,
            length: UNIT,
        });
        flow.length = UNIT / u64::from(weight.max(1));
        if flow.entries.is_empty() {
            flow.start = flow.start.max(now);
        }
        flow.entries.insert(seq, item);
        self.len += 1;
        Place { tenant, seq }
    }

    /// Takes out an entry that does not wait any longer, wherever it stands. Nobody is served: those behind it move up.
    pub fn remove(&mut self, place: Place) -> Option<T> {
        let item = self.flows.get_mut(&place.tenant)?.entries.remove(&place.seq)?;
        self.gone();
        Some(item)
    }

    /// The entry that goes next, of the tenants that may.
    pub fn next(&self, may: impl Fn(u16) -> bool) -> Option<(Place, &T)> {
        self.flows
            .iter()
            .filter_map(|(tenant, flow)| {
                let (seq, item) = flow.entries.first_key_value()?;
                Some((flow.start, *seq, *tenant, item))
            })
            .filter(|(_, _, tenant, _)| may(*tenant))
            .min_by_key(|(start, seq, _, _)| (*start, *seq))
            .map(|(_, seq, tenant, item)| (Place { tenant, seq }, item))
    }

    /// Takes out the entry that [`Queue::next`] named: the virtual clock moves on.
    pub fn take(&mut self, place: Place) -> Option<T> {
        let flow = self.flows.get_mut(&place.tenant)?;
        let item = flow.entries.remove(&place.seq)?;
        self.now = self.now.max(flow.start);
        // One that was not allowed to go for a while does not catch up.
        flow.start = flow.start.saturating_add(flow.length).max(self.now);
        self.gone();
        Some(item)
    }

    /// Everybody, by arrival; the queue is empty afterwards.
    pub fn drain(&mut self) -> Vec<T> {
        let flows = std::mem::take(&mut self.flows);
        let mut all: Vec<(u64, T)> = flows.into_values().flat_map(|flow| flow.entries).collect();
        all.sort_by_key(|(seq, _)| *seq);
        (self.len, self.now) = (0, 0);
        all.into_iter().map(|(_, item)| item).collect()
    }

    /// How many go before an entry, as things stand; `None` where it does not wait.
    pub fn ahead(&self, place: Place) -> Option<usize> {
        let flow = self.flows.get(&place.tenant)?;
        let at = flow.entries.keys().position(|seq| *seq == place.seq)?;
        let mine = (flow.nth(at), place.seq);
        let before = |flow: &Flow<T>| {
            flow.entries.keys().enumerate().take_while(|(n, seq)| (flow.nth(*n), **seq) < mine).count()
        };
        Some(self.flows.values().map(before).sum())
    }

    /// Everybody who waits, by tenant.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &T)> {
        self.flows.iter().flat_map(|(tenant, flow)| {
            flow.entries.iter().map(|(seq, item)| (Place { tenant: *tenant, seq: *seq }, item))
        })
    }

    /// The one that came first.
    pub fn oldest(&self) -> Option<&T> {
        self.flows
            .values()
            .filter_map(|flow| flow.entries.first_key_value())
            .min_by_key(|(seq, _)| **seq)
            .map(|(_, item)| item)
    }

    fn gone(&mut self) {
        self.len -= 1;
        // A busy time has ended; nobody owes anything.
        if self.len == 0 {
            self.flows.clear();
            self.now = 0;
        }
    }
}

impl<T> Flow<T> {
    /// Start of its nth entry, if nothing else comes.
    fn nth(&self, n: usize) -> u64 {
        self.start.saturating_add(self.length.saturating_mul(n as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(queue: &mut Queue<(u16, u32)>) -> Option<(u16, u32)> {
        let (place, _) = queue.next(|_| true)?;
        queue.take(place)
    }

    #[test]
    fn a_flood_goes_behind_whoever_comes_later() {
        let mut queue = Queue::default();
        for n in 0..200 {
            queue.push(0, 1, (0, n));
        }
        for n in 0..5 {
            assert_eq!(next(&mut queue), Some((0, n)));
        }
        let mine = queue.push(1, 1, (1, 0));
        assert!(queue.ahead(mine).is_some_and(|ahead| ahead <= 1));
        let order: Vec<u16> = (0..2).filter_map(|_| next(&mut queue)).map(|(tenant, _)| tenant).collect();
        assert!(order.contains(&1), "{order:?}");
    }

    #[test]
    fn one_that_may_not_go_holds_nobody_up() {
        let mut queue = Queue::default();
        queue.push(0, 1, (0, 0));
        let other = queue.push(1, 1, (1, 0));
        assert_eq!(queue.next(|tenant| tenant != 0).map(|(place, _)| place), Some(other));
        assert_eq!(queue.next(|_| false).map(|(place, _)| place), None);
    }

    #[derive(Debug, Clone)]
    enum Do {
        Push(u16),
        Next,
        Leave(usize),
    }

    fn moves() -> impl Strategy<Value = Vec<Do>> {
        let one = prop_oneof![
            4 => (0_u16..4).prop_map(Do::Push),
            3 => Just(Do::Next),
            1 => (0_usize..64).prop_map(Do::Leave),
        ];
        prop::collection::vec(one, 1..200)
    }

    proptest! {
        /// Whatever happens: in order within a tenant, everybody counted once, and whoever comes to an empty queue of
        /// its own is passed by no tenant more often than its weight against the other's says, and once more.
        #[test]
        fn nobody_waits_for_a_flood(weights in prop::array::uniform4(1_u32..5), moves in moves()) {
            let mut queue = Queue::default();
            let mut waiting: Vec<(Place, (u16, u32))> = Vec::new();
            // For each that waits at the head of its tenant since it came there: how often others went.
            let mut passed: BTreeMap<(u16, u16), u32> = BTreeMap::new();
            let mut count = 0;
            for one in moves {
                match one {
                    Do::Push(tenant) => {
                        let item = (tenant, count);
                        count += 1;
                        let place = queue.push(tenant, weights[usize::from(tenant)], item);
                        if !waiting.iter().any(|(_, (t, _))| *t == tenant) {
                            passed.retain(|(waits, _), _| *waits != tenant);
                        }
                        waiting.push((place, item));
                        let same_start_or_later = queue.ahead(place).unwrap();
                        prop_assert!(same_start_or_later < waiting.len());
                    }
                    Do::Next => {
                        let expected = waiting.iter().position(|(p, _)| queue.ahead(*p) == Some(0));
                        let got = next(&mut queue);
                        prop_assert_eq!(got, expected.map(|at| waiting[at].1));
                        let Some((tenant, n)) = got else { continue };
                        let first = waiting.iter().filter(|(_, (t, _))| *t == tenant).map(|(_, (_, n))| *n).min();
                        prop_assert_eq!(first, Some(n), "out of order within a tenant");
                        waiting.retain(|(_, item)| *item != (tenant, n));
                        passed.retain(|(waits, _), _| *waits != tenant);
                        let heads: Vec<u16> = (0..4).filter(|t| waiting.iter().any(|(_, (w, _))| w == t)).collect();
                        for waits in heads {
                            let times = passed.entry((waits, tenant)).or_default();
                            *times += 1;
                            let (mine, theirs) = (weights[usize::from(waits)], weights[usize::from(tenant)]);
                            let share = theirs.div_ceil(mine) + 1;
                            prop_assert!(*times <= share, "{tenant} passed {waits} {times} times, share {share}");
                        }
                    }
                    Do::Leave(at) => {
                        if waiting.is_empty() { continue }
                        let (place, item) = waiting.remove(at % waiting.len());
                        prop_assert_eq!(queue.remove(place), Some(item));
                        prop_assert_eq!(queue.remove(place), None);
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert_eq!(queue.oldest().map(|(_, n)| *n), waiting.iter().map(|(_, (_, n))| *n).min());
            }
        }
    }
}
