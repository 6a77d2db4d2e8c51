//! The examples of each subcommand, for `--help` and the manual pages.

pub(crate) type Entry = (&'static str, &'static str);

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
            ("glebe serve -m 512", "A cache of 512 MiB at 127.0.0.1:11211."),
            ("glebe serve -s /run/cache.sock", "At a Unix socket only."),
            ("glebe serve --leases -m 1024", "A cache whose memory other programs can lease."),
            (
                "glebe serve --memcached --config /etc/glebe-serve.toml",
                "Options from a file that has, say, memory-limit = 512 and threads = 2.",
            ),
        ],
        "glebe-lease" => &[
            (
                "glebe lease 256M -- python3 page.py",
                "A program with one open file of 256 MiB, zeroed huge pages.",
            ),
            ("glebe lease --contiguous 64M -- ./dma", "In one physical run."),
        ],
        "glebe-lend" => &[
            (
                "glebe lend --mooncake master:50051 --share 8G",
                "Up to 8 GiB of idle memory, in segments of 256 MiB.",
            ),
            ("glebe lend status", "What is lent now, and what was taken back."),
        ],
        "glebe-lend-status" => &[
            ("glebe lend status --openmetrics", "For Prometheus."),
            ("glebe lend status --json | jq .statistics.recall_p99_ns", "Recalls: 99 of 100."),
        ],
        "glebe-leases" => &[
            ("glebe leases --watch", "Who holds what, every two seconds."),
            ("glebe leases --json | jq 'map(select(.cache|not).bytes) | add'", "All leased bytes."),
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

const RECLAIM: &[Entry] = &[
    ("glebe reclaim /dev/shm/tiles", "While memory of the group of this process is short."),
    (
        "glebe reclaim --cgroup /sys/fs/cgroup/render --quota 256M /run/render/cache",
        "From outside of the group whose processes use the file; tells of large pins.",
    ),
    ("glebe reclaim --dry-run --once 1G /dev/shm/tiles", "What would go of 1 GiB, by priority."),
    ("glebe reclaim --once 1G /proc/4711/fd/5", "1 GiB of a memfd, now."),
];

/// Returns the examples of the page `glebe-SUBCOMMAND`.
pub(crate) fn examples(page: &str) -> &'static [Entry] {
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
            ("glebe contig map --json | jq .uses_bytes", "The bytes of each use, for a program."),
        ],
        "glebe-demo" => &[
            ("glebe demo --quick", "Some 10 seconds."),
            ("glebe demo --size 1.5G --json demo.json ~/src", "Files of ~/src in 1.5 GiB."),
        ],
        "glebe-top" => &[
            ("glebe top", "Until q is pressed."),
            ("glebe top --once --sort caches", "Once, as text."),
            ("glebe top --filter web", "Only processes and leases with \"web\" in their name."),
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
        "glebe-serve" | "glebe-recall" | "glebe-lease" | "glebe-leases" | "glebe-lend"
        | "glebe-lend-status" => examples_of_serve(page),
        "glebe-run" => RUN,
        "glebe-reclaim" => RECLAIM,
        _ => examples_of_bank(page),
    }
}
