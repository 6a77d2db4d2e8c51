/* A driver with the calls that `glebe-bench gpu` makes, in ordinary memory: it moves the bytes at
 * once, keeps count of what is handed out, and says at the end of the process what was not given
 * back. Behaviour is chosen by the environment:
 *   FAKE_DEVICES=N   lists N devices (1)
 *   FAKE_REFUSE=NAME the call of that name fails
 *   FAKE_SPOIL=1     a byte of each large copy to the device is wrong
 *   FAKE_COUNTS=FILE where the counts go */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, REFUSED = 801 };

static long copies, registered, host, device, contexts;
static long all_registered, all_host;

static int refused(const char *name)
{
    const char *named = getenv("FAKE_REFUSE");
    return named && !strcmp(named, name);
}
#define CHECK(name) do { if (refused(name)) return REFUSED; } while (0)

int cuInit(unsigned flags) { CHECK("cuInit"); return flags ? INVALID : SUCCESS; }
int cuGetErrorName(int status, const char **name)
{
    if (status != REFUSED)
        return INVALID;
    *name = "CUDA_ERROR_NOT_SUPPORTED";
    return SUCCESS;
}
int cuDeviceGetCount(int *count)
{
    const char *devices = getenv("FAKE_DEVICES");
    *count = devices ? atoi(devices) : 1;
    return SUCCESS;
}
int cuDeviceGet(int *found, int ordinal) { *found = 70 + ordinal; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int of)
{
    CHECK("cuDevicePrimaryCtxRetain");
    contexts++;
    *context = &contexts;
    return of == 70 ? SUCCESS : INVALID;
}
int cuDevicePrimaryCtxRelease_v2(int of) { contexts--; return of == 70 ? SUCCESS : INVALID; }
int cuCtxSetCurrent(void *context) { return context == &contexts ? SUCCESS : INVALID; }
int cuMemAlloc_v2(unsigned long long *at, size_t len)
{
    CHECK("cuMemAlloc");
    void *bytes = malloc(len);
    device++;
    *at = (unsigned long long)(size_t)bytes;
    return SUCCESS;
}
int cuMemFree_v2(unsigned long long at) { device--; free((void *)(size_t)at); return SUCCESS; }
int cuMemHostAlloc(void **at, size_t len, unsigned flags)
{
    CHECK("cuMemHostAlloc");
    if (posix_memalign(at, 1 << 12, len) || flags)
        return INVALID;
    memset(*at, 0, len);
    host++;
    all_host++;
    return SUCCESS;
}
int cuMemFreeHost(void *at) { host--; free(at); return SUCCESS; }
int cuMemHostRegister_v2(void *at, size_t len, unsigned flags)
{
    CHECK("cuMemHostRegister");
    if (!at || !len || flags)
        return INVALID;
    registered++;
    all_registered++;
    return SUCCESS;
}
int cuMemHostUnregister(void *at) { registered--; return at ? SUCCESS : INVALID; }
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t len)
{
    CHECK("cuMemcpyHtoD");
    memcpy((void *)(size_t)to, from, len);
    if (getenv("FAKE_SPOIL") && len > 1 << 20)
        ((char *)(size_t)to)[len / 2] ^= 1;
    copies++;
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t len)
{
    memcpy(to, (void *)(size_t)from, len);
    copies++;
    return SUCCESS;
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("FAKE_COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "left %ld %ld %ld %ld\n", registered, host, device, contexts);
    fprintf(file, "made %ld %ld\ncopies %ld\n", all_registered, all_host, copies);
    fclose(file);
}
