/* Queries of where memory is, from C99: compares positions and frames with the kernel's, and checks
 * moved pages, errors, resizing, and statistics for other processes. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)
#define TEXT_MAX 65536

static uint64_t page;

static glebe_reserve_options options_of(uint64_t source) {
    glebe_reserve_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = source;
    options.threads = 1;
    return options;
}

static glebe_reserve create(const glebe_reserve_options *options, uint64_t len_bytes) {
    glebe_reserve reserve = {0};
    OK(glebe_reserve_new(len_bytes, options, &reserve));
    return reserve;
}

/* Returns the frame of a present page from the kernel itself, or 0 if the kernel hides frames. */
static uint64_t kernel_pfn(const void *address) {
    uint64_t entry = 0;
    const off_t at = (off_t)((uintptr_t)address / page * sizeof entry);
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    CHECK(pagemap >= 0 && pread(pagemap, &entry, sizeof entry, at) == (ssize_t)sizeof entry);
    CHECK(entry >> 63 == 1 && close(pagemap) == 0);
    return entry & (((uint64_t)1 << 55) - 1);
}

static void is_frame_of(uint64_t pfn, const void *address) {
    const uint64_t there = kernel_pfn(address);
    CHECK(pfn == (there == 0 ? GLEBE_PFN_HIDDEN : there));
}

static glebe_contig query(glebe_block block, uint64_t offset_bytes) {
    glebe_contig contig;
    memset(&contig, 0xff, sizeof contig);
    contig.size = sizeof contig;
    OK(glebe_block_query(block, offset_bytes, &contig));
    CHECK(contig.size == sizeof contig);
    return contig;
}

