/* Many threads, one model, one library that they start together: threads BUNDLE. */
#include <pthread.h>

#include "texts.h"

static ssd_model *shared;
static char *expected;

static void *many_texts(void *unused)
{
    ssd_options options = defaults();
    options.max_tokens = 30;
    options.temperature = 0.9;
    options.seed = 5;
    for (int i = 0; i < 4; i++) {
        ssd_request *request = begun(shared, &options);
        size_t num_ids;
        char *text = read_all(request, 64, 8, &num_ids);
        CHECK(strcmp(text, expected) == 0);
        CHECK(strcmp(ssd_last_error(), "") == 0); /* the other thread's errors are its own */
        free(text);
        OK(ssd_request_destroy(request));
    }
    return unused;
}

static void *many_errors(void *unused)
{
    for (int i = 0; i < 200; i++) {
        ssd_request *request;
        REFUSED(ssd_request_begin(shared, "", NULL, &request), SSD_ERROR_USAGE, "empty");
    }
    return unused;
}

static void *late_cancel(void *request)
{
    OK(ssd_request_cancel(request));
    return NULL;
}

static void *open_one(void *bundle)
{
    return opened(bundle, AR);
}

int main(int argc, char **argv)
{
    const char *bundle = argv[1];
    pthread_t threads[3];
    ssd_options options = defaults();
    ssd_request *request;
    ssd_result result;
    void *models[2];
    size_t num_ids;
    CHECK(argc == 2);

    /* Two threads start the library at once; the threads that opened a model may be gone. */
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, open_one, (void *)bundle) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], &models[i]) == 0);
    OK(ssd_model_close(models[0]));
    shared = models[1];

    options.max_tokens = 30;
    options.temperature = 0.9;
    options.seed = 5;
    request = begun(shared, &options);
    expected = read_all(request, 64, 8, &num_ids);
    OK(ssd_request_destroy(request));
    CHECK(pthread_create(&threads[0], NULL, many_texts, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, many_texts, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, many_errors, NULL) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    /* Cancelled by another thread, while this one waits without a limit. */
    options = defaults();
    options.max_tokens = 150;
    options.ignore_eos = 1;
    for (int i = 0; i < 8; i++) {
        request = begun(shared, &options);
        CHECK(pthread_create(&threads[0], NULL, late_cancel, request) == 0);
        wait_for(request);
        OK(ssd_request_result(request, &result, sizeof result));
        CHECK(pthread_join(threads[0], NULL) == 0);
        OK(ssd_request_destroy(request));
    }
    free(expected);
    OK(ssd_model_close(shared));
    return 0;
}
