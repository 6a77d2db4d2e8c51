//! How long tests wait, and how long storms last.
//!
//! | variable | meaning |
//! |---|---|
//! | `GLEBE_SLOW` | multiplies every limit and every storm; for emulated and busy machines |
//! | `GLEBE_STRESS_SECONDS` | the length of each storm, whatever its usual length is |
//! | `GLEBE_LONG` | walk whole state spaces, not a share of them; storms last four times as long |

use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at a thing that is waited for.
const LOOK: Duration = Duration::from_millis(1);
/// How much longer a storm lasts, at most, where what it must show has not happened yet.
const GRACE: Duration = Duration::from_secs(30);

fn number(name: &str) -> Option<f64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    Some(number.unwrap_or_else(|| panic!("{name}={text} is no number above 0")))
}

/// Returns `usual` times `GLEBE_SLOW`.
pub fn slowed(usual: Duration) -> Duration {
    usual.mul_f64(number("GLEBE_SLOW").unwrap_or(1.0))
}

/// Returns how long a storm lasts: `GLEBE_STRESS_SECONDS` if it is set. Else half of `middle`, or
/// twice `middle` if tests are to be [long](is_long), slowed.
pub fn storm(middle: Duration) -> Duration {
    let lasts = if is_long() { 2 * middle } else { middle / 2 };
    number("GLEBE_STRESS_SECONDS").map_or_else(|| slowed(lasts), Duration::from_secs_f64)
}

/// A storm under way: it lasts as long as [`storm`] says, and longer on a machine so busy that what
/// the test is about has not happened by then.
pub struct Storm {
    begin: Instant,
    lasts: Duration,
}

impl Storm {
    /// Begins a storm.
    pub fn begin(middle: Duration) -> Self {
        Self::lasting(storm(middle))
    }

    /// Begins a storm that lasts this long, as a part of another one.
    pub fn lasting(lasts: Duration) -> Self {
        Self { begin: Instant::now(), lasts }
    }

    /// Returns true until the storm is over.
    pub fn goes_on(&self, has_happened: impl FnOnce() -> bool) -> bool {
        let so_far = self.begin.elapsed();
        so_far < self.lasts || so_far < self.lasts + slowed(GRACE) && !has_happened()
    }
}

/// Returns true if whole state spaces are to be walked, as `make test-long` asks.
pub fn is_long() -> bool {
    std::env::var_os("GLEBE_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Waits until `is_so` returns true.
///
/// # Panics
/// If it still returns false after `most`, slowed; the message says `what`.
pub fn wait_until(what: &str, most: Duration, mut is_so: impl FnMut() -> bool) {
    let (begin, most) = (Instant::now(), slowed(most));
    while !is_so() {
        assert!(begin.elapsed() < most, "not within {most:?}: {what}");
        thread::sleep(LOOK);
    }
}