static void blocks(uint64_t source) {
    const glebe_reserve_options options = options_of(source);
    const glebe_reserve reserve = create(&options, 4 * MIB);
    glebe_block low = {0}, high = {0}, both[2];
    glebe_contig contig, by_position;
    glebe_memory memory;
    uint64_t older[9], len = 16 * page, n;
    unsigned char *address[2];

    OK(glebe_alloc_with(reserve, 16, 1, GLEBE_ANY, &low));
    OK(glebe_alloc_with(reserve, 2, 1, GLEBE_ANY, &high));
    both[0] = low;
    both[1] = high;
    for (n = 0; n < 2; n++) {
        void *at = NULL;
        OK(glebe_block_memory(both[n], &at, NULL));
        address[n] = at;
    }
    /* Positions are as far apart as addresses. */
    CHECK(query(high, 0).position_pages > query(low, 0).position_pages);
    CHECK((query(high, 0).position_pages - query(low, 0).position_pages) * page ==
          (uint64_t)(address[1] - address[0]));
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    for (n = 0; n < len; n += page / 2) {
        contig = query(low, n + 7);
        CHECK(contig.position_pages == query(low, 0).position_pages + n / page);
        CHECK(contig.source == memory.source && contig.mapped_bytes == memory.len_pages * page);
        CHECK(contig.hugetlb_page_bytes == memory.hugetlb_page_bytes);
        CHECK((contig.held_by != GLEBE_HELD_BY_NOTHING) == (memory.pinned == 1));
        CHECK(contig.contiguous_bytes >= 1 && contig.contiguous_bytes <= len - (n + 7));
        CHECK(contig.offset_bytes + contig.contiguous_bytes <= contig.run_bytes);
        /* A process that may see frames sees one run. */
        if (contig.pfn != GLEBE_PFN_HIDDEN && source != GLEBE_SOURCE_PLAIN)
            CHECK(contig.contiguous_bytes == len - (n + 7));
        is_frame_of(contig.pfn, address[0] + n);
        by_position.size = sizeof by_position;
        OK(glebe_reserve_query(reserve, contig.position_pages, &by_position));
        CHECK(by_position.pfn == contig.pfn && by_position.position_pages == contig.position_pages);
        CHECK(by_position.run_bytes == contig.run_bytes);
    }

    contig.size = sizeof contig;
    REFUSED(glebe_block_query(low, len, &contig), GLEBE_ERROR_BEYOND);
    CHECK(strstr(glebe_last_error(), "is beyond that") != NULL);
    REFUSED(glebe_block_query(low, UINT64_MAX, &contig), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_block_query(low, 0, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_block_query(HANDLE(glebe_block, reserve.id), 0, &contig), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reserve_query(reserve, memory.len_pages, &contig), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_reserve_query(reserve, UINT64_MAX, &contig), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_reserve_query(reserve, 0, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_query(HANDLE(glebe_reserve, low.id), 0, &contig), GLEBE_ERROR_BAD_HANDLE);
    contig.size = 8;
    REFUSED(glebe_block_query(low, 0, &contig), GLEBE_ERROR_BAD_SIZE);
    REFUSED(glebe_reserve_query(reserve, 0, &contig), GLEBE_ERROR_BAD_SIZE);
    /* A program built before the structure had its last two members. */
    memset(older, 0xff, sizeof older);
    older[0] = 8 * sizeof older[0];
    OK(glebe_block_query(low, 0, (glebe_contig *)older));
    CHECK(older[0] == 8 * sizeof older[0] && older[4] == query(low, 0).pfn);
    CHECK(older[8] == UINT64_MAX);

    OK(glebe_free(low));
    contig.size = sizeof contig;
    REFUSED(glebe_block_query(low, 0, &contig), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_free(high));
    OK(glebe_reserve_free(reserve));
}

static void resized(void) {
    glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve;
    glebe_memory memory;
    glebe_contig contig;
    glebe_reserve_stats stats;
    glebe_block block = {0};
    glebe_run run;
    uint64_t bytes = 77;
    size_t count = 0;
    void *address = NULL;

    reserve = create(&options, 2 * MIB);
    REFUSED(glebe_reserve_grow(reserve, 2 * MIB, &bytes), GLEBE_ERROR_FIXED_LEN);
    REFUSED(glebe_reserve_shrink(reserve, 2 * MIB, NULL), GLEBE_ERROR_FIXED_LEN);
    OK(glebe_reserve_free(reserve));
    options.room_bytes = 8 * MIB;
    reserve = create(&options, 2 * MIB);
    OK(glebe_alloc_with(reserve, 3, 1, GLEBE_ANY, &block));
    OK(glebe_block_memory(block, &address, NULL));
    memset(address, 7, (size_t)(3 * page));

    REFUSED(glebe_reserve_grow(reserve, 8 * MIB, &bytes), GLEBE_ERROR_NO_ROOM);
    REFUSED(glebe_reserve_grow(reserve, 0, &bytes), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_reserve_grow(HANDLE(glebe_reserve, block.id), 2 * MIB, &bytes),
            GLEBE_ERROR_BAD_HANDLE);
    CHECK(bytes == 77);
    OK(glebe_reserve_grow(reserve, 5 * MIB, &bytes));
    CHECK(bytes == 6 * MIB);
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.len_pages * page == 8 * MIB);
    CHECK(query(block, 0).mapped_bytes == 8 * MIB);
    is_frame_of(query(block, page).pfn, (unsigned char *)address + page);
    contig.size = sizeof contig;
    OK(glebe_reserve_query(reserve, memory.len_pages - 1, &contig));

    REFUSED(glebe_reserve_shrink(reserve, 8 * MIB, &bytes), GLEBE_ERROR_NOT_GIVEN);
    CHECK(strstr(glebe_last_error(), "6 MiB can be given") != NULL);
    OK(glebe_reserve_shrink(reserve, 6 * MIB, NULL));
    stats.size = sizeof stats;
    OK(glebe_reserve_get_stats(reserve, &stats));
    CHECK(stats.total_pages * page == 2 * MIB);
    REFUSED(glebe_reserve_query(reserve, memory.len_pages - 1, &contig), GLEBE_ERROR_BEYOND);
    OK(glebe_reserve_runs(reserve, &run, 1, &count));
    CHECK(count == 0 || run.start_pages + run.len_pages <= 2 * MIB / page);
    CHECK(((unsigned char *)address)[3 * page - 1] == 7);
    OK(glebe_free(block));
    OK(glebe_reserve_free(reserve));
}

/* Compares every page with the kernel's answer to another question. */
static void is_on_its_nodes(glebe_reserve reserve, const unsigned char *address, uint64_t pages) {
    glebe_on_node nodes[8];
    size_t count = 77, total = 0, n;
    uint64_t at = 0, told;
    int node = -1;

    memset(nodes, 0xee, sizeof nodes);
    OK(glebe_reserve_nodes(reserve, NULL, 0, &total));
    OK(glebe_reserve_nodes(reserve, nodes, 1, &count));
    /* Without an answer from the kernel, one could not know. */
    CHECK(count == total && total >= 1 && nodes[1].node == 0xeeeeeeeeeeeeeeee);
    OK(glebe_reserve_nodes(reserve, nodes, 8, &count));
    for (n = 0; n < count && n < 8; n++) {
        CHECK(nodes[n].start_pages == at && nodes[n].len_pages > 0);
        CHECK(n == 0 || nodes[n].node != nodes[n - 1].node);
        at += nodes[n].len_pages;
        /* 3 is MPOL_F_NODE | MPOL_F_ADDR. Some kernels and containers do not answer. */
        for (told = nodes[n].start_pages; told < at; told++)
            if (syscall(SYS_get_mempolicy, &node, NULL, 0L, address + told * page, 3L) == 0)
                CHECK((uint64_t)node == nodes[n].node);
    }
    CHECK(at == pages || count > 8);
    REFUSED(glebe_reserve_nodes(reserve, NULL, 1, &count), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_nodes(reserve, nodes, 8, NULL), GLEBE_ERROR_NULL);
}

static void nodes_are_told(void) {
    glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve;
    glebe_on_node node;
    glebe_block block = {0};
    size_t count = 77;
    void *address = NULL;

    options.room_bytes = 8 * MIB;
    reserve = create(&options, 2 * MIB);
    OK(glebe_alloc_with(reserve, 2 * MIB / page, 1, GLEBE_ANY, &block));
    OK(glebe_block_memory(block, &address, NULL));
    is_on_its_nodes(reserve, address, 2 * MIB / page);
    OK(glebe_reserve_grow(reserve, 4 * MIB, NULL));
    is_on_its_nodes(reserve, address, 6 * MIB / page);
    OK(glebe_reserve_shrink(reserve, 2 * MIB, NULL));
    is_on_its_nodes(reserve, address, 4 * MIB / page);
    OK(glebe_free(block));
    OK(glebe_reserve_free(reserve));
    REFUSED(glebe_reserve_nodes(reserve, &node, 1, &count), GLEBE_ERROR_BAD_HANDLE);
    CHECK(count == 77);
}

static void nodes_are_chosen(void) {
    glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve = {0};
    glebe_block block = {0};
    void *address = NULL;
    int node = -1;

    for (options.on_node = GLEBE_NODE_ONLY; options.on_node <= GLEBE_NODE_PREFER;
         options.on_node++) {
        if (glebe_reserve_new(2 * MIB, &options, &reserve) != 0) {
            /* Node 0 may be without memory, or a container denies the choice. */
            fprintf(stderr, "skipped: node 0: %s\n", glebe_last_error());
            CHECK(options.on_node == GLEBE_NODE_ONLY);
            continue;
        }
        OK(glebe_alloc_with(reserve, 1, 1, GLEBE_ANY, &block));
        OK(glebe_block_memory(block, &address, NULL));
        /* 3 is MPOL_F_NODE | MPOL_F_ADDR. Some kernels and containers do not answer. */
        if (syscall(SYS_get_mempolicy, &node, NULL, 0L, address, 3L) == 0) {
            CHECK(node == 0 || options.on_node == GLEBE_NODE_PREFER);
        }
        OK(glebe_free(block));
        OK(glebe_reserve_free(reserve));
    }
    options.node = 1 << 20;
    options.on_node = GLEBE_NODE_ONLY;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.on_node = 4;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.on_node = GLEBE_NODE_ANY;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.on_node = GLEBE_NODE_AMONG;
    options.node_mask = 1;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "node with GLEBE_NODE_AMONG") != NULL);
}

