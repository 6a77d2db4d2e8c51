//! The sections that clap does not generate: examples, files, related pages. Source: man-pages(7),
//! groff_man(7).

use std::fmt::Write;

use clap::Command;

type Entry = (&'static str, &'static str);

const LOCK: Entry = (
    "/run/glebe/hugetlb.lock",
    "Held while pages of a pool are found or freed in order; in it, what is raised for that \
     moment. Of a user other than root it is $XDG_RUNTIME_DIR/glebe/hugetlb.lock.",
);
const POOLS: Entry =
    ("/sys/kernel/mm/hugepages/", "The pools of huge pages, a directory for each size of page.");
const FRAMES: Entry = (
    "/proc/kpageflags, /proc/kpagecount",
    "What each page frame is used for; readable with CAP_SYS_ADMIN.",
);
const SERVED: Entry = (
    "$XDG_RUNTIME_DIR/glebe, /run/glebe, /run/user/UID/glebe",
    "Where processes serve the statistics of their reserves, each by a socket.",
);

const CONTROL: Entry = (
    "PID.NUMBER.control",
    "Beside the socket of the statistics: the control socket of `glebe serve`, mode 0660.",
);
const GROUP: Entry = (
    "/sys/fs/cgroup/.../memory.*",
    "Limits and usage of the memory cgroups, of version 1 or 2; /proc/meminfo for the machine.",
);
const STALLS: Entry = (
    "/proc/pressure/memory",
    "Tells of stalls for want of memory, where neither a group of version 2 nor \
     MEMORY_PRESSURE_WATCH does.",
);
const BLOCKS: Entry = (
    "/sys/devices/system/memory/memory*/state",
    "Takes memory blocks off line and puts them back.",
);
const RECORD: Entry = (
    "/run/glebe/blocks",
    "The blocks that are movable because of glebe, with their owners. Every glebe command of root \
     gives back those whose owner has ended, except `glebe run`.",
);

fn examples_of_bank(page: &str) -> &'static [Entry] {
    match page {
        "glebe-bank" => &[
            ("glebe bank add 4G", "Some 4 GiB that serve programs until a run is drawn from them."),
            ("glebe bank status", "How much of it is free, in use and drawn."),
        ],
        "glebe-bank-add" => &[
            ("glebe bank add 4G --dry-run", "Which memory blocks would be taken."),
            ("glebe bank add 1G", "Eight blocks of 128 MiB, side by side where that can be."),
        ],
        "glebe-bank-status" => &[
            ("glebe bank status --json | jq .bank.free_bytes", "For programs."),
            ("glebe bank status", "The bank, and blocks that processes have for themselves."),
        ],
        "glebe-bank-drop" => &[
            ("glebe bank drop 1G", "The blocks with the fewest pages in use first."),
            ("glebe bank drop", "All of it."),
        ],
        _ => &[],
    }
}

fn examples_of_serve(page: &str) -> &'static [Entry] {
    match page {
        "glebe-serve" => &[
            ("glebe serve --memcached -m 512", "A cache of 512 MiB at 127.0.0.1:11211."),
            ("glebe serve --memcached -s /run/cache.sock", "At a Unix socket alone."),
            (
                "glebe serve --memcached --config /etc/glebe-serve.toml",
                "Options from a file that has, say, memory-limit = 512 and threads = 2.",
            ),
        ],
        "glebe-recall" => &[
            (
                "glebe recall 256M --for 10s",
                "First class takes that much of the memory that `glebe serve` caches in.",
            ),
            ("glebe recall 1G --for 1m --control /run/cache.control", "In one server of several."),
        ],
        _ => &[],
    }
}

const RUN: &[Entry] = &[
    ("glebe run --malloc -- python3 load.py", "Python, with the allocator of glebe."),
    (
        "glebe run --malloc --stats=json:/tmp/%p.json --signal USR2 -- redis-server",
        "Statistics as JSON when it ends and after `kill -USR2`, a file for each process.",
    ),
    (
        "glebe run --malloc --option thread=off -- make -j4",
        "Every program that make starts, without the thread that marks idle memory.",
    ),
];

const LIBRARY: Entry = (
    "libglebe_malloc.so",
    "The allocator: beside the command, or from there in ../lib, ../lib/ARCH-linux-gnu, ../lib64.",
);

const RECLAIM: &[Entry] = &[
    ("glebe reclaim /dev/shm/tiles", "While memory of the group of this process is short."),
    (
        "glebe reclaim --cgroup /sys/fs/cgroup/render --quota 256M /run/render/cache",
        "From outside of the group whose processes use the file; tells of large pins.",
    ),
    ("glebe reclaim --dry-run --once 1G /dev/shm/tiles", "What would go of 1 GiB, by priority."),
    ("glebe reclaim --once 1G /proc/4711/fd/5", "1 GiB of a memfd, now."),
];

