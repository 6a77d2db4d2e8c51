//! [`check`] refuses a program in which LD_PRELOAD would have no effect or do harm.
//!
//! [`check`] follows scripts to their interpreter, as the kernel does. It accepts unknown formats
//! and, with a warning, programs that this user may execute but not read.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::image::{self, Architecture, Elf, Image};
use super::{secure, NotRun};

const SCRIPTS_MAX: u32 = 5;

const FOREIGN_LOADERS: [(&str, &str); 3] =
    [("ld-musl-", "musl"), ("ld-uClibc", "uClibc"), ("linker", "Android's C library")];

/// Checks that the loader of `program` would preload a library for `ours`. Returns a warning for
/// the user, if any.
///
/// # Errors
/// If the loader would ignore the library, or the program is missing or cannot be executed.
pub fn check(program: &Path, ours: Architecture) -> Result<Option<String>, NotRun> {
    let mut file = program.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        let metadata = regular(program, &file)?;
        let opened = match File::open(&file) {
            Ok(opened) => opened,
            Err(e) => return refuse_if_secure(&file, &metadata).map(|()| Some(unread(&file, &e))),
        };
        let damaged = |e| NotRun::cannot(format!("{}: {e}", file.display()));
        match image::of(opened).map_err(damaged)? {
            // The kernel ignores the setuid and setgid bits of a script.
            Image::Script(interpreter) => file = interpreter,
            Image::Other => return Ok(None),
            Image::Elf(elf) => {
                refuse_if_secure(&file, &metadata)?;
                return check_elf(&file, &elf, ours).map(|()| None);
            }
        }
    }
    Err(NotRun::cannot(format!(
        "{}: more than {SCRIPTS_MAX} scripts, each the interpreter of the one before",
        program.display()
    )))
}

/// Returns true if no loader would preload anything into `program`: it is linked statically, or its
/// interpreter is.
#[cfg(feature = "serve")]
pub fn is_static(program: &Path) -> bool {
    let mut file = program.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        let is_regular = regular(program, &file).is_ok();
        match is_regular.then(|| File::open(&file).and_then(image::of)) {
            Some(Ok(Image::Script(interpreter))) => file = interpreter,
            Some(Ok(Image::Elf(elf))) => {
                return elf.loader.is_none() && !(elf.is_shared && is_loader(&file));
            }
            _ => return false,
        }
    }
    false
}

/// Fails unless `file` is a regular file. Called before the open, because the open of a FIFO would
/// block.
fn regular(program: &Path, file: &Path) -> Result<Metadata, NotRun> {
    let metadata = fs::metadata(file).map_err(|e| not_there(program, file, &e))?;
    match metadata.is_file() {
        true => Ok(metadata),
        false => Err(NotRun::cannot(format!("{} is no regular file", file.display()))),
    }
}

fn not_there(program: &Path, file: &Path, error: &io::Error) -> NotRun {
    if file != program {
        let (script, file) = (program.display(), file.display());
        return NotRun::cannot(format!("{script}: its interpreter {file}: {error}"));
    }
    let why = format!("{}: {error}", file.display());
    match error.kind() {
        io::ErrorKind::NotFound => NotRun::missing(why),
        _ => NotRun::cannot(why),
    }
}

fn unread(file: &Path, error: &io::Error) -> String {
    format!(
        "{} cannot be read ({error}), so nobody checked that it takes the library: with --stats \
         it tells",
        file.display()
    )
}

fn refuse_if_secure(file: &Path, metadata: &Metadata) -> Result<(), NotRun> {
    match secure::reason(file, metadata) {
        None => Ok(()),
        Some(reason) => Err(NotRun::refused(format!(
            "{} {reason}, so the loader would ignore LD_PRELOAD: put `glebe run` after it, before \
             the program that it starts",
            file.display()
        ))),
    }
}

fn check_elf(file: &Path, elf: &Elf, ours: Architecture) -> Result<(), NotRun> {
    let shown = file.display();
    if elf.architecture != ours {
        return Err(NotRun::refused(format!(
            "{shown} is for {}, and the library for {ours}: give one for the same by --lib",
            elf.architecture
        )));
    }
    let Some(loader) = &elf.loader else {
        return match elf.is_shared && is_loader(file) {
            true => Ok(()),
            false => Err(NotRun::refused(format!(
                "{shown} is linked statically, so nothing can be preloaded: link it without \
                 -static (a program in Go has an allocator of its own)"
            ))),
        };
    };
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    match FOREIGN_LOADERS.iter().find(|(start, _)| name.starts_with(start)) {
        None => Ok(()),
        Some((_, libc)) => Err(NotRun::refused(format!(
            "{shown} uses {libc} (its loader is {}), and the library needs the GNU C library: \
             build the program for that",
            loader.display()
        ))),
    }
}

/// Returns true if `file` has the name of the GNU loader, which runs the program that its arguments
/// name.
fn is_loader(file: &Path) -> bool {
    let file = fs::canonicalize(file).unwrap_or_else(|_| PathBuf::from(file));
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-linux") || name.starts_with("ld-2.") || name == "ld.so"
}
