#!/usr/bin/env python3
"""Checks the form of the Rust files: lengths, headers, and words allowed in one place only.

Usage: shape.py [ROOT] | shape.py --self-test
Prints a line for each finding, and exits with 1 if any is an error; `note:` lines are advice.
Reads text, not syntax trees: rules about code see comments and literals as blanks.
"""

import pathlib
import re
import sys

FILE_SOFT, FILE_HARD = 400, 700  # lines without tests
FUNCTION_MAX = 70  # lines from `fn` to the closing brace
COLUMNS_MAX = 100

TOKEN = re.compile(
    r"""
      (?P<line>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>\b(?:b|c)?r(?P<hashes>\#*)")
    | (?P<str>(?:\b[bc])?"(?:[^"\\]|\\.)*")
    | (?P<char>(?:\bb)?'(?:[^'\\\n]|\\(?:u\{[^}]*\}|x..|.))')
    """,
    re.VERBOSE | re.DOTALL,
)


# The crates of the library.
LIBRARIES = re.compile(r"crates/glebe(?:-(?:os|vmap|contig|zpool|volatile))?/src(?=/)")


def part_of_library(path):
    """Returns the source folder of the library crate that has `path`; None for other files."""
    match = LIBRARIES.match(path)
    return match and match[0]


TEST_ATTRIBUTE = re.compile(
    r"#\[(?:test|cfg\("
    r"(?:test|loom|all\(test\b[^\]]*|any\((?:test|fuzzing)(?:,\s*(?:test|fuzzing))*\))"
    r"\))\]"
)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_only(source):
    """Returns `source` with blanks for comments, strings and characters; offsets stay."""
    out, at = [], 0
    while match := TOKEN.search(source, at):
        end = match.end()
        if match["block"]:
            depth = 1
            while depth and (edge := re.compile(r"/\*|\*/").search(source, end)):
                depth += 1 if edge[0] == "/*" else -1
                end = edge.end()
            end = end if depth == 0 else len(source)
        elif match["raw"]:
            close = source.find('"' + match["hashes"], end)
            end = len(source) if close < 0 else close + 1 + len(match["hashes"])
        out += [source[at : match.start()], blank(source[match.start() : end])]
        at = end
    return "".join(out) + source[at:]


def brace_end(code, open_at):
    """Returns the offset past the brace that closes the one at `open_at`."""
    depth = 0
    for at in range(open_at, len(code)):
        if code[at] == "{":
            depth += 1
        elif code[at] == "}":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(code)


def body_start(code, at):
    """Returns the offset of the `{` of the item that starts at `at`, or None if a `;` ends it."""
    depth = 0
    for here in range(at, len(code)):
        char = code[here]
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif depth == 0 and char in ";{":
            return here if char == "{" else None
    return None


def test_regions(code):
    """Returns the offsets of items built only for tests, fuzzing or models."""
    regions = []
    for match in TEST_ATTRIBUTE.finditer(code):
        if regions and match.start() < regions[-1][1]:
            continue
        start = body_start(code, skip_attributes(code, match.end()))
        end = brace_end(code, start) if start is not None else code.find(";", match.end()) + 1
        regions.append((match.start(), end))
    return regions


def skip_attributes(code, at):
    further = re.compile(r"\s*#\[[^\]]*\]")
    while match := further.match(code, at):
        at = match.end()
    return at


def test_modules(path, code):
    """Yields the paths, without `.rs`, of modules that `path` declares only for tests."""
    file = pathlib.PurePosixPath(path)
    is_root = file.stem in ("mod", "lib", "main")
    folder = file.parent if is_root else file.with_suffix("")
    for match in TEST_ATTRIBUTE.finditer(code):
        declared = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
        if module := declared.match(code, skip_attributes(code, match.end())):
            yield (folder / module[1]).as_posix()


def functions(code):
    """Yields (name, offset of `fn`, offset past its body) of every function with a body."""
    for match in re.finditer(r"\bfn\s+(\w+)", code):
        start = body_start(code, match.end())
        if start is not None:
            yield match[1], match.start(), brace_end(code, start)


def std_sync_use(code):
    """Yields offsets where code names the standard library's atomics or mutex."""
    for match in re.finditer(r"\b(?:std|core)\s*::\s*sync\s*::\s*(\w+|\{)", code):
        names = match[1]
        if names == "{":
            names = code[match.end() : brace_end(code, match.end() - 1)]
        if re.search(r"\b(?:atomic|Mutex|MutexGuard)\b", names):
            yield match.start()


