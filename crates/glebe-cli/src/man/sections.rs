//! Writes the sections that clap does not generate: examples, files, related pages. Source:
//! man-pages(7), groff_man(7).

use std::fmt::Write;

use clap::Command;

use crate::examples::{examples, Entry};

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
    "Where processes serve the statistics of their reserves, each by a socket. Services \
     glebe-serve use /run/glebe-serve/glebe, or the same below /run/user/UID.",
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

const LEASES: Entry = (
    "/run/glebed/leases",
    "The socket for leases of a server of root; other users' servers have glebed/leases in \
     $XDG_RUNTIME_DIR.",
);

const LENDER: Entry = (
    "PID.lend",
    "Beside the sockets of statistics: the socket for `glebe lend status`, for its user alone.",
);

const LIBRARY: Entry = (
    "libglebe_malloc.so",
    "The allocator: beside the command, or from there in ../lib, ../lib/ARCH-linux-gnu, ../lib64.",
);

const HUGE: Entry = ("libglebe_huge.so", "Answers requests for huge pages; in the same places.");

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
        "glebe-top" => &[SERVED, LEASES],
        "glebe-serve" => &[SERVED, CONTROL, LEASES],
        "glebe-recall" => &[SERVED, CONTROL],
        "glebe-lease" | "glebe-leases" => &[LEASES],
        "glebe-lend" | "glebe-lend-status" => &[LEASES, SERVED, LENDER],
        "glebe-run" => &[LIBRARY, HUGE, LEASES],
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
        "glebe-lease" | "glebe-leases" => &["mmap(2)", "unix(7)"],
        "glebe-lend" | "glebe-lend-status" => &["python3(1)", "unix(7)"],
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

/// Appends the parent page and the parent's other subcommands, or three subcommands for `glebe`.
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
