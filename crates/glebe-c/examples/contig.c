/* Maps contiguous memory as mmap(2) maps memory, and asks for its place.
 * cc contig.c $(pkg-config --cflags --libs glebe) && ./a.out */
#define _DEFAULT_SOURCE
#include <glebe.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(void) {
    const size_t len = 8 * (size_t)glebe_page_bytes();
    glebe_contig place;
    void *at = glebe_mmap_contig(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                 -1, 0);
    if (at == MAP_FAILED) {
        printf("none can be had: %s\n", glebe_last_error());
        return 0;
    }
    memset(at, 1, len);
    place.size = sizeof place;
    if (glebe_contig_query(at, &place) != GLEBE_OK) {
        fprintf(stderr, "%s\n", glebe_last_error());
        return 1;
    }
    printf("%llu KiB in one piece at %p, ", (unsigned long long)place.contiguous_bytes >> 10, at);
    if (place.pfn == GLEBE_PFN_HIDDEN) puts("whose frames only CAP_SYS_ADMIN may see");
    else printf("from frame %#llx on\n", (unsigned long long)place.pfn);
    return glebe_munmap_contig(at, len) == GLEBE_OK ? 0 : 1;
}