static void a_set_of_nodes_is_chosen(void) {
    glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve = {0};
    glebe_on_node nodes[4];
    size_t count = 0, n;

    options.on_node = GLEBE_NODE_AMONG;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    /* No machine of the tests has a node 63. */
    options.node_mask = (uint64_t)1 << 63 | 1;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "node 63") != NULL);
    options.node_mask = 1;
    if (glebe_reserve_new(2 * MIB, &options, &reserve) != 0) {
        fprintf(stderr, "skipped: node 0: %s\n", glebe_last_error());
    } else {
        OK(glebe_reserve_nodes(reserve, nodes, 4, &count));
        for (n = 0; n < count && n < 4; n++) CHECK(nodes[n].node == 0);
        CHECK(count == 1 && nodes[0].len_pages == 2 * MIB / page);
        OK(glebe_reserve_free(reserve));
    }
    options.on_node = GLEBE_NODE_ONLY;
    REFUSED(glebe_reserve_new(2 * MIB, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "node_mask without GLEBE_NODE_AMONG") != NULL);
}

static void what_has_gone_is_told(void) {
    const glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    const glebe_reserve reserve = create(&options, 2 * MIB);
    glebe_drift drifts[3];
    glebe_contig before;
    glebe_block block = {0};
    size_t count = 77;
    void *address = NULL;

    OK(glebe_reserve_verify(reserve, NULL, 0, &count));
    OK(glebe_alloc_with(reserve, 4, 1, GLEBE_ANY, &block));
    CHECK(count == 0 || query(block, 0).held_by == GLEBE_HELD_BY_NOTHING);
    OK(glebe_block_memory(block, &address, NULL));
    before = query(block, page);
    CHECK(madvise((unsigned char *)address + page, (size_t)(2 * page), MADV_DONTNEED) == 0);
    memset(drifts, 0xee, sizeof drifts);
    OK(glebe_reserve_verify(reserve, drifts, 2, &count));
    if (before.pfn == GLEBE_PFN_HIDDEN) {
        fprintf(stderr, "skipped: frames are hidden, so of base pages nothing is known\n");
    } else if (before.held_by != GLEBE_HELD_BY_NOTHING) {
        CHECK(count >= 1 && drifts[0].start_pages == before.position_pages);
        CHECK(drifts[0].was_pfn == before.pfn && drifts[0].now_pfn == GLEBE_PFN_GONE);
        CHECK(drifts[0].len_pages >= 1 && drifts[2].start_pages == 0xeeeeeeeeeeeeeeee);
    }
    REFUSED(glebe_reserve_verify(reserve, NULL, 1, &count), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_verify(reserve, drifts, 1, NULL), GLEBE_ERROR_NULL);
    OK(glebe_free(block));
    OK(glebe_reserve_free(reserve));
    REFUSED(glebe_reserve_verify(reserve, drifts, 1, &count), GLEBE_ERROR_BAD_HANDLE);
}

