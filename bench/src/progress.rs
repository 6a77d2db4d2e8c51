//! [`Progress`]: how far a run has come, as a line on stderr where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// Progress of one task, shown as it goes; the line is taken away when dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins a task of `total` steps.
    pub(crate) fn new(label: &str, total: u64) -> Self {
        let form = "{prefix} [{bar:24}] {percent:>3} %  {elapsed}, {eta} left";
        let style =
            ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(total).with_style(style).with_prefix(label.to_owned()))
    }

    /// Says that `done` steps are behind us. Unwinds if the run was told to end ([`interrupt`]).
    pub(crate) fn update(&mut self, done: u64) {
        interrupt::check();
        self.0.set_position(done);
    }

    /// Takes the line off the terminal, so that something else can be printed.
    pub(crate) fn clear(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
