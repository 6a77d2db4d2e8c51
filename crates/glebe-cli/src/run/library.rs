//! [`find`] locates the library to preload.
//!
//! The places are the argument of `--lib` or, without it, the command's folder (after a build) and
//! the library folders of its installation prefix.

use std::env;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};

use super::image::{self, Architecture, Image};
use super::NotRun;

pub const MALLOC: &str = "libglebe_malloc.so";
pub const HUGE: &str = "libglebe_huge.so";
/// A function of each library that the other lacks.
const MARKS: [(&str, &[u8]); 2] = [(MALLOC, b"glebe_malloc_trim"), (HUGE, b"glebe_huge_offer")];

#[derive(Debug)]
pub struct Library {
    pub path: PathBuf,
    pub architecture: Architecture,
}

/// Finds the library of that name. `given` is its file, or the only folder to search.
///
/// # Errors
/// If no library is found, the file is no shared library, or LD_PRELOAD cannot name its path.
pub fn find(given: Option<&Path>, name: &str) -> Result<Library, NotRun> {
    let places = match given {
        Some(path) => vec![place_given(path, name)?],
        None => places(
            &env::current_exe().map_err(|e| {
                NotRun::refused(format!(
                    "this command does not know where it lies ({e}): give --lib"
                ))
            })?,
            name,
        ),
    };
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        let tried: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let remedy = match given {
            Some(_) => "",
            None => "; build it (make build), install it (make install), or give --lib PATH",
        };
        return Err(NotRun::refused(format!("no {name}: tried {}{remedy}", tried.join(", "))));
    };
    is_nameable(path)?;
    let architecture = architecture(path)?;
    if given.is_some() {
        is_not_the_other(path, name)?;
    }
    Ok(Library { path: path.clone(), architecture })
}

/// Fails if the file, which may have any name, is the other library.
fn is_not_the_other(path: &Path, name: &str) -> Result<(), NotRun> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|e| NotRun::refused(format!("read({shown}): {e}")))?;
    let has = |mark: &[u8]| bytes.windows(mark.len()).any(|part| part == mark);
    let other = MARKS.iter().find(|(other, mark)| *other != name && has(mark));
    match other {
        None => Ok(()),
        Some((other, _)) => {
            Err(NotRun::refused(format!("--lib: {shown} is {other}, and {name} is needed")))
        }
    }
}

fn place_given(path: &Path, name: &str) -> Result<PathBuf, NotRun> {
    let wrong = |e| NotRun::refused(format!("--lib {}: {e}", path.display()));
    let path = path::absolute(path).map_err(wrong)?;
    Ok(if path.is_dir() { path.join(name) } else { path })
}

fn places(command: &Path, name: &str) -> Vec<PathBuf> {
    let beside = command.parent().unwrap_or(Path::new("/"));
    let prefix = beside.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
    let folders = ["lib", &multiarch, "lib64"].map(|folder| prefix.join(folder));
    [beside.to_owned()].into_iter().chain(folders).map(|folder| folder.join(name)).collect()
}

/// Fails if the loader would split the path at a blank or colon, or expand a word after `$`.
fn is_nameable(path: &Path) -> Result<(), NotRun> {
    let not_for_a_name = |byte: &&u8| matches!(byte, b' ' | b':' | b'$');
    match path.as_os_str().as_bytes().iter().find(not_for_a_name) {
        None => Ok(()),
        Some(&byte) => Err(NotRun::refused(format!(
            "LD_PRELOAD cannot name {}, because of the {:?} in it: link or copy the library to \
             another path, and give that by --lib",
            path.display(),
            char::from(byte),
        ))),
    }
}

fn architecture(path: &Path) -> Result<Architecture, NotRun> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| NotRun::refused(format!("open({shown}): {e}")))?;
    match image::of(file) {
        Ok(Image::Elf(elf)) if elf.is_shared => Ok(elf.architecture),
        Ok(_) => Err(NotRun::refused(format!("{shown} is no shared library"))),
        Err(e) => Err(NotRun::refused(format!("{shown} is no shared library: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_beside_the_command_or_in_its_prefix() {
        let places = places(Path::new("/opt/glebe/bin/glebe"), MALLOC);
        let arch = env::consts::ARCH;
        let expected = [
            "/opt/glebe/bin".to_owned(),
            "/opt/glebe/lib".to_owned(),
            format!("/opt/glebe/lib/{arch}-linux-gnu"),
            "/opt/glebe/lib64".to_owned(),
        ];
        assert_eq!(places, expected.map(|folder| Path::new(&folder).join(MALLOC)));
    }

    #[test]
    fn the_loader_would_split_some_paths() {
        assert!(is_nameable(Path::new("/usr/lib/a-b_c.so")).is_ok());
        for bad in ["/a b/x.so", "/a:b/x.so", "/$LIB/x.so"] {
            let refused = is_nameable(Path::new(bad)).expect_err(bad);
            assert!(refused.to_string().contains(bad) && refused.status == 125, "{refused}");
        }
    }
}
