//! Real bytes to work on where there is no source tree: files that every machine has.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Directories that Linux machines have, tried in this order.
const DIRS: [&str; 3] = ["/usr/lib", "/usr", "/etc"];

/// Fills `to` with the contents of files below one directory, in the order of the walk, each from
/// the start of a `page`; zeros follow its end. Returns the bytes that were filled, whole pages,
/// and the directory. Symbolic links are not followed; what cannot be read is passed over.
pub(crate) fn fill(to: &mut [u8], page: usize) -> (usize, &'static str) {
    let mut filled = DIRS.into_iter().map(|dir| (fill_from(Path::new(dir), to, page), dir));
    filled.find(|(filled, _)| *filled > 0).unwrap_or((0, "none"))
}

fn fill_from(root: &Path, to: &mut [u8], page: usize) -> usize {
    let (mut filled, mut dirs) = (0, vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                dirs.push(path);
            } else if let (true, Ok(mut file)) = (meta.is_file(), File::open(&path)) {
                let left = &mut to[filled..];
                let mut read = 0;
                while let Ok(more @ 1..) = file.read(&mut left[read..]) {
                    read += more;
                }
                let whole = read.next_multiple_of(page).min(left.len());
                left[read..whole].fill(0);
                filled += whole;
            }
            if filled == to.len() {
                return filled;
            }
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_begin_on_pages_and_the_last_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), [1; 5]).unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("b/c"), [2; 40]).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("b/loop")).unwrap();
        let mut to = [9; 24];
        assert_eq!(fill_from(dir.path(), &mut to, 8), 24);
        assert_eq!((to[4], to[5], to[7], to[8], to[23]), (1, 0, 0, 2, 2));
        assert_eq!(fill_from(dir.path(), &mut [9; 64], 8), 48);
    }
}
