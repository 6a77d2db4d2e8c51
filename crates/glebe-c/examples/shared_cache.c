/* Finds what an earlier run of this program stored, or stores it; with an argument, clears it.
 * cc shared_cache.c $(pkg-config --cflags --libs glebe) && ./a.out && ./a.out && ./a.out clear */
#include <glebe.h>
#include <stdio.h>

int main(int count, char **arguments) {
    glebe_shared_cache cache;
    char text[64];
    size_t len_bytes;
    int found, ended = GLEBE_OK;
    (void)arguments;
    if (glebe_shared_cache_open("an example", NULL, &cache) != GLEBE_OK) {
        printf("no cache: %s\n", glebe_last_error());
        return 0;
    }
    found = glebe_shared_cache_get(cache, "key", 3, text, sizeof text, &len_bytes);
    if (found == GLEBE_GET_HIT)
        printf("found %.*s\n", (int)len_bytes, text);
    else if (glebe_shared_cache_put(cache, "key", 3, "hello", 5) == GLEBE_PUT_STORED)
        puts("stored hello: run again");
    if (count > 1) ended = glebe_shared_cache_end(cache);
    return ended == GLEBE_OK && glebe_shared_cache_free(cache) == GLEBE_OK ? 0 : 1;
}
