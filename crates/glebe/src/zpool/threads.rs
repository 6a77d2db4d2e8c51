//! Small numbers for threads: no two threads that run have the same one.
//!
//! A thread takes the lowest free number when it first asks and gives it back when it ends, so
//! that the next thread goes on where it was. With more threads than numbers some have none, and
//! so has a thread in its last moments. A child of fork keeps the numbers of threads that it
//! does not have; they are lost to it. Cost: a load; a compare and exchange a thread.

use std::cell::Cell;

use crate::sync::{MappedWord, Ordering};

/// Numbers that there are.
#[cfg(test)]
const NUMBERS: usize = u64::BITS as usize;
/// What a thread without a number has.
pub(crate) const NO_NUMBER: usize = usize::MAX;

/// Numbers in use, a bit each.
static TAKEN: MappedWord = MappedWord::new(0);

/// What a thread has that has not asked yet.
const UNASKED: usize = NO_NUMBER - 1;

thread_local! {
    /// Read without a look at whether it is still there.
    static NUMBER: Cell<usize> = const { Cell::new(UNASKED) };
    static TAKEN_HERE: Number = Number::take();
}

/// A number that is given back when its thread ends.
struct Number(usize);

impl Number {
    fn take() -> Self {
        let mut taken = TAKEN.load(Ordering::Relaxed);
        while taken != u64::MAX {
            let bit = !taken & taken.wrapping_add(1);
            // Acquire: what the last one that had the number did is over.
            let (done, lost) = (Ordering::Acquire, Ordering::Relaxed);
            match TAKEN.compare_exchange_weak(taken, taken | bit, done, lost) {
                Ok(_) => return Self(bit.trailing_zeros() as usize),
                Err(other) => taken = other,
            }
        }
        Self(NO_NUMBER)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBER.set(NO_NUMBER);
        if self.0 != NO_NUMBER {
            TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

/// The calling thread's number, below the bits of a word, or [`NO_NUMBER`].
#[inline]
pub(crate) fn thread_number() -> usize {
    match NUMBER.get() {
        UNASKED => ask(),
        number => number,
    }
}

#[cold]
fn ask() -> usize {
    let number = TAKEN_HERE.try_with(|number| number.0).unwrap_or(NO_NUMBER);
    NUMBER.set(number);
    number
}

#[cfg(test)]
mod tests {
    use std::cell::OnceCell;
    use std::sync::mpsc::{channel, Sender};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn no_two_that_run_have_the_same() {
        let barrier = Barrier::new(8);
        let mut numbers: Vec<usize> = std::thread::scope(|scope| {
            let ask = || {
                let number = thread_number();
                barrier.wait();
                assert_eq!(thread_number(), number);
                number
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        numbers.retain(|number| *number != NO_NUMBER);
        numbers.sort_unstable();
        let all = numbers.len();
        numbers.dedup();
        assert!(numbers.len() == all && numbers.iter().all(|number| *number < NUMBERS));
    }

    /// Asks for a number when its thread has given up its own.
    struct Late(Sender<usize>);

    impl Drop for Late {
        fn drop(&mut self) {
            let _ = self.0.send(thread_number());
        }
    }

    #[test]
    fn a_thread_that_ends_has_none() {
        thread_local!(static LATE: OnceCell<Late> = const { OnceCell::new() });
        let (told, hears) = channel();
        let ends = move || {
            // Dropped last, since it came first.
            LATE.with(|late| drop(late.set(Late(told))));
            thread_number()
        };
        let number = std::thread::spawn(ends).join().unwrap();
        let late = hears.recv().unwrap();
        assert!(late == NO_NUMBER || number == NO_NUMBER, "{late} after {number}");
    }

    #[test]
    fn a_number_is_used_again() {
        let ask = || std::thread::spawn(thread_number).join().unwrap();
        let most = (0..4 * NUMBERS).map(|_| ask()).filter(|n| *n != NO_NUMBER).max();
        assert!(most.is_some_and(|most| most < NUMBERS));
    }
}
