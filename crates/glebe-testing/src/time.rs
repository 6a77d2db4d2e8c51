//! Limits on waits, and lengths of *storms* (stress tests).
//!
//! | variable | meaning |
//! |---|---|
//! | `GLEBE_SLOW` | multiplies limits, and usual lengths of storms, for a slow machine |
//! | `GLEBE_STRESS_SECONDS` | the length of each storm, in place of its usual length |
//! | `GLEBE_LONG` | explores whole state spaces; makes usual lengths of storms four times as long |

use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(1);
/// Longest extension of a storm that still waits for its event.
const GRACE: Duration = Duration::from_secs(30);

fn number(name: &str) -> Option<f64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    Some(number.unwrap_or_else(|| panic!("{name}={text} is no number above 0")))
}

pub fn slowed(usual: Duration) -> Duration {
    usual.mul_f64(number("GLEBE_SLOW").unwrap_or(1.0))
}

/// Returns the length of a stress test: `GLEBE_STRESS_SECONDS` if set. Otherwise half of `middle`,
/// or twice `middle` in [long](is_long) runs, times `GLEBE_SLOW`.
pub fn storm(middle: Duration) -> Duration {
    let lasts = if is_long() { 2 * middle } else { middle / 2 };
    number("GLEBE_STRESS_SECONDS").map_or_else(|| slowed(lasts), Duration::from_secs_f64)
}

/// Times a stress test, and lengthens it if a busy machine delays the event under test.
pub struct Storm {
    begin: Instant,
    lasts: Duration,
}

impl Storm {
    pub fn begin(middle: Duration) -> Self {
        Self::lasting(storm(middle))
    }

    pub fn lasting(lasts: Duration) -> Self {
        Self { begin: Instant::now(), lasts }
    }

    /// Returns true while the storm lasts, and then for at most `GRACE` until `has_happened`.
    pub fn goes_on(&self, has_happened: impl FnOnce() -> bool) -> bool {
        let so_far = self.begin.elapsed();
        so_far < self.lasts || so_far < self.lasts + slowed(GRACE) && !has_happened()
    }
}

pub fn is_long() -> bool {
    std::env::var_os("GLEBE_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Waits until `is_so` returns true.
///
/// # Panics
/// If `is_so` returns false for longer than `slowed(most)`. The message contains `what`.
pub fn wait_until(what: &str, most: Duration, mut is_so: impl FnMut() -> bool) {
    let (begin, most) = (Instant::now(), slowed(most));
    while !is_so() {
        assert!(begin.elapsed() < most, "not within {most:?}: {what}");
        thread::sleep(LOOK);
    }
}
