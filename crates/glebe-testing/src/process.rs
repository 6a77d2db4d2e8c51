//! A test that runs as a process of its own: the test program, run again for that one test.

use std::env;
use std::process::Command;
use std::sync::OnceLock;

/// Set in a process that [`child_of`] started, to the name of its test.
const CHILD: &str = "GLEBE_TEST_CHILD";
/// Set in a process that [`alone!`](crate::alone) started, to the name of its test.
const ALONE: &str = "GLEBE_TEST_ALONE";

/// Returns true in a process that [`child_of`] started.
pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Returns a command that runs the test of that name, and no other, in a new process.
///
/// # Panics
/// If this program has no such test: the process would run none, and succeed.
pub fn child_of(test: &str) -> Command {
    marked(CHILD, test)
}

fn marked(mark: &str, test: &str) -> Command {
    assert!(all_tests().lines().any(|name| name == test), "no test of this program: {test}");
    let mut command = this_program();
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(mark, test);
    command
}

fn this_program() -> Command {
    Command::new(env::current_exe().expect("this program"))
}

/// The names of this program's tests, one a line.
fn all_tests() -> &'static str {
    static ALL: OnceLock<String> = OnceLock::new();
    ALL.get_or_init(|| {
        let output = this_program().args(["--list", "--format=terse"]).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "a list of tests: {}", output.status);
        String::from_utf8_lossy(&output.stdout).replace(": test\n", "\n")
    })
}

/// Runs the command and returns true if it succeeded.
///
/// # Panics
/// If the command cannot be started.
pub fn passes(command: &mut Command) -> bool {
    command.status().expect("the program starts").success()
}

/// For [`alone!`](crate::alone): runs the test that encloses `T` in a new process, unless this is
/// a process of that test already. Returns true if the caller should go on with the test.
#[doc(hidden)]
pub fn is_alone<T>(_: &T) -> bool {
    let name = std::any::type_name::<T>();
    // `program::module::test::here`, where the harness says `module::test`.
    let name = name.strip_suffix("::here").expect("the function of the macro");
    let (_, test) = name.split_once("::").expect("a function of a program");
    if [ALONE, CHILD].iter().any(|mark| env::var_os(mark).is_some_and(|name| name == test)) {
        return true;
    }
    let output = marked(ALONE, test).output().expect("the program starts");
    // Printed here, the harness shows it if the test fails.
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}, in a process of its own: {}", output.status);
    false
}

/// Gives the test that begins with it a process of its own.
///
/// Use it where a test counts or changes what the whole process has: mappings, descriptors,
/// limits, signal handlers. Everything after it runs in that process alone;
/// [`process::is_child`](crate::process::is_child) returns false there.
#[macro_export]
macro_rules! alone {
    () => {
        fn here() {}
        if !$crate::process::is_alone(&here) {
            return;
        }
    };
}
