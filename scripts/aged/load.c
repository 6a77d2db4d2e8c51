/* Ages memory: takes as much as its arguments say, prints `ready`, and ends with its standard input
 * or its parent. The kernel prefers to kill it.
 *
 * usage: load PARENT every-second BYTES LEFT    holds every second base page, frees the others
 *        load PARENT busy BYTES LEFT            writes base pages at random and checks them
 *        load PARENT processes COUNT KEPT       short processes; KEPT of them stay
 * Stops taking when less than LEFT bytes would stay available. Prints `ready N`: the bytes held, or
 * the processes that stay. `busy` answers each line with `writes N wrong N worst_us N` since the
 * last answer; worst is the longest time of 64 writes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ull
#define STEP (64ull << 20)
/* Bytes that a short process maps, and bytes that one page table maps. */
#define SPARSE (256ull << 20)
#define TABLE (2ull << 20)

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) {
		fprintf(stderr, "load: the parent %d is gone\n", parent);
		exit(1);
	}
	FILE *score = fopen("/proc/self/oom_score_adj", "w");
	if (!score || fputs("1000", score) < 0 || fclose(score))
		fail("/proc/self/oom_score_adj");
}

static uint64_t available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib << 10;
}

/* Maps `*len` bytes, populates base pages while `left` bytes stay available, and writes the
 * populated length to `len`. */
static char *take(uint64_t *len, uint64_t left)
{
	char *at = mmap(0, *len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			-1, 0);
	if (at == MAP_FAILED)
		fail("mmap");
	madvise(at, *len, MADV_NOHUGEPAGE);
	uint64_t taken = 0;
	while (taken + STEP <= *len && available() >= left + STEP) {
		for (uint64_t n = 0; n < STEP; n += PAGE)
			*(volatile uint64_t *)(at + taken + n) = (taken + n) / PAGE;
		taken += STEP;
	}
	*len = taken;
	return at;
}

static void ready(uint64_t figure)
{
	printf("ready %llu\n", (unsigned long long)figure);
	fflush(stdout);
}

static void wait_for_end(void)
{
	char buffer[64];
	while (read(0, buffer, sizeof buffer) > 0)
		;
}

static void every_second(uint64_t len, uint64_t left)
{
	char *at = take(&len, left);
	for (uint64_t n = 0; n < len; n += 2 * PAGE)
		if (madvise(at + n, PAGE, MADV_DONTNEED))
			fail("madvise");
	ready(len / 2);
	wait_for_end();
}

static atomic_int asked, ended;

static void *listen_to(void *none)
{
	char byte;
	while (read(0, &byte, 1) > 0)
		if (byte == '\n')
			atomic_fetch_add(&asked, 1);
	atomic_store(&ended, 1);
	return none;
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Writes a word to random pages: the page's number and the count of its writes. */
static void busy(uint64_t len, uint64_t left)
{
	uint64_t *at = (uint64_t *)take(&len, left), pages = len / PAGE, random = 1;
	uint32_t *times = calloc(pages + 1, sizeof *times);
	uint64_t writes = 0, wrong = 0;
	double worst = 0;
	pthread_t listener;
	if (!times || pthread_create(&listener, 0, listen_to, 0))
		fail("busy");
	ready(len);
	while (pages && !atomic_load(&ended)) {
		double begin = now_us();
		for (int n = 0; n < 64; n++, writes++) {
			random = random * 6364136223846793005ull + 1442695040888963407ull;
			uint64_t page = (random >> 20) % pages;
			uint64_t *word = at + page * (PAGE / sizeof *at);
			wrong += *word != (page | (uint64_t)times[page] << 32);
			*word = page | (uint64_t)++times[page] << 32;
		}
		double took = now_us() - begin;
		worst = took > worst ? took : worst;
		if (atomic_load(&asked)) {
			atomic_fetch_sub(&asked, 1);
			printf("writes %llu wrong %llu worst_us %.0f\n", (unsigned long long)writes,
			       (unsigned long long)wrong, worst);
			fflush(stdout);
			writes = wrong = 0;
			worst = 0;
		}
	}
	if (!pages)
		pthread_join(listener, 0);
}

/* Touches pages of many page tables, then ends unless `stays`. */
static void one_process(int stays, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1); /* the parent ended before the call */
	char *at = mmap(0, SPARSE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		_exit(1);
	madvise(at, SPARSE, MADV_NOHUGEPAGE);
	for (uint64_t n = 0; n < SPARSE; n += stays ? TABLE : TABLE / 8)
		at[n] = 1;
	while (stays)
		pause();
	_exit(0);
}

static void processes(uint64_t count, uint64_t kept)
{
	pid_t parent = getpid();
	for (uint64_t n = 0; n < count; n++) {
		int stays = n * kept / count != (n + 1) * kept / count;
		pid_t child = fork();
		if (child < 0)
			fail("fork");
		if (!child)
			one_process(stays, parent);
		if (!stays)
			waitpid(child, 0, 0);
	}
	ready(kept);
	wait_for_end();
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: load PARENT every-second|busy|processes A B\n");
		return 2;
	}
	die_with(atoi(argv[1]));
	uint64_t a = strtoull(argv[3], 0, 10), b = strtoull(argv[4], 0, 10);
	if (!strcmp(argv[2], "every-second"))
		every_second(a, b);
	else if (!strcmp(argv[2], "busy"))
		busy(a, b);
	else if (!strcmp(argv[2], "processes"))
		processes(a, b);
	else
		return 2;
	return 0;
}
