/* Checks for the C and C++ tests. A failed check prints its place and the last error, and exits. */
#ifndef ALL_H
#define ALL_H

#include <stdio.h>
#include <stdlib.h>

#include "glebe.h"

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #condition,      \
                    glebe_last_error());                                                        \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* Makes a handle of any number: an invalid one, or one of another kind. */
#ifdef __cplusplus
#define HANDLE(kind, number) kind{number}
#else
#define HANDLE(kind, number) ((kind){number})
#endif

/* Returns the rounds of a search: `rounds / part`, or `rounds` if GLEBE_LONG is set. */
static inline int share(int rounds, int part) {
    const char *is_long = getenv("GLEBE_LONG");
    return is_long && *is_long && *is_long != '0' ? rounds : rounds / part;
}

#define OK(call) CHECK((call) == GLEBE_OK)
#define REFUSED(call, code) CHECK((call) == (code))

#endif
