/* Two processes share pictures. Either may take the memory of pictures that no process has pinned,
 * and draws a lost picture again.
 * cc shared.c $(pkg-config --cflags --libs glebe) && ./a.out */
#define _POSIX_C_SOURCE 200809L
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PICTURES 16
#define PICTURE_BYTES ((uint64_t)65536)

static int check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
    return answer;
}

/* Shows a picture. Returns true if it had to be drawn. */
static int show(glebe_shared pictures, uint64_t number) {
    glebe_pin pin;
    void *address;
    int answer, is_right;
    answer = check(glebe_pin_new(pictures, number * PICTURE_BYTES, PICTURE_BYTES, &pin));
    check(glebe_pin_memory(pin, &address, NULL));
    if (answer == GLEBE_PIN_LOST) {
        memset(address, (int)number + 1, PICTURE_BYTES);
        check(glebe_pin_restored(pin));
    }
    is_right = *(unsigned char *)address == number + 1;
    check(glebe_pin_free(pin));
    if (!is_right) exit(1);
    return answer == GLEBE_PIN_LOST;
}

int main(void) {
    const uint64_t len_bytes = PICTURES * PICTURE_BYTES;
    glebe_shared_options options;
    glebe_shared pictures;
    uint64_t number, purged;
    void *address;
    int drawn = 0, status;
    pid_t child;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.granule_bytes = PICTURE_BYTES;
    check(glebe_shared_new(len_bytes, &options, &pictures));
    check(glebe_shared_memory(pictures, &address, NULL, NULL));
    for (number = 0; number < PICTURES; number++) {
        memset((unsigned char *)address + number * PICTURE_BYTES, (int)number + 1, PICTURE_BYTES);
    }
    /* A purge may take pictures that no process has pinned, the oldest first. */
    check(glebe_shared_mark(pictures, 0, len_bytes, GLEBE_PRIORITY_NORMAL, GLEBE_ORDER_FIFO));

    child = fork();
    if (child == 0) {
        /* The child needs memory. */
        check(glebe_shared_purge(pictures, 3 * PICTURE_BYTES, GLEBE_PRIORITY_HIGHEST, &purged));
        _exit(purged == 3 * PICTURE_BYTES ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
    for (number = 0; number < PICTURES; number++) drawn += show(pictures, number);
    printf("%d of %d pictures were drawn anew\n", drawn, PICTURES);
    check(glebe_shared_free(pictures));
    return 0;
}
