"""The programs. Each case runs in a place and returns text that must be equal with another malloc.
The text leaves out times and folders."""

import glob
import os
import pathlib
import re
import shutil

from programs.place import Failed, NOBODY, Server, Skipped, SOURCES, needed


def loaded(place):
    maps = place.run("cat", "/proc/self/maps")
    if place.library and place.library.name not in maps:
        raise Failed(f"a program has not loaded {place.library}")
    return "its library"


CPP_FILES = ["threads.cpp", "blocks.cpp", "blocks.h"]


def cargo(place):
    """Builds and runs a crate with a library, a build script, a derive and threads."""
    home = pathlib.Path(os.environ.get("HOME", "/nonexistent"))
    homes = {name: os.environ.get(name, str(home / folder))
             for name, folder in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")]}
    needed("cargo", "cargo")
    if not os.path.isdir(homes["CARGO_HOME"]) or place.circumstance.uid is not None:
        raise Skipped("cargo's home is another user's")
    place.write("crate/Cargo.toml", """[package]
name = "tiny"
version = "0.1.0"
edition = "2021"
[dependencies]
inner = { path = "inner" }
""")
    place.write("crate/build.rs", """fn main() {
    println!("cargo::rustc-env=MADE={}", (1..2000).map(|n| n.to_string()).collect::<String>().len());
}""")
    place.write("crate/src/main.rs", """use std::collections::BTreeMap;
fn main() {
    let workers: Vec<_> = (0..4).map(|seed| std::thread::spawn(move || {
        let mut words = BTreeMap::<u64, Vec<String>>::new();
        for n in 0..20_000u64 {
            words.entry(n * seed % 777).or_default().push(inner::Word { n }.to_string());
        }
        words.values().flatten().map(String::len).sum::<usize>()
    })).collect();
    let sums: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    println!("{sums:?} {}", env!("MADE"));
}""")
    place.write("crate/inner/Cargo.toml", """[package]
name = "inner"
version = "0.1.0"
edition = "2021"
""")
    place.write("crate/inner/src/lib.rs", """pub struct Word { pub n: u64 }
impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "word {}", self.n) }
}""")
    release = ["--release"] if place.scale > 1 else []
    place.run("cargo", "build", "--offline", "--quiet", "--jobs", "2", *release,
              "--manifest-path", "crate/Cargo.toml", "--target-dir", "tmp/target", **homes)
    said = place.run(*glob.glob(str(place.folder / "tmp/target/*/tiny")))
    # Removes files whose names have hashes in them.
    shutil.rmtree(place.folder / "tmp/target")
    place.run("true")
    return said


def c_sources(files, functions):
    """Yields (name, text) of the files of a C program."""
    calls = []
    for file in range(files):
        lines = ["#include <stdio.h>", "#include <string.h>", "#include <stdlib.h>"]
        for nth in range(functions):
            name = f"f{file}_{nth}"
            cases = "".join(f"case {k}: x ^= {k * 7919 + nth}u * y; break;\n" for k in range(24))
            lines.append(f"unsigned {name}(unsigned x, unsigned y) {{\n"
                         f"  char text[64]; snprintf(text, sizeof text, \"%u/%u\", x, y);\n"
                         f"  for (unsigned i = 0; i < y % 17; i++)\n    switch ((x + i) % 24) {{\n"
                         f"{cases}    default: x += (unsigned)strlen(text);\n    }}\n"
                         f"  return x * 2654435761u + y;\n}}")
            calls.append(name)
        yield f"file{file}.c", "\n".join(lines) + "\n"
    declared = "".join(f"unsigned {name}(unsigned, unsigned);\n" for name in calls)
    called = "".join(f"  x = {name}(x, x % 1000);\n" for name in calls)
    yield "main.c", (f"#include <stdio.h>\n{declared}int main(void) {{\n  unsigned x = 1;\n{called}"
                     '  printf("%u\\n", x);\n  return 0;\n}\n')


def gcc(place):
    """Compiles many files by make, two at a time, and links them plainly and with LTO. The objects
    must be equal to the byte."""
    needed("gcc", "gcc")
    needed("make", "make")
    names = []
    for name, text in c_sources(5 * place.scale, 30):
        place.write(name, text)
        names.append(name)
    objects = [name.replace(".c", ".o") for name in names]
    place.write("Makefile", f"all: {' '.join(objects)}\n\tgcc -o plain {' '.join(objects)}\n")
    place.run("make", "-s", "-j2", "CC=gcc", "CFLAGS=-O1 -g")
    place.run("gcc", "-O1", "-flto=2", "-o", "whole", *names[-3:], *objects[:-3])
    return "\n".join([place.run("./plain"), place.run("./whole"), place.digest(*objects)])


def gpp(place):
    needed("g++", "g++")
    for name in CPP_FILES:
        place.source(name)
    place.write("Makefile", "threads: threads.o blocks.o\n\tg++ -pthread -o $@ $^\n")
    place.run("make", "-s", "-j2", "CXX=g++", "CXXFLAGS=-std=c++17 -pthread")
    return place.digest("threads.o", "blocks.o")


def threads(place):
    files = [SOURCES / name for name in CPP_FILES if name.endswith(".cpp")]
    program = place.built("threads", needed("g++", "g++"), "-O1", "-std=c++17", "-pthread", *files)
    return place.run(program, place.scale)


def python(place):
    """Runs Python with malloc for all objects, and with a large scale also with Python's pools."""
    program = place.source("structures.py")
    said = place.run(python3(), program, place.scale, PYTHONMALLOC="malloc")
    if place.scale > 1:
        said += place.run(python3(), program, place.scale)
    return said


def python3():
    """Returns the system's Python, because another user may not be able to read a private one."""
    system = "/usr/bin/python3"
    return system if os.path.exists(system) else needed("python3", "python3")


def redis(place):
    """Runs a benchmark, fills the server, lets a forked child save it under writes, and reads it
    back."""
    needed("redis-server", "redis-server")
    socket = place.folder / "tmp/redis"
    server = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir",
              place.folder, "--logfile", place.folder / "log", "--enable-debug-command", "local"]

    def client(*command):
        said = place.run("redis-cli", "-s", socket, *command)
        if re.search("^(ERR|Could not)", said, re.MULTILINE):
            raise Failed(f"redis-cli {command[0]}: {said}")
        return said.strip()

    requests = 4000 * place.scale

    def benchmark(tests):
        said = place.run("redis-benchmark", "-s", socket, "-q", "-n", requests, "-r", "1000", "-P",
                         "8", "-d", "400", "-t", tests)
        if len(re.findall("requests per second", said)) < len(tests.split(",")):
            raise Failed(f"redis-benchmark: {said}")

    with Server(place, *server) as running:
        running.until(lambda: client("ping") == "PONG")
        benchmark("set,get,incr,lpush,lpop,sadd,hset,spop,zadd,mset")
        client("flushall")
        client("debug", "populate", 30_000 * place.scale, "key", 500)
        client("eval", "for n = 1, 20000 do redis.call('rpush', 'list' .. n % 99, n) end", 0)
        before = client("debug", "digest")
        client("bgsave")
        benchmark("set")
        running.until(lambda: "rdb_bgsave_in_progress:0" in client("info", "persistence"))
        if "rdb_last_bgsave_status:ok" not in client("info", "persistence"):
            raise Failed("BGSAVE failed")
        client("eval", "for n = 1, 5000 do redis.call('del', 'key:' .. n) end", 0)
    # The child saved the data as they were at the fork.
    with Server(place, *server) as running:
        running.until(lambda: client("ping") == "PONG")
        after = client("debug", "digest")
    if before != after:
        raise Failed(f"read back another data set: {before}, {after}")
    return before


