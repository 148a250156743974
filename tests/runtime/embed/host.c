/* A host that loads the library by itself, keeps its names to itself, and lets go of it again:
 * host LIBRARY COPY BUNDLE. COPY is another file of the same library. */
#include <dlfcn.h>

#include "check.h"

typedef ssd_status (*open_function)(const char *, const char *, ssd_model **);
typedef ssd_status (*close_function)(ssd_model *);
typedef const char *(*error_function)(void);

#define NEEDS(claim)                                                    \
    do {                                                                \
        if (!(claim)) {                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #claim);         \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static void *loaded(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    NEEDS(library != NULL);
    return library;
}

static ssd_model *opened(void *library, const char *bundle)
{
    open_function open_model;
    error_function last_error;
    ssd_model *model = NULL;
    *(void **)&open_model = dlsym(library, "ssd_model_open");
    *(void **)&last_error = dlsym(library, "ssd_last_error");
    NEEDS(open_model != NULL && last_error != NULL);
    if (open_model(bundle, "{\"mode\": \"ar\"}", &model) != SSD_OK)
        fprintf(stderr, "%s\n", last_error());
    NEEDS(model != NULL);
    return model;
}

static ssd_status closed(void *library, ssd_model *model)
{
    close_function close_model;
    *(void **)&close_model = dlsym(library, "ssd_model_close");
    NEEDS(close_model != NULL);
    return close_model(model);
}

int main(int argc, char **argv)
{
    NEEDS(argc == 4);
    void *library = loaded(argv[1]);
    ssd_model *model = opened(library, argv[3]);
    NEEDS(dlclose(library) == 0);
    library = loaded(argv[1]); /* as it was left, its models too */
    NEEDS(closed(library, model) == SSD_OK);

    void *copy = loaded(argv[2]);
    NEEDS(library != copy);
    model = opened(library, argv[3]);
    ssd_model *other = opened(copy, argv[3]);
    NEEDS(closed(copy, model) == SSD_ERROR_HANDLE); /* each has models of its own */
    NEEDS(closed(copy, other) == SSD_OK);
    NEEDS(dlclose(copy) == 0);
    return 0; /* with a model open, and the library loaded */
}
