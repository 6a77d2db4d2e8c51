/* Judges physical memory: reads /proc/kpageflags and /proc/kpagecount once, prints JSON.
 *
 * Shares no code with the library, whose answers it judges. A frame is absent, free (in the buddy
 * allocator, or an idle page of a hugetlb pool), movable (page cache, memory of programs) or stuck
 * (anything else: slab, page tables, kernel pages, which have no flag). The flags do not tell
 * everything: a page pinned by a device looks movable, a free page in a processor's own list looks
 * stuck.
 *
 * usage: judge FLAGS COUNTS BLOCKS   (the two files of /proc; the folder of memory blocks)
 * Lengths in bytes. Source: admin-guide/mm/pagemap, admin-guide/mm/memory-hotplug. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LRU = 5, SLAB = 7, BUDDY = 10, ANON = 12, SWAPBACKED = 14, HEAD = 15, TAIL = 16, HUGE = 17,
       HWPOISON = 19, NOPAGE = 20, OFFLINE = 23, PGTABLE = 26, RESERVED = 32 };
enum kind { ABSENT, FREE, MOVABLE, STUCK };

#define FRAME 4096ull
#define HUGE_FRAMES 512ull
#define GIB_FRAMES 262144ull
/* A PC's zone DMA: the kernel never takes huge pages from it. */
#define DMA_FRAMES 4096ull
#define LONGEST 8
#define BATCH (1 << 17)

struct run { uint64_t start, len; };
static struct run longest[LONGEST]; /* longest first */
static int counts;

static int has(uint64_t flags, int bit) { return flags >> bit & 1; }

static int is_mapped(uint64_t frame)
{
	uint64_t count = 0;
	return pread(counts, &count, sizeof count, frame * sizeof count) == sizeof count && count;
}

/* Returns the kind of a frame that is no tail of a larger page. */
static enum kind kind_of(uint64_t flags, uint64_t frame)
{
	if (has(flags, NOPAGE))
		return ABSENT;
	if (has(flags, HWPOISON) || has(flags, OFFLINE))
		return STUCK;
	if (has(flags, BUDDY))
		return FREE;
	if (has(flags, HUGE))
		return has(flags, HEAD) && is_mapped(frame) ? STUCK : FREE;
	if (has(flags, SLAB) || has(flags, PGTABLE) || has(flags, RESERVED))
		return STUCK;
	/* A program's new page may not be on an LRU list yet. */
	return has(flags, LRU) || (has(flags, ANON) && has(flags, SWAPBACKED)) ? MOVABLE : STUCK;
}

static void keep(struct run run)
{
	for (int n = 0; n < LONGEST; n++)
		if (run.len > longest[n].len) {
			struct run shorter = longest[n];
			longest[n] = run;
			run = shorter;
		}
}

static unsigned long long hex_of(const char *dir, const char *name)
{
	char path[4096];
	unsigned long long value = 0;
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%llx", &value) != 1)
			value = 0;
		fclose(file);
	}
	return value;
}

static int is_online(const char *dir, uint64_t block)
{
	char path[4096], state[32] = "";
	snprintf(path, sizeof path, "%s/memory%llu/state", dir, (unsigned long long)block);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	int read = fscanf(file, "%31s", state);
	fclose(file);
	return read == 1 && strcmp(state, "online") == 0;
}

/* Kinds of frames in the current part of `frames` frames, and results of the earlier parts. */
struct tally { uint64_t frames, seen[4], whole, all, adjacent, longest, at; };

static int is_whole(const struct tally *tally)
{
	return tally->seen[FREE] + tally->seen[MOVABLE] == tally->frames;
}

static void end_of(struct tally *tally, uint64_t frame, int counts_at_all)
{
	int whole = counts_at_all && is_whole(tally);
	tally->all += counts_at_all;
	tally->whole += whole;
	tally->adjacent = whole ? tally->adjacent + 1 : 0;
	if (tally->adjacent > tally->longest) {
		tally->longest = tally->adjacent;
		tally->at = frame + 1 - tally->adjacent * tally->frames;
	}
	memset(tally->seen, 0, sizeof tally->seen);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: judge FLAGS COUNTS BLOCKS\n");
		return 2;
	}
	static uint64_t words[BATCH];
	int flags = open(argv[1], O_RDONLY);
	counts = open(argv[2], O_RDONLY);
	if (flags < 0 || counts < 0) {
		perror(flags < 0 ? argv[1] : argv[2]);
		return 1;
	}
	struct tally gib = { .frames = GIB_FRAMES };
	struct tally block = { .frames = hex_of(argv[3], "block_size_bytes") / FRAME };
	struct run run = { 0, 0 };
	uint64_t frame = 0, total[4] = { 0 }, free_block = 0;
	enum kind head = STUCK;
	for (ssize_t read_now; (read_now = read(flags, words, sizeof words)) > 0;)
		for (size_t n = 0; n < read_now / sizeof *words; n++, frame++) {
			int follows = has(words[n], TAIL) && !has(words[n], NOPAGE);
			enum kind kind = follows ? head : (head = kind_of(words[n], frame));
			total[kind]++;
			gib.seen[kind]++;
			block.seen[kind]++;
			if (kind == FREE && frame >= DMA_FRAMES && (run.len || frame % HUGE_FRAMES == 0)) {
				if (!run.len++)
					run.start = frame;
			} else if (run.len) {
				keep(run);
				run.len = 0;
			}
			if ((frame + 1) % gib.frames == 0)
				end_of(&gib, frame, 1);
			if (block.frames && (frame + 1) % block.frames == 0) {
				free_block += block.seen[FREE] == block.frames;
				end_of(&block, frame, is_online(argv[3], frame / block.frames));
			}
		}
	keep(run);
	printf("{\"free_run\": %llu, \"free_runs\": [", (unsigned long long)(longest[0].len * FRAME));
	for (int n = 0; n < LONGEST && longest[n].len; n++)
		printf("%s[%llu, %llu]", n ? ", " : "", (unsigned long long)longest[n].start,
		       (unsigned long long)(longest[n].len * FRAME));
	printf("], \"whole_gib\": %llu, \"free\": %llu, \"movable\": %llu, \"stuck\": %llu, "
	       "\"blocks\": %llu, \"blocks_movable\": %llu, \"blocks_free\": %llu, "
	       "\"block_bytes\": %llu, \"stretch\": %llu, \"stretch_block\": %llu}\n",
	       (unsigned long long)gib.whole, (unsigned long long)(total[FREE] * FRAME),
	       (unsigned long long)(total[MOVABLE] * FRAME), (unsigned long long)(total[STUCK] * FRAME),
	       (unsigned long long)block.all, (unsigned long long)block.whole,
	       (unsigned long long)free_block, (unsigned long long)(block.frames * FRAME),
	       (unsigned long long)(block.longest * block.frames * FRAME),
	       (unsigned long long)(block.frames ? block.at / block.frames : 0));
	return 0;
}
