//! Runs a model under the model checker loom (`RUSTFLAGS="--cfg loom"`), in full or with a bound on
//! preemptions.

/// More steps than any schedule takes; loom's default is too low for some models.
const BRANCHES_MAX: usize = 10_000;
/// Greatest number of preemptions without `GLEBE_LONG`. Models that must fail do so within two.
const SHARE: usize = 2;
/// [`SHARE`] for a model with far more schedules: many steps, or three threads.
const SHARE_OF_LARGE: usize = 1;

/// Runs every schedule of `run` with at most `preemptions` preemptions (`None`: no limit), and
/// without `GLEBE_LONG` with at most [`SHARE`]. A preemption is a switch away from a thread that
/// could continue. Models start in their first thread, so a schedule in which another thread acts
/// first costs one preemption.
pub fn explore(preemptions: impl Into<Option<usize>>, run: impl Fn() + Sync + Send + 'static) {
    explore_share(preemptions.into(), SHARE, run);
}

/// Like [`explore`], for a model whose first thread only waits: the other threads run in any order
/// without a preemption. Explores no preemption, or with `GLEBE_LONG` at most `preemptions`.
pub fn explore_orders(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    explore_share(Some(preemptions), 0, run);
}

pub fn explore_large(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    explore_share(Some(preemptions), SHARE_OF_LARGE, run);
}

fn explore_share(most: Option<usize>, share: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match crate::time::is_long() {
        true => most,
        false => Some(most.map_or(share, |most| most.min(share))),
    };
    builder.max_branches = BRANCHES_MAX;
    builder.check(run);
}
