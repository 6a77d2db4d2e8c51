"""Requests for blocks, in the shape of a public trace of a chat service.

The trace is `conversation_trace.jsonl` of Mooncake (FAST '25): requests in an hour, for blocks of
512 tokens. 12,031 requests of this generator have nearly its figures:

                                                trace    generator
    blocks                                      288,500  291,831
    blocks that were there before               37 %     40 %
    requests that go on with a conversation     39 %     38 %
    blocks of a request: median, ninth decile   14, 54   14, 54

All requests share their first block. A request that goes on needs all blocks of the one before.
Between two requests of a conversation there are others: 422 at the median, 1662 at the ninth decile.
"""

import heapq
import math
import random

CONTINUED = 0.41
# Median and width of logarithms: blocks of a new conversation, and requests in between.
LENGTH = (math.log(12), math.log(40 / 12) / 1.2816)
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