def findings(path, source, test_only=()):
    """Yields (line, is it an error, text) for a file. `path` is relative to the root, with slashes.

    `test_only` holds the paths, without `.rs`, of modules that are built only for tests.
    """
    code = code_only(source)
    in_src = "/src/" in path
    library = part_of_library(path) is not None
    test_file = is_test_file(path, test_only)
    regions = [(0, len(source))] if test_file else test_regions(code)
    line_of = lambda at: source.count("\n", 0, at) + 1
    tested = lambda at: any(start <= at < end for start, end in regions)

    if in_src and not source.startswith("//!"):
        yield 1, True, "does not start with a `//!` header"
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield number, True, f"{len(line)} columns; at most {COLUMNS_MAX}"

    test_lines = sum(source.count("\n", start, end) for start, end in regions)
    lines = 0 if test_file else source.count("\n") - test_lines
    if lines > FILE_HARD:
        yield 1, True, f"{lines} lines without tests; at most {FILE_HARD}"
    elif lines > FILE_SOFT:
        yield 1, False, f"{lines} lines without tests; better at most {FILE_SOFT}"
    for name, start, end in functions(code):
        length = code.count("\n", start, end) + 1
        if length > FUNCTION_MAX and not tested(start):
            yield line_of(start), True, f"fn {name} has {length} lines; at most {FUNCTION_MAX}"

    for match in re.finditer(r"\b(?:TODO|FIXME|XXX)\b", source):
        yield line_of(match.start()), True, f"{match[0]}: leave nothing open"
    for match in re.finditer(r"\b(?:todo|unimplemented)\s*!", code):
        yield line_of(match.start()), True, f"{match[0]} left open"
    for match in re.finditer(r"#\s*!?\[\s*ignore\b", code):
        yield line_of(match.start()), True, "an ignored test; skip with a printed reason instead"
    if in_src and "/src/internal/" not in path and not path.startswith("crates/glebe-testing/"):
        for match in re.finditer(r"#\[doc\(hidden\)\]", code):
            item = skip_attributes(code, match.end())
            if not tested(match.start()) and not re.match(r"\s*pub mod internal\b", code[item:]):
                yield line_of(match.start()), True, "hidden outside the module `internal`"
    if library:
        yield from library_findings(path, source, code, line_of, tested)


def library_findings(path, source, code, line_of, tested):
    """Yields findings of the rules that hold only for the library's crates."""
    for match in re.finditer(r"(?<![\w.])4_?096(?![\d_.])", source):
        if not tested(match.start()):
            yield line_of(match.start()), True, "a page size as a number; it is read at run time"
    if not path.startswith("crates/glebe-os/src/internal/sys/"):
        for match in re.finditer(r"\blibc\s*::", code):
            yield line_of(match.start()), True, "libc outside sys/"
    yield from fault_points(path, code, line_of, tested)
    if path != "crates/glebe-os/src/internal/sync.rs":
        for start in std_sync_use(code):
            if not tested(start):
                yield line_of(start), True, "std's atomics or mutex outside sync.rs"


# Kernel calls that can fail, and calls on files through std.
KERNEL_CALL = re.compile(r"\blibc\s*::\s*(?:mmap|munmap|mprotect|mremap|madvise|flock|ioctl|syscall)\s*\(")
FILE_CALL = re.compile(
    r"\bstd\s*::\s*fs\s*::\s*[a-z]|(?<![\w:])fs\s*::\s*[a-z]|\bFile\s*::"
    r"|\.\s*(?:open|write_all|read_to_end|read_exact_at|metadata|exists)\s*\("
    r"|(?<!meta)\.\s*is_dir\s*\("
)
# Files without fault points, because a point takes a lock, which a signal handler and the program's
# own calls may not.
POINTLESS = ("sys/files/file.rs", "sys/processes/sigbus/fill.rs", "sys/processes/stand_in.rs")


def fault_points(path, code, line_of, tested):
    """Yields each function of `sys` that calls the kernel without a fault point, and each call on a
    file that does not use sys::file."""
    inside = path.partition("/src/")[2].removeprefix("internal/")
    if not inside.startswith("sys/") or inside.startswith(POINTLESS):
        return
    for name, start, end in functions(code):
        if KERNEL_CALL.search(code, start, end) and not tested(start):
            if not re.search(r"\b(?:point|answer|call)\s*\(", code[start:end]):
                yield line_of(start), True, f"fn {name} calls the kernel without a fault point"
    for match in FILE_CALL.finditer(code):
        if not tested(match.start()):
            yield line_of(match.start()), True, "a call on a file that passes sys::file by"


def is_test_file(path, test_only):
    own = {path.removesuffix(".rs"), *(p.as_posix() for p in pathlib.PurePosixPath(path).parents)}
    return path.endswith("/tests.rs") or "/tests/" in path or not own.isdisjoint(test_only)


def code_lines(source):
    """Counts the lines that are neither blank, comment nor test."""
    code = code_only(source)
    for start, end in reversed(test_regions(code)):
        code = code[:start] + blank(code[start:end]) + code[end:]
    return sum(bool(line.strip()) for line in code.splitlines())


