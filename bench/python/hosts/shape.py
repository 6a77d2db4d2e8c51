"""Requests for blocks, in the shape of a public trace of a chat service.

The trace is `conversation_trace.jsonl` of Mooncake (FAST '25): 12,031 requests for 288,500 blocks of
512 tokens in an hour. Its figures, which this generator follows: all requests share their first
block; 39 of 100 requests go on with an earlier conversation, and need its blocks again; the number
of blocks has the median 14 and the ninth decile 54; between two requests of a conversation there are
at the median 422 others, at the ninth decile 1662. 37 of 100 blocks were there before.
"""

import heapq
import math
import random

CONTINUED = 0.39
LENGTH = (math.log(14), math.log(54 / 14) / 1.2816)
GAP = (math.log(422), math.log(1662 / 422) / 1.2816)
MOST = 200


def requests(seed, scale):
    """Yields lists of block numbers for ever. Gaps are divided by `scale`, for a smaller store."""
    draw = random.Random(seed)
    unused, waiting = 1, []
    for now in range(1 << 60):
        if waiting and waiting[0][0] <= now:
            _, blocks = heapq.heappop(waiting)
            fresh = max(1, len(blocks) // 2)
        else:
            blocks = [0]
            fresh = max(1, int(draw.lognormvariate(*LENGTH)) - 1)
        fresh = min(fresh, max(0, MOST - len(blocks)))
        blocks = blocks + list(range(unused, unused + fresh))
        unused += fresh
        yield blocks
        if draw.random() < CONTINUED:
            gap = int(draw.lognormvariate(*GAP) / scale)
            heapq.heappush(waiting, (now + 1 + gap, blocks))
