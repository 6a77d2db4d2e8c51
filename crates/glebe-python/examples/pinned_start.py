"""Compares how soon pinned memory for a GPU is usable at the start, and how long the GPU waits.

    pinned_start.py [GIB] [FILE]

Needs PyTorch with CUDA and GIB (8) GiB of memory twice. The kinds of memory take turns. Prints for
each the seconds until a first tensor is usable and until all memory is, and the longest time of a
small operation on the GPU meanwhile in ms. Writes them to FILE as JSON.
"""

import json
import os
import statistics
import sys
import time

import torch

from glebe.cuda import PinnedPool

GIB = 1 << 30
LENGTH = int(sys.argv[1]) * GIB if len(sys.argv) > 1 else 8 * GIB
WHOLE = 1 << (LENGTH - 1).bit_length()  # the power of two that all memory is a piece of
ROUNDS = 5
now = time.perf_counter


def operation(device):
    """Returns the seconds of a small operation on the GPU."""
    begin = now()
    device.add_(1)
    torch.cuda.synchronize()
    return now() - begin


def in_pieces(piece, device):
    begin = now()
    with PinnedPool(LENGTH, piece=piece) as pool:
        host = pool.tensor(1 << 20, torch.uint8)
        first, longest = now() - begin, 0.0
        while not pool.wait(timeout=0):
            longest = max(longest, operation(device))
        whole = now() - begin
        assert host.is_pinned()
        host.random_(0, 256)
        copied = host.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(copied.cpu(), host)
        del host
    return first, whole, longest * 1e3


def by_torch(device):
    torch._C._host_emptyCache()
    begin = now()
    host = torch.empty(LENGTH, dtype=torch.uint8, pin_memory=True)
    took = now() - begin
    assert host.is_pinned()
    return took, took, took * 1e3  # this thread can do nothing else meanwhile


def main():
    device = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    operation(device)
    sides = {
        "glebe, pieces of 256 MiB": lambda: in_pieces(GIB // 4, device),
        "glebe, pieces of 1 GiB": lambda: in_pieces(GIB, device),
        "glebe, one piece": lambda: in_pieces(WHOLE, device),
        "PyTorch, pinned": lambda: by_torch(device),
    }
    seen = {who: [] for who in sides}
    for _ in range(ROUNDS):
        for who, side in sides.items():
            seen[who].append(side())
    rows = []
    for who, samples in seen.items():
        for case, unit, some in zip(("first", "whole", "stall"), ("s", "s", "ms"), zip(*samples)):
            row = {"case": case, "who": who, "unit": unit, "median": statistics.median(some)}
            rows.append(row | {"min": min(some), "max": max(some), "runs": len(some)})
            line = "{case:6} {who:25} {median:10.3f} {unit} ({min:.3f} to {max:.3f})"
            print(line.format(**rows[-1]))
    machine = {"kernel": os.uname().release, "cpus": os.cpu_count(), "bytes": LENGTH}
    machine["gpu"] = torch.cuda.get_device_name()
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({"bench": "pinned_start", "machine": machine, "rows": rows}, file, indent=1)
    print(machine)


if __name__ == "__main__":
    main()