def totals(sources, test_only):
    """Prints the length of each part: lines of code, and all lines with tests and comments."""
    parts = {}
    for path, source in sources.items():
        folder = pathlib.PurePosixPath(path).parts
        part = "/".join(folder[:2]) if folder[0] == "crates" else folder[0]
        part = part_of_library(path) or part
        code = 0 if is_test_file(path, test_only) else code_lines(source)
        sums = parts.setdefault(part, [0, 0])
        sums[0] += code
        sums[1] += source.count("\n")
    of_library = [sums for part, sums in parts.items() if part.endswith("/src")]
    library = [sum(sums[n] for sums in of_library) for n in (0, 1)]
    for part, (code, lines) in sorted(parts.items()):
        print(f"lines: {part}: {code} of code, {lines} in all")
    print(f"lines: the library: {library[0]} of code, {library[1]} in all")


TYPE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\b(?:struct|enum|union|trait)\s+(?P<name>[A-Z]\w*)")
# A private type of at most this many lines may share its name.
SMALL_TYPE = 10


def shared_names(sources, test_only):
    """Returns the names that several types of a crate have, by crate: {crate: {name: count}}."""
    types = {}
    for path, source in sources.items():
        if "/src/" not in path or is_test_file(path, test_only):
            continue
        code = code_only(source)
        regions = test_regions(code)
        for match in TYPE.finditer(code):
            if any(start <= match.start() < end for start, end in regions):
                continue
            start = body_start(code, match.end())
            end = brace_end(code, start) if start is not None else match.end()
            if match["public"] or code.count("\n", match.start(), end) + 1 > SMALL_TYPE:
                counts = types.setdefault(path.partition("/src/")[0], {})
                counts[match["name"]] = counts.get(match["name"], 0) + 1
    shared = {
        crate: {name: count for name, count in counts.items() if count > 1}
        for crate, counts in types.items()
    }
    return {crate: names for crate, names in sorted(shared.items()) if names}


def comment_words(sources):
    words = 0
    for path, source in sources.items():
        if part_of_library(path):
            comments = (match[0] for match in TOKEN.finditer(source) if match["line"])
            words += sum(len(re.findall(r"[A-Za-z]+", comment)) for comment in comments)
    return words


def check(root):
    files = sorted(
        file
        for top in ("crates", "bench", "fuzz")
        for file in (root / top).rglob("*.rs")
        if "target" not in file.relative_to(root).parts
    )
    sources = {file.relative_to(root).as_posix(): file.read_text() for file in files}
    test_only = {
        module
        for path, source in sources.items()
        for module in test_modules(path, code_only(source))
    }
    errors = 0
    for path, source in sources.items():
        for line, error, text in sorted(findings(path, source, test_only)):
            errors += error
            print(f"{'error' if error else 'note'}: {path}:{line}: {text}")
    totals(sources, test_only)
    print(f"words: the library: {comment_words(sources)} in comments")
    for crate, names in shared_names(sources, test_only).items():
        told = ", ".join(f"{name} {count}" for name, count in sorted(names.items()))
        print(f"names: {crate}: {sum(names.values())} types share one: {told}")
    print(f"shape: {len(files)} files, {errors} errors")
    return 1 if errors or not files else 0


def long_function(lines):
    return "//! x\nfn long() {\n" + "    a();\n" * (lines - 2) + "}\n"


