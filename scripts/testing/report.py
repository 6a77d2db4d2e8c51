"""Reports what was skipped and why, what was slow, and what failed."""

import re
from collections import Counter

SLOWEST = 12
PANIC_LINES = 3


def reasons(output):
    """Yields the name of each failed test with the first lines of its first panic."""
    lines = output.splitlines()
    failed = set(re.findall(r"^test (.+?)(?: - should panic)? \.\.\. FAILED", output, re.MULTILINE))
    for at, line in enumerate(lines):
        if (found := re.match(r"---- (.+) stdout ----$", line)) and found[1] in failed:
            for below in range(at + 1, len(lines)):
                if " panicked at " in lines[below]:
                    yield [found[1], *(f"    {line}" for line in lines[below : below + PANIC_LINES])]
                    break
                if lines[below].startswith(("---- ", "test result: ")):
                    break


def print_all(builds, done):
    """Prints the report of runs and of builds, which are pairs (seconds, name). Returns 1 if a run
    failed."""
    skips = Counter()
    for run in done:
        skips.update(re.findall(r"skipped: .*", run.output))
    print("== skipped")
    for reason, count in sorted(skips.items()):
        print(f"{count:7} {reason}")
    print("== the slowest")
    took = [*builds, *((run.wall, run.name) for run in done)]
    for seconds, name in sorted(took, reverse=True)[:SLOWEST]:
        print(f"{seconds:5.0f} s  {name}")
    wrong = [run for run in done if not run.is_ok]
    if wrong:
        print("== failed")
    for run in wrong:
        print(run.name + (f": left {', '.join(run.left)}" if run.left else ""))
        for lines in reasons(run.output):
            print(*(f"    {line}" for line in lines), sep="\n")
    passed = sum(run.passed for run in done)
    failed = sum(max(run.failed, int(not run.is_ok)) for run in done)
    print(f"{passed} passed, {failed} failed, {sum(skips.values())} skipped")
    return 1 if wrong else 0
