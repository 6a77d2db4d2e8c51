"""A NumPy pipeline that keeps its intermediate results in volatile memory, in an LRU or in a dict.

Usage: pipeline.py WHO SECONDS LIMIT_MIB, in a memory cgroup of LIMIT_MIB. WHO is `volatile`,
`lru-N` with at most N MiB, or `dict`, which keeps everything. Each request needs one tile, chosen
at random with a skew, and computes the tile if it is not kept. Twice in a run, an ordinary array
of 70 % of the limit takes memory for a while. Prints requests per second and the number of wrong
answers.
"""

import json
import sys
import time
from collections import OrderedDict

import numpy as np

SIDE = 256  # a tile is SIDE * SIDE * 8 bytes, half a MiB
TILES = 1000


def compute(n):
    """Computes tile `n` in about two milliseconds. All elements are n, so one shows a loss."""
    tile = np.full((SIDE, SIDE), float(n))
    for _ in range(2):
        tile = np.sqrt(tile * tile + np.sin(tile) * 0)
    return tile


class Lru:
    def __init__(self, mib):
        self.kept, self.most = OrderedDict(), mib << 20

    def __call__(self, n):
        if n in self.kept:
            self.kept.move_to_end(n)
            return self.kept[n]
        tile = self.kept[n] = compute(n)
        while len(self.kept) * tile.nbytes > self.most:
            self.kept.popitem(last=False)
        return tile


def keeper(who, limit):
    if who == "volatile":
        from glebe.volatile import volatile_cache

        return volatile_cache(TILES * SIDE * SIDE * 8 * 2)(compute)
    if who == "dict":
        return Lru(1 << 40)
    return Lru(int(who.removeprefix("lru-")))


def main():
    who, seconds, limit = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) << 20
    tile = keeper(who, limit)
    rng = np.random.default_rng(1)
    requests = iter(np.minimum(rng.exponential(TILES / 3, 1_000_000).astype(int), TILES - 1))
    peak, wrong, done = None, 0, 0
    begin = time.perf_counter()
    while (now := time.perf_counter() - begin) < seconds:
        # The last quarter of each half of the run needs much ordinary memory.
        is_peak = now / seconds * 2 % 1 > 0.75
        if is_peak and peak is None:
            peak = np.ones(int(limit * 0.7), np.uint8)
        elif not is_peak:
            peak = None
        n = int(next(requests)) + 1
        wrong += abs(float(tile(n)[-1, -1]) - n) > 1e-6
        done += 1
    took = time.perf_counter() - begin
    print(json.dumps({"requests_per_s": done / took, "wrong": int(wrong)}), flush=True)


main()
