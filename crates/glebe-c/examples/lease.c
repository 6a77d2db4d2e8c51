/* Leases 64 MiB from a daemon (glebe serve --leases), and shows where the pages are.
 * cc lease.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    glebe_lease lease;
    glebe_run runs[4];
    void *at;
    uint64_t len_bytes;
    size_t count, n;
    if (glebe_lease_new((uint64_t)64 << 20, NULL, &lease, NULL) != GLEBE_OK) {
        printf("no lease: %s\n", glebe_last_error());
        return 0;
    }
    if (glebe_lease_memory(lease, &at, &len_bytes) || glebe_lease_runs(lease, runs, 4, &count)) {
        fprintf(stderr, "%s\n", glebe_last_error());
        return 1;
    }
    memset(at, 1, (size_t)len_bytes);
    printf("%llu MiB at %p, in %zu runs\n", (unsigned long long)len_bytes >> 20, at, count);
    for (n = 0; n < count && n < 4; n++) {
        printf("%llu pages", (unsigned long long)runs[n].len_pages);
        if (runs[n].pfn == GLEBE_PFN_HIDDEN) puts(", whose frames the daemon does not see");
        else printf(" from frame %#llx on\n", (unsigned long long)runs[n].pfn);
    }
    return glebe_lease_free(lease) == GLEBE_OK ? 0 : 1;
}
