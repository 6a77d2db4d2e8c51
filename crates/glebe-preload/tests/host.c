/* Loads a plugin with RTLD_LOCAL. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*works)(void) = plugin ? (int (*)(void))dlsym(plugin, "plugin_works") : NULL;
    if (!works) fprintf(stderr, "%s\n", dlerror());
    puts(works && works() ? "plugin: ok" : "plugin: failed");
    return 0;
}
