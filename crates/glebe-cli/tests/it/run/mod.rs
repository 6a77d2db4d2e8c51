//! Tests that `glebe run` sets a program's environment, and refuses programs in which the
//! allocator's library would have no effect. Except in `allocator.rs`, the library is empty.

mod allocator;
mod bad_input;
mod contig;
mod environment;
mod library;
mod lookup;
mod process;
mod refusals;
mod scripts;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use glebe_testing::Scratch;

const NOBODY: u32 = 65_534;
const LIBRARY: &str = "libglebe_malloc.so";
const MAPS: &str = "/proc/self/maps";

/// A folder readable by everybody, with the command in `bin`.
struct Place(Scratch);

impl Place {
    fn new() -> Self {
        let place = Self(Scratch::readable("run"));
        fs::create_dir(place.path("bin")).unwrap();
        place.copy(env!("CARGO_BIN_EXE_glebe"), "bin/glebe");
        place
    }

    /// Makes a folder `bin` with the command and a library. Returns `None` without a compiler.
    fn with_library() -> Option<Self> {
        let place = Self::new();
        place.add_library("bin")?;
        Some(place)
    }

    fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.0.path().join(name.as_ref())
    }

    fn library(&self) -> PathBuf {
        self.path("bin").join(LIBRARY)
    }

    fn add_library(&self, folder: &str) -> Option<PathBuf> {
        let path = self.path(folder).join(LIBRARY);
        fs::create_dir_all(self.path(folder)).unwrap();
        fs::write(&path, stand_in()?).unwrap();
        Some(path)
    }

    fn compile(&self, name: &str, options: &[&str]) -> Option<PathBuf> {
        let path = self.path(name);
        cc("int main(void) { return 0; }", &path, options).then_some(path)
    }

    /// Writes a file that everybody may execute.
    ///
    /// Another process writes the file, because a forked child of this process could hold the file
    /// open for writing, and such a file cannot run.
    fn write(&self, name: impl AsRef<OsStr>, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        let mut shell = Command::new("sh");
        shell.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(&path);
        let mut child = shell.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(contents.as_ref()).unwrap();
        assert!(child.wait().unwrap().success(), "{path:?}");
        path
    }

    fn copy(&self, from: &str, name: &str) -> PathBuf {
        let path = self.path(name);
        let copied = Command::new("cp").arg("-L").arg(from).arg(&path).status().unwrap();
        assert!(copied.success(), "{path:?}");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn cat(&self, name: &str) -> PathBuf {
        let cat = ["/usr/bin/cat", "/bin/cat"].into_iter().find(|path| Path::new(path).exists());
        self.copy(cat.expect("cat"), name)
    }

    fn command(&self, arguments: &[&OsStr]) -> Command {
        let mut command = Command::new(self.path("bin/glebe"));
        command.arg("run").args(arguments).current_dir(self.0.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn malloc(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
        let mut command = self.command(&["--malloc".as_ref(), "--".as_ref(), program.as_ref()]);
        command.args(arguments);
        command
    }
}

fn cc(source: &str, to: &Path, options: &[&str]) -> bool {
    let from = to.with_extension("c");
    fs::write(&from, source).unwrap();
    let output = Command::new("cc").args(options).arg("-o").arg(to).arg(&from).output();
    let said = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(e) => e.to_string(),
    };
    println!("skipped: cc {options:?}: {}", said.lines().next().unwrap_or_default());
    false
}

fn stand_in() -> Option<&'static [u8]> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let build = || {
        let place = Place::new();
        let path = place.path("stand-in.so");
        cc("int stand_in;", &path, &["-shared", "-fPIC"]).then(|| fs::read(&path).unwrap())
    };
    BUILT.get_or_init(build).as_deref()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = said(&output);
    assert!(output.status.success() && err.is_empty(), "{command:?}: {output:?}");
    out
}

/// Asserts that `command` ends with `status` and runs no program. Returns the error line.
fn refused(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {output:?}");
    assert!(out.is_empty() && err.starts_with("glebe: "), "{output:?}");
    assert_eq!(err.lines().count(), 1, "{err}");
    err
}

/// Returns true if LD_PRELOAD puts the library into `program`, which prints its maps.
fn takes_library(library: &Path, program: &mut Command) -> bool {
    let output = program.arg(MAPS).env("LD_PRELOAD", library).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    said(&output).0.contains(library.to_str().unwrap())
}

fn as_nobody(command: &mut Command) -> Option<&mut Command> {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: as uid {NOBODY} (the caller is not root)");
        return None;
    }
    Some(command.uid(NOBODY).gid(NOBODY))
}