QUERIES = """
create table rows as select n, md5(n::text) as text, n % 977 as kind
    from generate_series(1, {rows}) n;
create index on rows (text);
analyze rows;
set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
select count(*), sum(length(text)), max(text) from rows;
select md5(string_agg(text, ',' order by text)) from rows;
set work_mem = '64kB';
select md5(string_agg(a.text || b.n, ',' order by a.n, b.n)) from rows a join rows b on a.n = b.kind;
set jit_above_cost = 0; set jit_inline_above_cost = 0; set jit_optimize_above_cost = 0;
select kind % 7, count(*), sum(n * 2 + kind) from rows group by 1 order by 1;
do $$ begin for i in 1..50 loop begin perform 1 / 0; exception when others then null; end; end loop;
end $$;
delete from rows where n % 3 = 0;
vacuum full rows;
select count(*), sum(n) from rows;
"""


def postgres(place):
    """Makes a cluster, and runs pgbench and queries with parallel workers and compiled code."""
    if os.geteuid() == 0 and place.circumstance.uid is None:
        raise Skipped("PostgreSQL refuses root: see the same as another user")
    binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    found = binaries[-1] if binaries else shutil.which("postgres")
    if not found:
        raise Skipped("postgres is not installed: apt-get install postgresql")
    tools = pathlib.Path(found).resolve().parent
    data, sockets = place.folder / "data", place.folder / "tmp"
    # PGDATA is outside TMPDIR. The server itself removes its shared memory.
    place.run(tools / "initdb", "-D", data, "--no-sync", "-A", "trust", "-U", "tester", "-N")
    settings = {"fsync": "off", "log_min_messages": "panic", "unix_socket_directories": sockets,
                "listen_addresses": "", "max_connections": "20", "shared_buffers": "16MB"}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    ask = ["-h", sockets, "-U", "tester", "postgres"]
    script = place.write("queries.sql", QUERIES.format(rows=20_000 * place.scale))

    def ready():
        return place.run(tools / "pg_isready", "-q", "-d", "postgres", *ask[:-1]) == ""

    with Server(place, tools / "postgres", "-D", data, *options, end=2) as running:
        running.until(ready)
        said = place.run(tools / "psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", script, *ask)
        place.run(tools / "pgbench", "-q", "-i", "-s", "1", *ask)
        bench = place.run(tools / "pgbench", "-c", "4", "-j", "2", "-t", 50 * place.scale, *ask)
        if f"actually processed: {200 * place.scale}/" not in bench or "failed" not in bench:
            raise Failed(f"pgbench: {bench}")
        said += place.run(tools / "psql", "-qAtX", "-c", "select sum(abalance) = "
                          "(select sum(tbalance) from pgbench_tellers) from pgbench_accounts", *ask)
    # Removes files whose names are numbers of transactions.
    shutil.rmtree(data)
    # Messages of initdb, pgbench and a starting server have times in them.
    place.said_wrong = re.sub(r".*\d s[,)].*\n", "", place.said_wrong)
    return said


