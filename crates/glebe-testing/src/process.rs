//! Runs a test in its own process: the test program, started again for that one test.

use std::env;
use std::process::Command;
use std::sync::OnceLock;

const CHILD: &str = "GLEBE_TEST_CHILD";
const ALONE: &str = "GLEBE_TEST_ALONE";

pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Returns a command that runs only the test `test`.
///
/// # Panics
/// If this program has no such test, because the process would then run no test and succeed.
pub fn child_of(test: &str) -> Command {
    marked(CHILD, test)
}

/// Runs all tests again whose names contain one of `names`, with a variable set. Passes over tests
/// whose names contain one of `but`.
///
/// # Panics
/// If one fails, or there is none.
pub fn run_again(names: &[&str], but: &[&str], (variable, value): (&str, &str)) {
    let mut command = this_program();
    command.args(names).arg("--test-threads=1").env(variable, value);
    for name in but {
        command.args(["--skip", name]);
    }
    let output = command.output().expect("this program");
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "with {variable}={value}: {said}{wrong}");
    assert!(!said.contains(" 0 passed"), "no test has a name of {names:?}: {said}");
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

fn all_tests() -> &'static str {
    static ALL: OnceLock<String> = OnceLock::new();
    ALL.get_or_init(|| {
        let output = this_program().args(["--list", "--format=terse"]).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "a list of tests: {}", output.status);
        String::from_utf8_lossy(&output.stdout).replace(": test\n", "\n")
    })
}

pub fn passes(command: &mut Command) -> bool {
    command.status().expect("the program starts").success()
}

/// For [`alone!`](crate::alone): runs the test that encloses `T` in a new process, unless this
/// process was started for it. Returns true if the caller should go on with the test.
#[doc(hidden)]
pub fn is_alone<T>(_: &T) -> bool {
    let name = std::any::type_name::<T>();
    // `T` is `program::module::test::here`; the harness names the test `module::test`.
    let name = name.strip_suffix("::here").expect("the function of the macro");
    let (_, test) = name.split_once("::").expect("a function of a program");
    if [ALONE, CHILD].iter().any(|mark| env::var_os(mark).is_some_and(|name| name == test)) {
        return true;
    }
    let output = marked(ALONE, test).output().expect("the program starts");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}, in a process of its own: {}", output.status);
    false
}

/// Gives the test that begins with this macro its own process.
///
/// For tests that count or change state of the whole process: mappings, descriptors, limits, signal
/// handlers. [`process::is_child`](crate::process::is_child) returns false in the new process.
#[macro_export]
macro_rules! alone {
    () => {
        fn here() {}
        if !$crate::process::is_alone(&here) {
            return;
        }
    };
}
