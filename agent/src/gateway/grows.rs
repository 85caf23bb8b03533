//! A list that only grows, read without a lock while it does; nothing in it ever moves.
//!
//! Entries lie in blocks of 1, 2, 4, … entries, each made when the first entry of it comes: the place of an entry follows
//! from its index, and a reference to it stays good.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks: enough for every `u16`.
const BLOCKS: usize = 17;

/// The list.
#[derive(Debug)]
pub(super) struct Grows<T> {
    blocks: [OnceLock<Box<[OnceLock<T>]>>; BLOCKS],
    len: AtomicUsize,
}

impl<T> Default for Grows<T> {
    fn default() -> Self {
        Grows { blocks: std::array::from_fn(|_| OnceLock::new()), len: AtomicUsize::new(0) }
    }
}

impl<T> Grows<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Adds one. Its index, or the entry itself where there is no room for more. One caller at a time: the index of
    /// another one could not be told.
    pub(super) fn push(&self, entry: T) -> Result<usize, T> {
        let at = self.len();
        let (block, place) = place(at);
        let Some(block) = self
            .blocks
            .get(block)
            .map(|b| b.get_or_init(|| std::iter::repeat_with(OnceLock::new).take(1 << block).collect()))
        else {
            return Err(entry);
        };
        block[place].set(entry)?;
        self.len.store(at + 1, Ordering::Release);
        Ok(at)
    }

    /// One of them.
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        let (block, place) = place(at);
        self.blocks.get(block)?.get()?.get(place)?.get()
    }

    /// All of them, in the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<T> std::ops::Index<usize> for Grows<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        self.get(at).expect("the index of an entry")
    }
}

/// The block of an index, and the place in it.
fn place(at: usize) -> (usize, usize) {
    let nth = at + 1;
    let block = nth.ilog2();
    (block as usize, nth - (1 << block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_where_they_are() {
        let list: Grows<String> = Grows::default();
        assert_eq!((list.len(), list.get(0)), (0, None));
        assert_eq!(list.push("0".to_owned()), Ok(0));
        let first: *const String = list.get(0).unwrap();
        for at in 1..1000 {
            assert_eq!(list.push(at.to_string()), Ok(at));
        }
        assert!(list.iter().enumerate().all(|(at, entry)| *entry == at.to_string()));
        assert_eq!((list.iter().count(), list.get(1000)), (1000, None));
        assert!(std::ptr::eq(first, list.get(0).unwrap()));
    }

    #[test]
    fn readers_see_whole_entries_while_it_grows() {
        let list: Grows<usize> = Grows::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..500).for_each(|at| assert_eq!(list.push(at), Ok(at))));
            scope.spawn(|| {
                while list.len() < 500 {
                    assert!(list.iter().enumerate().all(|(at, entry)| at == *entry));
                }
            });
        });
    }
}
