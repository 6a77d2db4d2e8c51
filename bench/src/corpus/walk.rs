//! Which files: found by walking a directory in sorted order, chosen by size, cut to a cap.
//!
//! Regular files with contents only. Symbolic links are not followed, so that a loop cannot be
//! entered; file systems mounted below are not entered; what cannot be listed or vanishes meanwhile
//! is passed over. Bounded by [`ENTRIES_MAX`]. Unit: base pages.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glebe::sys::page_size;
use glebe::units::Bytes;

/// Directory entries looked at before the walk ends.
const ENTRIES_MAX: usize = 1 << 18;

/// A file that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// Pages to take of it.
    pub(super) pages: u64,
}

/// All candidates below `root`, in the order of the walk.
pub(super) fn files(root: &Path) -> io::Result<Vec<Candidate>> {
    let device = fs::metadata(root)?.dev();
    fs::read_dir(root)?;
    let mut found = Vec::new();
    let mut seen = 0;
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let Ok(listing) = fs::read_dir(&dir) else { continue };
        let mut entries: Vec<_> =
            listing.flatten().take(ENTRIES_MAX - seen).map(|entry| entry.path()).collect();
        seen += entries.len();
        // The stack turns the order round.
        entries.sort_by(|a, b| b.cmp(a));
        for path in entries {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.dev() != device {
                continue;
            }
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_file() && meta.len() > 0 {
                let pages = Bytes::new(meta.len()).pages_up(page_size()).get();
                found.push(Candidate { path, pages });
            }
        }
    }
    Ok(found)
}

/// The largest `files_max` of `found`, in the order of their paths, as many as `pages_max` holds;
/// the last one in part.
pub(super) fn choose(
    mut found: Vec<Candidate>,
    files_max: usize,
    pages_max: u64,
) -> Vec<Candidate> {
    found.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.path.cmp(&b.path)));
    found.truncate(files_max);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    let mut left = pages_max;
    found.retain_mut(|candidate| {
        candidate.pages = candidate.pages.min(left);
        left -= candidate.pages;
        candidate.pages > 0
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(path: &str, pages: u64) -> Candidate {
        Candidate { path: path.into(), pages }
    }

    #[test]
    fn the_largest_in_the_order_of_paths_cut_to_the_cap() {
        let found =
            vec![candidate("d", 5), candidate("b", 1), candidate("a", 3), candidate("c", 3)];
        let chosen = choose(found.clone(), 3, 8);
        assert_eq!(chosen, [candidate("a", 3), candidate("c", 3), candidate("d", 2)]);
        assert_eq!(choose(found.clone(), 2, u64::MAX), [candidate("a", 3), candidate("d", 5)]);
        assert!(choose(found, 4, 0).is_empty());
    }
}
