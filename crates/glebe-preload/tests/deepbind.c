/* The source of a program, of the library that it links with (-DMIDDLE), and of a plugin (-DPLUGIN)
   that this library loads with RTLD_DEEPBIND. Program and plugin free each other's objects. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(PLUGIN)

char *plugin_copy(const char *text) {
    return strdup(text);
}

void plugin_release(char *text) {
    free(text);
}

#elif defined(MIDDLE)

void *middle_open(void) {
    return dlopen("libplugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

#else

#include <glebe_malloc.h>

void *middle_open(void);

int main(void) {
    struct glebe_malloc_stats stats = {.size = sizeof stats};
    void *plugin = middle_open();
    if (!plugin) {
        puts(dlerror());
        return 3;
    }
    char *(*copy)(const char *) = (char *(*)(const char *))dlsym(plugin, "plugin_copy");
    void (*release)(char *) = (void (*)(char *))dlsym(plugin, "plugin_release");
    if (!copy || !release) return 4;
    for (int n = 0; n < 1000; n++) {
        char *theirs = copy("a string of the plugin's");
        if (strcmp(theirs, "a string of the plugin's")) return 5;
        free(theirs);
        char *ours = malloc(100 + (size_t)n);
        strcpy(ours, "a string of the program's");
        release(ours);
    }
    if (dlopen("no such library", RTLD_NOW)) return 6;
    if (!strstr(dlerror(), "no such library")) return 7;
    if (glebe_malloc_get_stats) glebe_malloc_get_stats(&stats);
    printf("deepbind_opens=%ju\n", (uintmax_t)stats.deepbind_opens);
    return 0;
}

#endif