LIBRARY = "crates/glebe/src/a.rs"
# (path, source, number of errors)
CASES = [
    (LIBRARY, "//! x\nfn f() {}\n", 0),
    (LIBRARY, "fn f() {}\n", 1),
    (LIBRARY, "//! x\n// " + "y" * COLUMNS_MAX + "\n", 1),
    (LIBRARY, "//! x\n" + "// y\n" * FILE_HARD, 1),
    (LIBRARY, "//! x\n#[cfg(test)]\nmod tests {\n" + "// y\n" * FILE_HARD + "}\n", 0),
    (LIBRARY, long_function(FUNCTION_MAX), 0),
    (LIBRARY, long_function(FUNCTION_MAX + 1), 1),
    ("crates/glebe/tests/a.rs", long_function(FUNCTION_MAX + 1), 0),
    (LIBRARY, "//! x\ntrait T { fn f(x: [u8; 4]); }\n" + "// y\n" * FUNCTION_MAX, 0),
    (LIBRARY, '//! x\nfn f() { g("{", \'{\', b\'{\', r#"{"{"#) }\n' + "// y\n" * FUNCTION_MAX, 0),
    (LIBRARY, "//! x\nfn f<'a>(x: &'a str) { /* { /* { */ */ }\n" + "// y\n" * FUNCTION_MAX, 0),
    (LIBRARY, "//! x\nconst P: u64 = 4096;\n", 1),
    (LIBRARY, "//! x\nconst P: u64 = 4_096u64;\n", 1),
    (LIBRARY, "//! x\nconst P: u64 = 14096;\n", 0),
    (LIBRARY, "//! x\n#[cfg(test)]\nmod tests { const P: u64 = 4096; }\n", 0),
    ("bench/src/a.rs", "//! x\nconst P: u64 = 4096;\n", 0),
    (LIBRARY, "//! x\n// TO" + "DO: more\n", 1),
    (LIBRARY, "//! x\nfn f() { to" + "do!() }\n", 1),
    (LIBRARY, "//! x\n#[doc(hidden)]\n#[inline]\npub fn f() {}\n", 1),
    ("crates/glebe-malloc/src/a.rs", "//! x\n#[doc(hidden)]\npub use k::Own;\n", 1),
    (LIBRARY, "//! x\n#[doc(hidden)]\npub mod internal;\n", 0),
    (LIBRARY, "//! x\n#[cfg(test)]\n#[doc(hidden)]\npub mod oracle;\n", 0),
    ("crates/glebe-os/src/internal/a.rs", "//! x\n#[doc(hidden)]\n#[macro_export]\nmacro_rules! m {}\n", 0),
    (LIBRARY, "//! x\nuse libc::c_int;\n", 1),
    (LIBRARY, "//! libc::mmap\n", 0),
    ("crates/glebe-os/src/internal/sys/a.rs", "//! x\nuse libc::c_int;\n", 0),
    ("crates/glebe-os/src/internal/sys/a.rs", "//! x\nfn f() { libc::munmap(a, b) }\n", 1),
    ("crates/glebe-os/src/internal/sys/a.rs", '//! x\nfn f() { point("munmap")?; libc::munmap(a, b) }\n', 0),
    ("crates/glebe-os/src/internal/sys/a.rs", '//! x\nfn f() { call("munmap", s, || libc::munmap(a, b)) }\n', 0),
    ("crates/glebe-os/src/internal/sys/a.rs", "//! x\nfn f() { fs::read(p) }\nfn g() { o.open(p) }\n", 2),
    ("crates/glebe-os/src/internal/sys/a.rs", "//! x\nfn f() { file::read(p) }\n", 0),
    ("crates/glebe-os/src/internal/sys/processes/sigbus/fill.rs", "//! x\nfn f() { libc::munmap(a, b) }\n", 0),
    (LIBRARY, "//! x\nuse std::sync::atomic::AtomicU64;\n", 1),
    (LIBRARY, "//! x\nuse std::sync::{Arc, Mutex};\n", 1),
    (LIBRARY, "//! x\nuse std::sync::{Arc, OnceLock};\n", 0),
    ("crates/glebe-os/src/internal/sync.rs", "//! x\nuse std::sync::Mutex;\n", 0),
    ("crates/glebe/tests/a.rs", "#[ignore = \"slow\"]\n#[test]\nfn f() {}\n", 1),
]


def self_test():
    """Checks that each rule finds what it forbids and passes what it allows."""
    wrong = 0
    for path, source, expected in CASES:
        found = [text for _, error, text in findings(path, source) if error]
        if len(found) != expected:
            wrong += 1
            print(f"self-test: {source[:60]!r}: expected {expected} errors, found {found}")
    for source, expected in (
        ("//! x\n\nfn f() {}\n", 1),
        ("fn f() {\n    /* a\n b */ g(); // c\n}\n", 3),
        ('fn f() { "\n" }\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n', 2),
        ("//! x\n#[cfg(loom)]\nmod m {\n    fn g() {}\n}\n#[cfg(not(loom))]\nfn h() {}\n", 2),
    ):
        if code_lines(source) != expected:
            wrong += 1
            print(f"self-test: {source!r}: {code_lines(source)} lines of code, not {expected}")
    declares = "#[cfg(any(test, fuzzing))]\n#[doc(hidden)]\npub mod oracle;\n"
    declares += "#[cfg(test)] mod t;\nmod b;\n"
    modules = list(test_modules(LIBRARY, declares))
    if modules != ["crates/glebe/src/a/oracle", "crates/glebe/src/a/t"]:
        wrong += 1
        print(f"self-test: test-only modules read as {modules}")
    in_oracle = ("crates/glebe/src/a/oracle.rs", "//! x\nconst P: u64 = 4096;\n")
    if len(list(findings(*in_oracle))) != 1 or list(findings(*in_oracle, modules)):
        wrong += 1
        print("self-test: a test-only module is not taken for one")
    print(f"shape: self-test, {len(CASES) + 2} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    here = pathlib.Path(__file__).resolve().parent.parent
    sys.exit(check(pathlib.Path(sys.argv[1]) if sys.argv[1:] else here))
