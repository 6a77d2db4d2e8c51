/* A CUDA runtime without a GPU: registers ranges, and checks each call.
 *
 * `fake_violations` counts what the real runtime or the kernel would punish: ranges that are not
 * aligned, not mapped, registered twice or unknown, and calls in a forked child. Tests set delays
 * and failures by the other `fake_` functions. FAKE_LOG names a file that gets a line for each call
 * that changes registrations, and at the end the number of ranges that are left.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, NO_DEVICE = 100, REGISTERED = 712, NOT_REGISTERED = 713 };
enum { RANGES = 4096, DEVICES = 4 };

static struct { uintptr_t start; size_t length; int device; } ranges[RANGES];
static int count, registers, unregisters, relaxed, violations, pending;
static int delay_us, fail_register_at, fail_register_code, fail_unregister_at;
static int fail_unregister_code, fail_synchronize_code, registering, most_registering;
static int synchronized[DEVICES];
static pid_t home;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device, last_error, sets;

static void say(const char *what, const void *start, size_t length)
{
    const char *path = getenv("FAKE_LOG");
    char line[128];
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0)
        return;
    int size = snprintf(line, sizeof line, "%s %d %p %zu\n", what, getpid(), start, length);
    if (write(fd, line, size) != size)
        abort();
    close(fd);
}

__attribute__((constructor)) static void begin(void) { home = getpid(); }

__attribute__((destructor)) static void end(void)
{
    if (getpid() == home)
        say(violations ? "violated" : "left", NULL, count);
}

/* Counts a violation unless the call is right, and says so on standard error. */
static int check(int right, const char *what)
{
    if (!right) {
        violations++;
        fprintf(stderr, "fake_cudart: %s\n", what);
        say(what, NULL, 0);
    }
    return right;
}

static int fail(int code)
{
    pthread_mutex_lock(&lock);
    pending += (code != 0) - (last_error != 0);
    pthread_mutex_unlock(&lock);
    return last_error = code;
}

static int is_mapped(const void *start, size_t length)
{
    size_t pages = length / sysconf(_SC_PAGESIZE);
    unsigned char *resident = malloc(pages);
    int answer = mincore((void *)start, length, resident) == 0;
    for (size_t page = 0; answer && page < pages; page++)
        answer = resident[page] & 1;
    free(resident);
    return answer;
}

static int find(uintptr_t start, size_t length)
{
    for (int n = 0; n < count; n++)
        if (start < ranges[n].start + ranges[n].length && ranges[n].start < start + length)
            return n;
    return -1;
}

int cudaHostRegister(void *start, size_t length, unsigned flags)
{
    size_t page = sysconf(_SC_PAGESIZE);
    int right = check(getpid() == home, "a register in a child");
    right &= check(flags == 0, "flags");
    right &= check(length && length % page == 0 && (uintptr_t)start % page == 0, "no whole pages");
    if (!right)
        return fail(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    int nth = ++registers;
    registering++;
    if (registering > most_registering)
        most_registering = registering;
    pthread_mutex_unlock(&lock);
    usleep(delay_us);
    check(is_mapped(start, length), "a register of memory that is not mapped");
    int code = 0;
    pthread_mutex_lock(&lock);
    registering--;
    if (nth == fail_register_at)
        code = fail_register_code;
    else if (!check(find((uintptr_t)start, length) < 0, "a second register") || count == RANGES)
        code = REGISTERED;
    else {
        ranges[count].start = (uintptr_t)start;
        ranges[count].length = length;
        ranges[count++].device = device;
    }
    pthread_mutex_unlock(&lock);
    say(code ? "refused" : "register", start, length);
    return code ? fail(code) : 0;
}

int cudaHostUnregister(void *start)
{
    int code = 0;
    check(getpid() == home, "an unregister in a child");
    pthread_mutex_lock(&lock);
    int n = find((uintptr_t)start, 1);
    size_t length = n < 0 ? 0 : ranges[n].length;
    if (++unregisters == fail_unregister_at)
        code = fail_unregister_code;
    else if (!check(n >= 0 && ranges[n].start == (uintptr_t)start, "an unknown unregister"))
        code = NOT_REGISTERED;
    else {
        check(is_mapped(start, length), "an unregister of memory that is not mapped");
        ranges[n] = ranges[--count];
    }
    pthread_mutex_unlock(&lock);
    say(code ? "refused" : "unregister", start, length);
    return code ? fail(code) : 0;
}

int cudaGetDevice(int *number)
{
    check(getpid() == home, "a question for the device in a child");
    *number = device;
    return 0;
}

int cudaSetDevice(int number)
{
    check(getpid() == home, "a set device in a child");
    if (number < 0 || number >= DEVICES)
        return fail(NO_DEVICE);
    sets++;
    device = number;
    return 0;
}

int cudaDeviceSynchronize(void)
{
    check(getpid() == home, "a synchronize in a child");
    usleep(delay_us);
    if (fail_synchronize_code)
        return fail(fail_synchronize_code);
    pthread_mutex_lock(&lock);
    synchronized[device]++;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    relaxed += *mode == 2;
    *mode = 0;
    return 0;
}

int cudaGetLastError(void)
{
    int code = last_error;
    fail(0);
    return code;
}

const char *cudaGetErrorString(int code)
{
    switch (code) {
    case INVALID_VALUE: return "invalid argument";
    case 2: return "out of memory";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case REGISTERED: return "part or all of the requested memory range is already mapped";
    case NOT_REGISTERED: return "pointer does not correspond to a registered memory region";
    case 900: return "operation not permitted when stream is capturing";
    default: return "unknown error";
    }
}

void fake_delay_us(int us) { delay_us = us; }
void fake_fail_register(int nth, int code)
{
    fail_register_at = registers + nth;
    fail_register_code = code;
}
void fake_fail_unregister(int nth, int code)
{
    fail_unregister_at = unregisters + nth;
    fail_unregister_code = code;
}
void fake_fail_synchronize(int code) { fail_synchronize_code = code; }
int fake_violations(void) { return violations; }
int fake_pending(void) { return pending; }
int fake_count(void) { return count; }
int fake_registers(void) { return registers; }
/* Returns how often the calling thread has set a device, which starts a context there. */
int fake_sets(void) { return sets; }
int fake_relaxed(void) { return relaxed; }
int fake_most_registering(void) { return most_registering; }
int fake_synchronizes(int number) { return synchronized[number]; }
int fake_device(int n) { return ranges[n].device; }
size_t fake_length(int n) { return ranges[n].length; }
void *fake_start(int n) { return (void *)ranges[n].start; }
int fake_is_registered(void *start, size_t length)
{
    int n = find((uintptr_t)start, 1);
    return n >= 0 && (uintptr_t)start + length <= ranges[n].start + ranges[n].length;
}
void fake_forget(void) { count = 0; }