static char text[TEXT_MAX];

static void reasons(void) {
    glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve;
    glebe_memory memory;
    size_t needed = 0, lines = 0;
    char *line;

    options.preferred_run_bytes = 1024 * MIB;
    options.search_bytes = 4 * MIB; /* only for pages of a pool, but no error here */
    reserve = create(&options, 2 * MIB);
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    OK(glebe_reserve_why_not(reserve, text, sizeof text, &needed));
    CHECK(strstr(text, "sought") != NULL && strlen(text) + 1 == needed);
    for (line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) lines++;
    /* One line for the run that was sought, one for a missing pin, and one for counted writers. */
    CHECK(lines >= (size_t)(1 + (memory.pinned == 0) + (memory.writers == GLEBE_WRITERS_COUNTED)));
    REFUSED(glebe_reserve_why_not(reserve, text, 3, &needed), GLEBE_ERROR_BUFFER_TOO_SMALL);
    REFUSED(glebe_reserve_why_not(reserve, NULL, 3, &needed), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_why_not(reserve, text, 3, NULL), GLEBE_ERROR_NULL);
    OK(glebe_reserve_free(reserve));
    REFUSED(glebe_reserve_why_not(reserve, text, 3, &needed), GLEBE_ERROR_BAD_HANDLE);
}

