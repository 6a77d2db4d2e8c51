//! A test that runs as a process of its own: the test program, run again for that one test.

use std::process::Command;

/// Set in such a process to the name of its test.
const MARK: &str = "GLEBE_TEST_CHILD";

/// Returns true in a process that [`child_of`] started.
pub fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Returns a command that runs the test of that name, and no other, in a new process.
///
/// # Panics
/// If the kernel does not say which program this is.
pub fn child_of(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(MARK, test);
    command
}

/// Runs the command and returns true if it succeeded.
///
/// # Panics
/// If the command cannot be started.
pub fn passes(command: &mut Command) -> bool {
    command.status().expect("the program starts").success()
}

/// For [`alone!`](crate::alone): runs the test that encloses `T` in a new process, unless this is
/// that process already. Returns true if the caller should go on with the test.
#[doc(hidden)]
pub fn is_alone<T>(_: &T) -> bool {
    let name = std::any::type_name::<T>();
    // `program::module::test::here`, where the harness says `module::test`.
    let name = name.strip_suffix("::here").expect("the function of the macro");
    let (_, test) = name.split_once("::").expect("a function of a program");
    if std::env::var_os(MARK).is_some_and(|mark| mark == test) {
        return true;
    }
    let output = child_of(test).output().expect("the program starts");
    // For the harness, which shows what a test printed if it fails.
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}, in a process of its own: {}", output.status);
    false
}

/// Gives the test that begins with it a process of its own.
///
/// Use it where a test counts or changes what the whole process has: mappings, descriptors,
/// limits, signal handlers. Everything after it runs in that process alone.
#[macro_export]
macro_rules! alone {
    () => {
        fn here() {}
        if !$crate::process::is_alone(&here) {
            return;
        }
    };
}
