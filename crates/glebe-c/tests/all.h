/* What the C and the C++ program share: a check that says where it failed and why. */
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

/* A handle that was made up, or of another kind's number. */
#ifdef __cplusplus
#define HANDLE(kind, number) kind{number}
#else
#define HANDLE(kind, number) ((kind){number})
#endif

/* The rounds of a search: one in `part`, or all of them where GLEBE_LONG asks for that. */
static inline int share(int rounds, int part) {
    const char *is_long = getenv("GLEBE_LONG");
    return is_long && *is_long && *is_long != '0' ? rounds : rounds / part;
}

#define OK(call) CHECK((call) == GLEBE_OK)
#define REFUSED(call, code) CHECK((call) == (code))

#endif
