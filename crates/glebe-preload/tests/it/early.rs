//! Tests calls before and after `main`, and by ending threads.

use std::process::Command;

use glebe_testing::Scratch;

use crate::built::{compile, has, library, preloaded, run, stderr, stdout};

const ALL: [&str; 4] = ["", "pages=off", "huge=off", "thread=off,stats=/dev/null"];

/// Preloads one copy of `early.c`'s library in front of the allocator, and links the program with a
/// second copy.
#[test]
fn constructors_and_destructors_of_others_allocate() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("early");
    let other = compile(&scratch, "early.c", &["-shared", "-fPIC"]);
    let behind = scratch.path().join("libbehind.so");
    std::fs::copy(&other, &behind).unwrap();
    let folder = scratch.path().display();
    let linked = [
        "-DPROGRAM".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        "-lbehind".to_owned(),
    ];
    let options: Vec<_> = linked.iter().map(String::as_str).collect();
    let front = scratch.path().join("libfront.so");
    std::fs::copy(&other, &front).unwrap();
    let program = compile(&scratch, "early.c", &options);
    for options in ALL {
        let mut command = preloaded(&program, options);
        let all = format!("{}:{}", front.display(), library().display());
        // Locking populates mimalloc's whole reservation, so the test lowers 1 GiB to 32 MiB.
        let reserve = ("MIMALLOC_ARENA_RESERVE", "32768");
        // Makes mimalloc give memory back at once, which the kernel refuses for locked memory.
        command.env("MIMALLOC_PURGE_DELAY", "0");
        let said = stdout(&run(command.env("LD_PRELOAD", all).env(reserve.0, reserve.1)));
        let count = |word: &str| said.lines().filter(|line| *line == word).count();
        for (word, times) in
            [("constructor", 2), ("destructor", 2), ("atexit", 1), ("key", 1), ("foreign", 1)]
        {
            assert_eq!(count(word), times, "{word} with {options:?}: {said}");
        }
        assert_eq!(count("locked") + count("unlocked"), 1, "{said}");
        if count("unlocked") > 0 {
            println!("skipped: locked memory ({options:?})");
        }
    }
}

#[test]
fn what_stands_in_for_the_allocators_calls_may_allocate() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("early");
    let built = compile(&scratch, "stand_ins.c", &["-DSTAND_INS", "-shared", "-fPIC"]);
    let other = scratch.path().join("libstand_ins.so");
    std::fs::rename(built, &other).unwrap();
    let program = compile(&scratch, "stand_ins.c", &[]);
    let (own, other) = (library().display(), other.display());
    let orders = [format!("{own}:{other}"), format!("{other}:{own}")];
    let runs_well = |order: &str, options: &str, name: &str, always: &str| {
        let mut command = preloaded(&program, options);
        command.env("LD_PRELOAD", order).env("MIMALLOC_PURGE_DELAY", "0");
        let said = command.env("STAND_INS", name).env("STAND_INS_ALWAYS", always);
        let said = stdout(&run(said));
        assert!(said.starts_with("wrong=0\n"), "{order}, {options:?}, {name} {always}: {said}");
        assert!(name != "all" || !said.ends_with("met=0\n"), "nothing was tested");
    };
    for order in &orders {
        for options in ["", "pages=off"] {
            for name in ["clock_gettime", "sysinfo", "all"] {
                runs_well(order, options, name, "");
            }
        }
    }
    // mmap is left out, because mimalloc may call it with a lock held.
    for name in ["clock_gettime", "mprotect", "madvise", "read", "pthread_mutex_lock"] {
        runs_well(&orders[0], "", name, "1");
    }
}

/// Each variable changes the start: the loader resolves all symbols or writes a report, or the C
/// library checks its heap.
#[test]
fn the_loader_calls_before_anything_has_begun() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("early");
    let program = compile(&scratch, "early.c", &["-DPROGRAM"]);
    for (name, value) in [("LD_BIND_NOW", "1"), ("LD_DEBUG", "statistics"), ("MALLOC_CHECK_", "3")]
    {
        let mut command = preloaded(&program, "");
        let said = stdout(&run(command.env(name, value).env("LD_DEBUG_OUTPUT", "/dev/null")));
        assert!(said.contains("key\n") && said.contains("atexit\n"), "{name}: {said}");
    }
}

#[test]
fn thread_local_objects_end_with_their_threads() {
    if !has("c++") {
        return;
    }
    let scratch = Scratch::readable("early");
    let program = compile(&scratch, "locals.cpp", &["-std=c++17"]);
    for options in ["", "pages=off", "age=1"] {
        assert_eq!(stdout(&run(&mut preloaded(&program, options))), "locals: ok\n", "{options}");
    }
}

#[test]
fn short_processes_of_a_shell() {
    let script = "for n in 1 2 3 4 5; do echo $n | cat | sort | tr 1-5 a-e; done; exit 3";
    let output = preloaded("/bin/sh", "").args(["-c", script]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("a\nb\nc\nd\ne\n", Some(3)));
    assert_eq!(stderr(&output), "");
}

#[test]
fn narrow_limits() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("early");
    let program = compile(&scratch, "early.c", &["-DPROGRAM"]);
    for limits in
        ["ulimit -v 200000", "ulimit -v 1000000", "ulimit -n 8", "ulimit -s 128", "exec 2>&-"]
    {
        let mut shell = Command::new("/bin/sh");
        let start =
            format!("{limits}; LD_PRELOAD={} exec {}", library().display(), program.display());
        let output = run(shell.args(["-c", &start]).env("GLEBE_MALLOC", "stats").current_dir("/"));
        assert!(stdout(&output).contains("atexit\n"), "{limits}: {output:?}");
    }
}
