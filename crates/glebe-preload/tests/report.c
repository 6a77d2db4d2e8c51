/* Ends, or makes the library write reports, in the way that the argument names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stop;
static volatile sig_atomic_t heard;

static void *busy(void *with) {
    while (!stop) {
        char *block = malloc(1 + (size_t)rand() % 300000);
        block[0] = 1;
        free(block);
    }
    return with;
}

static void signals(void) {
    pthread_t threads[2];
    for (int n = 0; n < 2; n++) pthread_create(&threads[n], NULL, busy, NULL);
    for (int n = 0; n < 50; n++) {
        kill(getpid(), SIGUSR2);
        usleep(1000);
    }
    stop = 1;
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
}

static void hear(int number) { heard = number; }

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    memset(malloc(1000), 1, 1000);
    if (strcmp(how, "close") == 0) {
        fclose(stderr);
    } else if (strcmp(how, "replace") == 0) {
        /* Another file gets the descriptor of the standard error output. */
        int other = open(arguments[2], O_WRONLY | O_CREAT, 0600);
        dup2(other, 2);
        closefrom(3);
    } else if (strcmp(how, "signal") == 0) {
        signals();
    } else if (strcmp(how, "own") == 0) {
        signal(SIGUSR2, hear);
        raise(SIGUSR2);
        printf("heard %d\n", heard == SIGUSR2);
    } else if (strcmp(how, "fork") == 0) {
        int status;
        pid_t child = fork();
        if (child == 0) exit(0);
        waitpid(child, &status, 0);
        printf("%d %d\n", getpid(), child);
    } else if (strcmp(how, "_exit") == 0) {
        _exit(0);
    } else if (strcmp(how, "pipe") == 0) {
        /* Runs this program again with a pipe without a reader as standard error output. */
        int ends[2];
        if (pipe(ends) || dup2(ends[1], 2) != 2 || close(ends[0]) || close(ends[1])) return 1;
        execv(arguments[0], arguments + 1);
        return 1;
    } else if (strcmp(how, "move") == 0) {
        if (chdir(arguments[2])) return 1;
    }
    puts("end");
    return 5;
}
