//! Contestants take turns, so that other work of the machine affects all of them.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::summary::Summary;
use crate::{clock, interrupt};

pub(crate) const NO_END: Duration = Duration::MAX;

/// Returns the numbers of at most `count` rounds: the first, and those that begin within `at_most`.
/// Unwinds if a signal arrived ([`interrupt`]).
pub(crate) fn rounds(what: &str, count: u64, at_most: Duration) -> impl Iterator<Item = u64> {
    let form = "{prefix} [{bar:24}] {percent:>3} %  {elapsed}, {eta} left";
    let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Dropping the bar removes its line.
    let bar = ProgressBar::new(count).with_style(style).with_prefix(what.to_owned());
    let end = clock::wall().saturating_add(at_most);
    (0..count).take_while(move |&done| {
        interrupt::check();
        bar.set_position(done);
        done == 0 || clock::wall() <= end
    })
}

/// Returns each contestant once per round, with the round's number. The order changes with the
/// round, because a contestant may find memory warm from the one before.
pub(crate) fn turns<'a, T: Copy>(
    what: &str,
    count: u64,
    all: &'a [T],
) -> impl Iterator<Item = (u64, T)> + 'a {
    let len = all.len() as u64;
    // Steps that reach every contestant.
    let strides: Vec<_> = (1..len.max(2)).filter(|stride| gcd(*stride, len) == 1).collect();
    rounds(what, count * len, NO_END).map(move |turn| {
        let (round, nth) = (turn / len, turn % len);
        let stride = strides[(round % strides.len() as u64) as usize];
        (round, all[((round + nth * stride) % len) as usize])
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Runs `work` in `count` threads. `work` can wait at the barrier to begin together.
pub(crate) fn on_threads<T: Send>(
    count: usize,
    work: impl Fn(usize, &Barrier) -> T + Sync,
) -> Vec<T> {
    let (begin, work) = (&Barrier::new(count), &work);
    thread::scope(|scope| {
        let running: Vec<_> = (0..count).map(|nth| scope.spawn(move || work(nth, begin))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(f64::NAN, |summary| summary.median)
}

/// Returns the median over the rounds of `these` divided by `those`.
pub(crate) fn by_round(these: &[f64], those: &[f64]) -> f64 {
    median(&these.iter().zip(those).map(|(this, that)| this / that).collect::<Vec<_>>())
}

/// Returns the least ratio; NaN if `ratios` is empty or has a NaN, which `min` would ignore.
pub(crate) fn worst(ratios: &[f64]) -> f64 {
    let least = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
    ratios.iter().copied().reduce(least).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_first_once_and_rounds_end_in_time() {
        let all: Vec<_> = turns("test", 2, &['a', 'b']).collect();
        assert_eq!(all, [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]);
        let names = |who: &[char]| turns("test", 4, who).map(|(_, who)| who).collect::<String>();
        assert_eq!(names(&['a', 'b', 'c', 'd', 'e']), "abcdebdacecadbedcbae");
        assert_eq!(
            (names(&['a']), names(&['a', 'b', 'c'])),
            ("aaaa".into(), "abcbaccabacb".into())
        );
        assert_eq!(by_round(&[2.0, 4.0, 9.0], &[1.0, 2.0, 3.0]), 2.0);
        assert_eq!(rounds("test", 3, NO_END).count(), 3);
        let late = rounds("test", 9, Duration::ZERO);
        let late = late.inspect(|_| std::thread::sleep(Duration::from_millis(1)));
        assert_eq!(late.count(), 1);
    }
}
