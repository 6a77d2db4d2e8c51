/* Calls for programs that know of `glebe run --contig --revocable`, and can do without some of their
 * huge pages. Declare them weak, or look them up by dlsym(3): only the preloaded library has them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef GLEBE_HUGE_H
#define GLEBE_HUGE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lets the daemon take whole private mappings of MAP_HUGETLB in a range when other programs need the
 * memory. A touch of memory that was taken raises SIGBUS. Returns 0, or -1 with errno:
 *   EINVAL      the range has no private mapping of leased memory, or only part of one
 *   EOPNOTSUPP  the user did not say --revocable
 *   EDQUOT      the user's limit of revocable memory (glebe serve --lease-limit-revocable)
 *   EIO         there is no daemon any more
 *   EAGAIN      the daemon does not answer now, and may yet take mappings: call glebe_huge_keep
 * After an error, some of several mappings may be offered. */
__attribute__((weak)) int glebe_huge_offer(void *address, size_t length);

/* Keeps the mappings of a range from now on. Returns 0 if all contents are there. Returns 1 if the
 * daemon has taken some: the mappings that it took are zeroed memory again, of huge pages if there
 * are any. Returns -1 with errno; some mappings may then be kept, and others be zeroed memory:
 *   EINVAL      as above
 *   EIO         there is no daemon any more: the contents are there, and nobody takes them
 *   EAGAIN      the daemon does not answer now, and may yet take mappings: call again
 *   ENOMEM      the range has lost a mapping
 * A fork takes back all offers; MADV_DONTNEED takes back the offers in its range. The next call
 * still returns 1 if the daemon took some memory, except for memory that MADV_DONTNEED zeroed. */
__attribute__((weak)) int glebe_huge_keep(void *address, size_t length);

#ifdef __cplusplus
}
#endif

#endif
