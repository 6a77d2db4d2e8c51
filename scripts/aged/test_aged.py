#!/usr/bin/env python3
"""Tests the ager and its judge on invented frames and on a few MiB of this machine."""

import array
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import accept
import ager

MIB = 1 << 20
LRU, BUDDY, ANON, SWAPBACKED = 1 << 5, 1 << 10, 1 << 12, 1 << 14
HEAD, TAIL, HUGE, NOPAGE, PGTABLE = 1 << 15, 1 << 16, 1 << 17, 1 << 20, 1 << 26
HUGE_FRAMES, GIB_FRAMES, BLOCK_FRAMES = 512, 262144, 4096
BLOCK = BLOCK_FRAMES * 4096
# Bytes that a mixture may take.
MOST = (256 if os.environ.get("GLEBE_LONG") else 64) * MIB


class Judge(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tools = ager.Tools().__enter__()
        cls.addClassCleanup(cls.tools.__exit__)

    def judged(self, frames, mapped=(), offline=()):
        """Runs the judge. `frames` is a list of (flags, count); `mapped` are frames in use."""
        words = array.array("Q")
        for flags, count in frames:
            words.extend([flags] * count)
        counts = array.array("Q", bytes(8 * len(words)))
        for frame in mapped:
            counts[frame] = 1
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "flags").write_bytes(words.tobytes())
            (folder / "counts").write_bytes(counts.tobytes())
            (folder / "block_size_bytes").write_text(f"{BLOCK:x}\n")
            for block in range(len(words) // BLOCK_FRAMES):
                (folder / f"memory{block}").mkdir()
                state = "offline" if block in offline else "online"
                (folder / f"memory{block}" / "state").write_text(state + "\n")
            command = [self.tools.path("judge"), folder / "flags", folder / "counts", folder]
            return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def test_a_free_run_begins_on_a_huge_page_above_the_first_16_mib(self):
        low = (BUDDY, 4096)
        used = (LRU, HUGE_FRAMES)
        for frames, run in [
            ([low], 0),
            ([low, used, (BUDDY, HUGE_FRAMES + 3), (LRU, 1)], HUGE_FRAMES + 3),
            ([low, (LRU, 1), (BUDDY, HUGE_FRAMES)], 1),
            ([low, used, (HUGE | HEAD, 1), (HUGE | TAIL, HUGE_FRAMES - 1), (BUDDY, 5)],
             HUGE_FRAMES + 5),
        ]:
            self.assertEqual(self.judged(frames)["free_run"], run * 4096, frames)

    def test_a_page_of_a_pool_that_somebody_has_mapped_is_not_free(self):
        page = [(HUGE | HEAD, 1), (HUGE | TAIL, HUGE_FRAMES - 1)]
        frames = [(LRU, 4096), *page, *page]
        self.assertEqual(self.judged(frames)["free_run"], 4 * MIB)
        self.assertEqual(self.judged(frames, mapped=[4096])["free_run"], 2 * MIB)

    def test_a_whole_gib_is_all_free_or_movable(self):
        rest = GIB_FRAMES // 2
        whole = [(BUDDY, rest), (LRU, rest - 1), (ANON | SWAPBACKED, 1)]
        for last, count in [(LRU, 2), (0, 1), (PGTABLE, 1), (NOPAGE, 1), (HUGE | HEAD, 1)]:
            frames = [*whole, (LRU, GIB_FRAMES - 1), (last, 1)]
            said = self.judged(frames, mapped=[2 * GIB_FRAMES - 1])["whole_gib"]
            self.assertEqual(said, count, hex(last))

    def test_the_longest_stretch_of_blocks_with_nothing_stuck_and_on_line(self):
        good, bad = (LRU, BLOCK_FRAMES), (PGTABLE, BLOCK_FRAMES)
        frames = [good, good, bad, good, good, good, (BUDDY, BLOCK_FRAMES), bad]
        said = self.judged(frames)
        self.assertEqual((said["blocks"], said["blocks_movable"]), (8, 6))
        self.assertEqual((said["stretch"], said["stretch_block"]), (4 * BLOCK, 3))
        said = self.judged(frames, offline=[4])
        self.assertEqual((said["blocks"], said["blocks_movable"]), (7, 5))
        self.assertEqual((said["stretch"], said["stretch_block"]), (2 * BLOCK, 0))

    def test_a_tail_is_what_its_first_page_is(self):
        frames = [(LRU, 4096), (HEAD | LRU, 1), (TAIL, BLOCK_FRAMES - 1)]
        self.assertEqual(self.judged(frames)["blocks_movable"], 2)
        frames = [(LRU, 4096), (HEAD, 1), (TAIL, BLOCK_FRAMES - 1)]
        self.assertEqual(self.judged(frames)["blocks_movable"], 1)


class Ager(unittest.TestCase):
    """Checks what ager.py does with a little memory, and that it leaves nothing behind."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(lambda: os.path.exists(self.folder) and os.rmdir(self.folder))
        if ager.file_system(self.folder) == "tmpfs":
            self.skipTest("skipped: no file system of a disk at hand")

    def test_every_mixture_is_made_and_taken_back(self):
        with ager.Tools() as tools:
            for mixture in ager.MIXTURES:
                with ager.Aged(tools, mixture, MOST, self.folder) as aged:
                    loads = [load.process for load in aged.loads]
                    self.assertTrue(all(load.poll() is None for load in loads), mixture)
                    made = len(os.listdir(self.folder))
                    self.assertEqual(made, mixture in ("files", "builds", "busy"), mixture)
                    self.assertEqual(len(loads), mixture in ("builds", "held", "busy"), mixture)
                    if mixture == "busy":
                        time.sleep(0.1)
                        report = aged.busy.report()
                        self.assertGreater(report["writes"], 0)
                        self.assertEqual(report["wrong"], 0)
                self.assertTrue(all(load.poll() == 0 for load in loads), mixture)
                self.assertEqual(os.listdir(self.folder), [], mixture)

    def test_a_killed_ager_leaves_no_file_and_no_program(self):
        command = [sys.executable, ager.HERE / "ager.py", "busy", "--most", str(MOST)]
        pipe = subprocess.PIPE
        aging = subprocess.Popen([*command, "--dir", self.folder], stdin=pipe, stdout=pipe)
        self.assertIn(b"ready", aging.stdout.readline())
        children = pathlib.Path(f"/proc/{aging.pid}/task/{aging.pid}/children").read_text().split()
        self.assertGreater(len(children), 1)
        aging.send_signal(signal.SIGKILL)
        aging.communicate()
        deadline = time.monotonic() + 30
        left = True
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = os.listdir(self.folder) or [n for n in children if is_running(n)]
        self.assertFalse(left)


def is_running(process):
    """Returns true if the process exists and is no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Accept(unittest.TestCase):
    def row(self, tries):
        return accept.row_of("files", 64 * MIB, tries)

    @staticmethod
    def a_try(had, free_run=0, gib=0, lost=0, ms=1.0, found=False):
        before = {"free_run": free_run, "whole_gib": gib}
        one = {"had": had, "before": before, "cache_lost": lost, "ms": ms, "seen": 64 * MIB}
        return {**one, "given_back_ms": 1.0, **({} if had else {"search": {"had": found}})}

    def test_tries_count_where_the_reader_saw_twice_the_length(self):
        twice, less = 128 * MIB, 128 * MIB - 1
        tries = [self.a_try(True, twice), self.a_try(False, twice), self.a_try(False, less),
                 self.a_try(True, less, gib=1)]
        row = self.row(tries)
        self.assertEqual((row["beside_free"], row["had_beside_free"]), (2, 1))
        self.assertEqual((row["beside_gib"], row["had_beside_gib"]), (1, 1))
        said, shown = accept.misses_of(row, tries)
        self.assertEqual(len(said), 1, said)
        self.assertEqual(shown, [tries[1]])

    def test_time_cache_and_a_later_find_are_missed(self):
        for one in [self.a_try(True, ms=2001), self.a_try(True, lost=128 * MIB + 1),
                    self.a_try(False, found=True), {**self.a_try(True), "seen": MIB}]:
            said, _ = accept.misses_of(self.row([one]), [one])
            self.assertEqual(len(said), 1, one)
        fine = [self.a_try(True, lost=128 * MIB, ms=2000), self.a_try(False)]
        self.assertEqual(accept.misses_of(self.row(fine), fine), ([], []))

    def test_the_percentile_is_a_value_that_was_measured(self):
        self.assertEqual(accept.percentile(list(range(100)), 99), 98)
        self.assertEqual(accept.percentile([3, 1], 99), 3)
        self.assertIsNone(accept.percentile([], 50))


if __name__ == "__main__":
    unittest.main()