def java(place):
    """Compiles a program, and runs it with a heap too small to keep its garbage."""
    needed("javac", "default-jdk-headless")
    place.source("Threads.java")
    data = "-XX:-UsePerfData"
    place.run("javac", f"-J{data}", "Threads.java")
    collectors = ["-XX:+UseG1GC"] + ["-XX:+UseParallelGC", "-XX:+UseZGC"] * (place.scale > 1)
    return "".join(place.run("java", data, "-Xmx64m", collector, "-cp", place.folder, "Threads",
                             place.scale) for collector in collectors)


def node(place):
    needed("node", "nodejs")
    return place.run("node", place.source("buffers.js"), place.scale)


def perl(place):
    return place.run(needed("perl", "perl"), place.source("forks.pl"), place.scale)


def bash(place):
    return place.run(needed("bash", "bash"), place.source("forks.sh"), place.scale)


def sort(place):
    return place.shell(f"seq 1 {100_000 * place.scale} | awk '{{print $1 * 7919 % 100003, $1}}' >rows\n"
                       "sort -n --parallel=2 rows | cksum\nsort -S 1M --parallel=2 rows | cksum\n"
                       "sort -u -k1,1 rows | wc -l")


def git(place):
    needed("git", "git")
    for nth in range(60 * place.scale):
        place.write(f"work/folder{nth % 7}/file{nth}", f"line {nth}\n" * (nth * 13 % 500 + 1))
    who = {f"GIT_{one}_{what}": value for one in ("AUTHOR", "COMMITTER") for what, value in
           [("NAME", "tester"), ("EMAIL", "tester@localhost"), ("DATE", "1700000000 +0000")]}
    said = place.shell("""cd work
git init -q -b main .
git config gc.auto 0
git add . && git commit -q -m first
git checkout -q -b other
for nth in 1 2 3 4 5 6; do
    seq 1 $((nth * 1000)) >>"folder1/file$((nth * 7 + 1))"
    git commit -qam "step $nth"
done
git checkout -q main
echo more >>folder2/file2 && git commit -qam more
git merge -q -m merged other
git -c pack.threads=2 repack -adq --depth=20 --window=20
git fsck --full
git log --stat --format='%H %s' | cksum
git diff HEAD~1 | cksum
git grep -c 'line 4' | cksum
git archive HEAD | cksum
""", GIT_CONFIG_NOSYSTEM="1", **who)
    # Removes the packs, whose names depend on how the threads shared the work.
    shutil.rmtree(place.folder / "work/.git")
    return said


