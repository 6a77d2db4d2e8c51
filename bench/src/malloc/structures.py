# Builds and drops large structures. Usage: structures.py ROUNDS

import json
import sys


def tree(depth, seed):
    if depth == 0:
        return {"seed": seed, "text": str(seed) * 5, "list": [seed / 7, None, True]}
    return {f"key {seed}.{nth}": tree(depth - 1, seed * 5 + nth) for nth in range(5)}


def words(count, seed):
    found = {}
    for nth in range(count):
        found.setdefault(str(nth * seed % 7919), []).append((nth, f"word {nth}"))
    return sorted((key, len(pairs), pairs[-1][1]) for key, pairs in found.items())


def main():
    total = 0
    kept = []
    for seed in range(1, int(sys.argv[1]) + 1):
        text = json.dumps(tree(6, seed))
        total += len(text) + len(json.loads(text))
        total += sum(count for _, count, _ in words(120_000, seed * 31))
        pages = [bytearray(nth % 4096 + 100_000) for nth in range(300)]
        total += sum(map(len, pages))
        kept.append(text[:: 1000])
    print(total, sum(map(len, kept)))


main()
