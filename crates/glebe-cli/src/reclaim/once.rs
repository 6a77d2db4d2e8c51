//! `glebe reclaim --once` purges a given amount; `--dry-run` shows what a purge would free.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Next, Priority, Purger};

use super::open::sums;
use crate::Outcome;

/// Opens the files without claiming them, because another purger may own them.
fn open(paths: &[PathBuf]) -> Result<Vec<Arc<Purger>>, String> {
    let open = |path: &PathBuf| Purger::open(path).map_err(|e| format!("{}: {e}", path.display()));
    paths.iter().map(|path| Ok(Arc::new(open(path)?))).collect()
}

pub fn purge(paths: &[PathBuf], size: Bytes, out: &mut dyn Write) -> Outcome {
    let purgers = open(paths)?;
    let reclaimer = Reclaimer::new(Policy::default())?;
    for purger in &purgers {
        reclaimer.add(purger)?;
    }
    let done = reclaimer.shed(size)?;
    for (path, purger) in paths.iter().zip(&purgers) {
        if let Some(told) = sums(purger.freed().into_iter()) {
            writeln!(out, "{}: {told}", path.display())?;
        }
    }
    writeln!(out, "{} freed", done.freed())?;
    match done.failed {
        0 => Ok(()),
        _ => Err("a file could not be purged: it was cut, or another process purges it".into()),
    }
}

pub fn show(paths: &[PathBuf], size: Option<Bytes>, out: &mut dyn Write) -> Outcome {
    let most = size.unwrap_or(Bytes::new(u64::MAX));
    let mut order: Vec<(Next, usize)> = Vec::new();
    for (at, (path, purger)) in paths.iter().zip(open(paths)?).enumerate() {
        let next = purger.next(most).map_err(|e| format!("{}: {e}", path.display()))?;
        order.extend(next.into_iter().map(|next| (next, at)));
    }
    order.sort_unstable();
    let mut freed = vec![[Bytes::ZERO; Priority::HIGHEST.get() as usize + 1]; paths.len()];
    let mut sum = Bytes::ZERO;
    for (next, at) in order {
        if sum >= most {
            break;
        }
        sum = sum + next.len;
        let level = &mut freed[at][usize::from(next.priority.get())];
        *level = *level + next.len;
    }
    for (path, freed) in paths.iter().zip(freed) {
        if let Some(told) = sums(freed.into_iter()) {
            writeln!(out, "{}: {told}", path.display())?;
        }
    }
    writeln!(out, "{sum} would be freed")?;
    Ok(())
}