pub(super) fn examples(page: &str) -> &'static [Entry] {
    match page {
        "glebe" => &[
            ("glebe probe", "What of the kernel can be used here."),
            ("glebe demo --quick", "A reserve at work, in some 10 seconds."),
            ("glebe contig explain 1G", "Whether one run of 1 GiB could be had now."),
        ],
        "glebe-probe" => &[
            ("glebe probe", "Every mechanism; where one is missing, why, and how it is had."),
            (
                "glebe probe --json | jq '.mechanisms[] | select(.state != \"yes\") | .remedy'",
                "What would turn the missing ones on.",
            ),
        ],
        "glebe-contig" => &[
            ("glebe contig status", "The pools, free memory in large blocks, and pins."),
            ("glebe contig map", "The machine's physical memory as text (root)."),
        ],
        "glebe-contig-status" => &[("glebe contig status --json", "The same for a program.")],
        "glebe-contig-explain" => &[
            ("glebe contig explain 64M", "Whether one run of 64 MiB could be had now, and how."),
            (
                "glebe contig explain 1.5G --try --certificate run.json",
                "Take it for a moment, and keep the proof of the frames.",
            ),
        ],
        "glebe-contig-reserve" => &[
            ("glebe contig reserve 256M --dry-run", "The file and the number; nothing is written."),
            (
                "glebe contig reserve 2G --page 1G --at-boot",
                "What the kernel's command line needs, and a systemd unit.",
            ),
        ],
        "glebe-contig-release" => &[
            ("glebe contig release 256M", "Take back what glebe contig reserve 256M added."),
            ("glebe contig release all --page 1G", "Every free page of 1 GiB."),
        ],
        "glebe-contig-map" => &[
            ("glebe contig map", "A character for each so many MiB, as wide as the terminal."),
            ("glebe contig map memory.svg", "The same as a picture."),
        ],
        "glebe-demo" => &[
            ("glebe demo --quick", "Some 10 seconds."),
            ("glebe demo --size 1.5G --json demo.json ~/src", "Files of ~/src in 1.5 GiB."),
        ],
        "glebe-stats" => &[
            ("glebe stats --watch", "Every 2 seconds, until it is interrupted."),
            ("glebe stats --openmetrics --pid 4711", "For Prometheus, of one process."),
        ],
        "glebe-zpool" => {
            &[("glebe zpool classes --page 4K --chain 4", "The classes of the kernel's zsmalloc.")]
        }
        "glebe-man" => &[("glebe man ~/.local/share/man/man1", "Where man looks for a user.")],
        "glebe-completions" => &[(
            "glebe completions bash > ~/.local/share/bash-completion/completions/glebe",
            "For bash, from the next shell on.",
        )],
        "glebe-serve" | "glebe-recall" => examples_of_serve(page),
        "glebe-run" => RUN,
        "glebe-reclaim" => RECLAIM,
        _ => examples_of_bank(page),
    }
}

fn files(page: &str) -> &'static [Entry] {
    match page {
        "glebe" => &[LOCK, SERVED],
        "glebe-contig" | "glebe-contig-reserve" | "glebe-contig-release" => &[POOLS, LOCK],
        "glebe-contig-status" | "glebe-contig-explain" => &[POOLS, LOCK, FRAMES],
        "glebe-contig-map" => &[FRAMES],
        "glebe-bank" | "glebe-bank-add" | "glebe-bank-status" | "glebe-bank-drop" => {
            &[BLOCKS, RECORD, LOCK]
        }
        "glebe-demo" | "glebe-stats" => &[SERVED],
        "glebe-serve" | "glebe-recall" => &[SERVED, CONTROL],
        "glebe-run" => &[LIBRARY],
        "glebe-probe" => &[POOLS],
        "glebe-reclaim" => &[GROUP, STALLS],
        _ => &[],
    }
}

/// Returns pages of other projects for SEE ALSO.
fn others(page: &str) -> &'static [&'static str] {
    match page {
        "glebe-contig" | "glebe-contig-reserve" | "glebe-contig-release" => &["proc(5)", "mmap(2)"],
        "glebe-contig-status" | "glebe-contig-explain" | "glebe-contig-map" => &["proc(5)"],
        "glebe-probe" => &["capabilities(7)", "seccomp(2)", "userfaultfd(2)"],
        "glebe-run" => &["ld.so(8)", "malloc(3)", "execve(2)", "madvise(2)"],
        "glebe-serve" => &["memcached(1)", "systemd.socket(5)"],
        "glebe-reclaim" => &["memfd_create(2)", "cgroups(7)", "systemd.service(5)"],
        _ => &[],
    }
}

/// Returns the additional sections in roff. `tree` is the root command.
pub(super) fn of(page: &str, tree: &Command) -> String {
    let mut text = String::new();
    for (heading, entries) in [("EXAMPLES", examples(page)), ("FILES", files(page))] {
        if entries.is_empty() {
            continue;
        }
        let _ = writeln!(text, ".SH {heading}");
        for (what, about) in entries {
            let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(what), escaped(about));
        }
    }
    let mut beside = vec![];
    pages_beside(page, tree, &mut beside);
    let named = beside.iter().map(|name| format!("{name}(1)"));
    let all = named.chain(others(page).iter().map(|name| (*name).to_owned()));
    let shown: Vec<String> = all
        .map(|name| {
            let (name, section) = name.split_at(name.len() - "(1)".len());
            format!("\\fB{}\\fR{section}", escaped(name))
        })
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(text, ".SH \"SEE ALSO\"\n{}", shown.join(",\n"));
    }
    text
}

/// Appends the parent page and its other subcommands, or for `glebe` three main pages.
fn pages_beside(page: &str, tree: &Command, beside: &mut Vec<String>) {
    let above = page.rsplit_once('-').map(|(above, _)| above);
    if let Some(above) = above {
        beside.push(above.to_owned());
        let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
        let mut path = above.split('-').skip(1);
        let parent = path.try_fold(tree, |at, name| at.find_subcommand(name));
        let names = parent.into_iter().flat_map(Command::get_subcommands).filter(shown);
        let names = names.map(|command| format!("{above}-{}", command.get_name()));
        beside.extend(names.filter(|name| name != page));
    } else {
        beside.extend(["glebe-probe", "glebe-contig", "glebe-demo"].map(str::to_owned));
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('~', "\\(ti")
}