static void statistics_as_text(void) {
    const glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    const glebe_reserve reserve = create(&options, 2 * MIB);
    static const char *const holds[] = {"total_pages", "\"total_pages\":", "# TYPE glebe_reserve_"};
    size_t needed = 0, again = 0;
    uint64_t form;

    for (form = GLEBE_FORMAT_TEXT; form <= GLEBE_FORMAT_OPENMETRICS; form++) {
        OK(glebe_reserve_format_stats(reserve, form, NULL, 0, &needed));
        OK(glebe_reserve_format_stats(reserve, form, text, sizeof text, &again));
        CHECK(again == needed && strlen(text) + 1 == needed);
        CHECK(strstr(text, holds[form]) != NULL);
    }
    REFUSED(glebe_reserve_format_stats(reserve, GLEBE_FORMAT_CLASSES, text, sizeof text, &needed),
            GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_reserve_format_stats(reserve, 0, NULL, 1, &needed), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_format_stats(reserve, 0, text, 1, NULL), GLEBE_ERROR_NULL);
    OK(glebe_reserve_free(reserve));
    REFUSED(glebe_reserve_format_stats(reserve, 0, text, 1, &needed), GLEBE_ERROR_BAD_HANDLE);
}

static void ask(const char *path) {
    struct sockaddr_un at;
    size_t have = 0;
    ssize_t got;
    int asker = socket(AF_UNIX, SOCK_STREAM, 0);
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    CHECK(asker >= 0 && strlen(path) < sizeof at.sun_path);
    memcpy(at.sun_path, path, strlen(path));
    CHECK(connect(asker, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(write(asker, "json\n", 5) == 5);
    while ((got = read(asker, text + have, sizeof text - 1 - have)) > 0) have += (size_t)got;
    text[have] = '\0';
    CHECK(strncmp(text, "glebe-stats/1 ok ", 17) == 0 && strchr(text, '{') != NULL);
    CHECK(close(asker) == 0);
}

static void statistics_are_served(void) {
    const glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    glebe_reserve reserve = create(&options, 2 * MIB), other = create(&options, 2 * MIB);
    char directory[] = "/tmp/glebe-place-XXXXXX", path[128], again[128];
    size_t needed = 0, same = 0;

    CHECK(mkdtemp(directory) != NULL);
    CHECK(chmod(directory, 0777) == 0);
    REFUSED(glebe_reserve_serve_stats(reserve, directory, path, sizeof path, &needed),
            GLEBE_ERROR_OS);
    CHECK(strstr(glebe_last_error(), directory) != NULL && chmod(directory, 0700) == 0);
    REFUSED(glebe_reserve_serve_stats(reserve, directory, NULL, 1, &needed), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_serve_stats(reserve, directory, path, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_serve_stats(reserve, directory, path, 1, &needed),
            GLEBE_ERROR_BUFFER_TOO_SMALL);
    OK(glebe_reserve_serve_stats(reserve, NULL, path, sizeof path, &same));
    CHECK(same == needed && strlen(path) + 1 == needed);
    CHECK(strncmp(path, directory, strlen(directory)) == 0);
    ask(path);
    OK(glebe_reserve_serve_stats(other, directory, NULL, 0, &needed));
    OK(glebe_reserve_serve_stats(other, NULL, again, sizeof again, &same));
    CHECK(same == needed && strcmp(again, path) != 0);
    OK(glebe_reserve_free(reserve));
    CHECK(access(path, F_OK) == -1);
    REFUSED(glebe_reserve_serve_stats(reserve, directory, path, sizeof path, &needed),
            GLEBE_ERROR_BAD_HANDLE);
    ask(again);
    OK(glebe_reserve_free(other));
    CHECK(rmdir(directory) == 0);
}

static void mappings(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    const size_t len = (size_t)(4 * page);
    glebe_contig contig;
    glebe_drift drift;
    glebe_on_node node;
    size_t count = 77;
    unsigned char *at = glebe_mmap_contig(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);

    REFUSED(glebe_contig_verify(&page, &drift, 1, &count), GLEBE_ERROR_UNMAPPED);
    REFUSED(glebe_contig_nodes(&page, &node, 1, &count), GLEBE_ERROR_UNMAPPED);
    if (at == MAP_FAILED) {
        fprintf(stderr, "skipped: %s\n", glebe_last_error());
        return;
    }
    contig.size = sizeof contig;
    OK(glebe_contig_query(at + 2 * page + 9, &contig));
    CHECK(contig.position_pages == 2);
    is_frame_of(contig.pfn, at + 2 * page);
    OK(glebe_contig_verify(at + len - 1, &drift, 1, &count));
    CHECK(count == 0);
    REFUSED(glebe_contig_verify(at, NULL, 1, &count), GLEBE_ERROR_NULL);
    contig.size = sizeof contig;
    OK(glebe_contig_query(at, &contig));
    OK(glebe_contig_nodes(at + len - 1, &node, 1, &count));
    CHECK(count >= 1 && node.start_pages == 0);
    CHECK(count > 1 || node.len_pages * page == contig.mapped_bytes);
    REFUSED(glebe_contig_nodes(at, NULL, 1, &count), GLEBE_ERROR_NULL);
    OK(glebe_munmap_contig(at, len));
    REFUSED(glebe_contig_verify(at, &drift, 1, &count), GLEBE_ERROR_UNMAPPED);
}

static void fork_is_noticed(void) {
    const glebe_reserve_options options = options_of(GLEBE_SOURCE_PLAIN);
    const glebe_reserve reserve = create(&options, 2 * MIB);
    glebe_block block = {0};
    int status = 0;
    pid_t child;

    OK(glebe_alloc_with(reserve, 1, 1, GLEBE_ANY, &block));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        glebe_contig contig;
        glebe_drift drift;
        glebe_on_node node;
        size_t n = 0;
        contig.size = sizeof contig;
        alarm(20);
        REFUSED(glebe_block_query(block, 0, &contig), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_query(reserve, 0, &contig), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_grow(reserve, MIB, NULL), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_shrink(reserve, MIB, NULL), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_verify(reserve, &drift, 1, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_why_not(reserve, NULL, 0, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_format_stats(reserve, 0, NULL, 0, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_serve_stats(reserve, NULL, NULL, 0, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_contig_verify(&page, &drift, 1, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_reserve_nodes(reserve, &node, 1, &n), GLEBE_ERROR_FORKED);
        REFUSED(glebe_contig_nodes(&page, &node, 1, &n), GLEBE_ERROR_FORKED);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_free(block));
    OK(glebe_reserve_free(reserve));
}

int main(void) {
    page = glebe_page_bytes();
    blocks(GLEBE_SOURCE_AUTO);
    blocks(GLEBE_SOURCE_PLAIN);
    resized();
    nodes_are_told();
    nodes_are_chosen();
    a_set_of_nodes_is_chosen();
    what_has_gone_is_told();
    reasons();
    statistics_as_text();
    statistics_are_served();
    mappings();
    fork_is_noticed();
    puts("place.c: ok");
    return 0;
}