def tools(place):
    place.shell("mkdir tree && seq 1 400 | while read n; do seq 1 $n >tree/$n; done")
    said = place.shell("""find tree -type f -size +1k -printf '%p %s\\n' | sort | cksum
tar --sort=name --owner=0 --group=0 --mtime=@0 -cf tree.tar tree
cksum <tree.tar
mkdir back && tar -xf tree.tar -C back && diff -r tree back/tree
gzip -9c tree.tar | gzip -dc | cksum
bzip2 -c tree.tar | bzip2 -dc | cksum
grep -rc '^1' tree | sort | cksum
sed -n 's/1\\(.\\)/\\1-/gp' tree/* | cksum
""")
    commands = {
        "xz": "xz -1 -T2 -c tree.tar | xz -dc | cksum",
        "zstd": "zstd -q -T2 -c tree.tar | zstd -dqc | cksum",
        "openssl": "openssl dgst -sha256 tree.tar; openssl enc -aes-256-cbc -pbkdf2 -k word "
                   "-S 0011223344556677 -in tree.tar | openssl dgst -sha256; openssl prime 7919; "
                   "openssl genpkey -algorithm RSA -quiet | openssl pkey -check -noout",
        "sqlite3": "sqlite3 :memory: 'with recursive c(x) as (select 1 union all select x + 1 from "
                   "c where x < 30000) select sum(x), max(hex(x)), count(distinct x % 97) from c'",
        "jq": "seq 1 20000 | jq -s 'map({n: ., t: tostring}) | group_by(.n % 10) | map(length)' -c",
    }
    for tool, command in commands.items():
        if shutil.which(tool):
            said += f"{tool}: {place.shell(command)}"
    return said


CASES = {
    "loaded": loaded,
    "threads": threads,
    "python": python,
    "perl": perl,
    "bash": bash,
    "sort": sort,
    "tools": tools,
    "git": git,
    "gcc": gcc,
    "g++": gpp,
    "cargo": cargo,
    "redis": redis,
    "postgres": postgres,
    "java": java,
    "node": node,
}
# Cases small enough to run in every circumstance at each change.
EVERYWHERE = ["loaded", "threads", "python", "perl"]
# Cases that reserve more addresses than they use.
MUCH_ADDRESS_SPACE = ["java", "node"]
# The user of a case that refuses to run as root.
OTHERS = {"postgres": NOBODY}
