/* What the library does to the process that it is in: process CASE BUNDLE, or process tokens BUNDLE
 * OPTIONS. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "texts.h"

/* Ends with a text in the middle, one that waits, and the model open. */
static int run_exit(const char *bundle)
{
    ssd_model *model = opened(bundle, SSD);
    ssd_options options = defaults();
    ssd_request *request;
    ssd_piece piece;
    char text[64];
    options.max_tokens = 150;
    options.ignore_eos = 1;
    for (int i = 0; i < 5; i++)
        request = begun(model, &options);
    request = begun(model, &options);
    (void)request;
    request = begun(model, &options);
    OK(ssd_piece_init(&piece, sizeof piece));
    piece.text = text;
    piece.text_size = sizeof text;
    OK(ssd_request_read(request, 20, &piece));
    return 0;
}

static void *open_a_model(void *bundle)
{
    opened(bundle, SSD);
    return NULL;
}

/* The last of all exit handlers: a library that has stopped its models opens no more. */
static void look_at_the_end(void)
{
    ssd_model *model;
    ssd_status status = ssd_model_open("/no/such", NULL, &model);
    if (status != SSD_ERROR_STATE)
        fprintf(stderr, "%s: %s\n", ssd_status_name(status), ssd_last_error());
}

/* Ends while the first model is being opened, which the Python that it starts tells. */
static int run_opening(const char *bundle)
{
    int ends[2];
    char number[16], told;
    pthread_t thread;
    CHECK(atexit(look_at_the_end) == 0);
    CHECK(pipe(ends) == 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    CHECK(setenv("TELL", number, 1) == 0);
    CHECK(pthread_create(&thread, NULL, open_a_model, (void *)bundle) == 0);
    CHECK(read(ends[0], &told, 1) == 1);
    return 0;
}

static int run_fork(const char *bundle)
{
    int status;
    pid_t child = fork(); /* before the first call: the child starts a library of its own */
    CHECK(child >= 0);
    if (child == 0) {
        OK(ssd_model_close(opened(bundle, AR)));
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    ssd_model *model = opened(bundle, AR);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ssd_request *request;
        REFUSED(ssd_request_begin(model, PROMPT, NULL, &request), SSD_ERROR_FORKED, "fork");
        REFUSED(ssd_model_close(model), SSD_ERROR_FORKED, "fork");
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(ssd_model_close(model)); /* the parent's is as it was */
    return 0;
}

static volatile sig_atomic_t num_signals;

static void on_signal(int number)
{
    (void)number;
    num_signals++;
}

/* No handler of the host is replaced, and none is added. */
static int run_signals(const char *bundle)
{
    struct sigaction before[32], after, own;
    memset(before, 0, sizeof before);
    memset(&own, 0, sizeof own);
    own.sa_handler = on_signal;
    CHECK(sigaction(SIGINT, &own, NULL) == 0);
    for (int i = 1; i < 32; i++)
        CHECK(sigaction(i, NULL, &before[i]) == 0);
    ssd_model *model = opened(bundle, AR);
    ssd_request *request = begun(model, NULL);
    CHECK(raise(SIGINT) == 0 && num_signals == 1);
    wait_for(request);
    for (int i = 1; i < 32; i++) {
        CHECK(sigaction(i, NULL, &after) == 0);
        CHECK(after.sa_handler == before[i].sa_handler && after.sa_flags == before[i].sa_flags);
    }
    OK(ssd_request_destroy(request));
    OK(ssd_model_close(model));
    return 0;
}

static int run_missing(const char *bundle)
{
    ssd_model *model = (ssd_model *)&bundle;
    ssd_status status = ssd_model_open(bundle, SSD, &model);
    CHECK(model == NULL);
    printf("%s: %s\n", ssd_status_name(status), ssd_last_error());
    return 0;
}

/* Token ids of some texts, for a comparison with Python's. */
static int run_tokens(const char *bundle, const char *options_json)
{
    static const double temperatures[] = {0.0, 0.8, 1.3};
    ssd_model *model = opened(bundle, options_json);
    for (size_t i = 0; i < 3; i++) {
        ssd_options options = defaults();
        int32_t ids[64];
        size_t num;
        options.max_tokens = 48;
        options.temperature = temperatures[i];
        options.top_p = 0.95;
        options.seed = 11 + i;
        ssd_request *request = begun(model, &options);
        wait_for(request);
        OK(ssd_request_token_ids(request, ids, 64, &num));
        for (size_t j = 0; j < num; j++)
            printf("%d ", (int)ids[j]);
        printf("\n");
        OK(ssd_request_destroy(request));
    }
    OK(ssd_model_close(model));
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *bundle);
    } cases[] = {
        {"exit", run_exit}, {"opening", run_opening}, {"fork", run_fork},
        {"signals", run_signals}, {"missing", run_missing},
    };
    if (argc == 4 && strcmp(argv[1], "tokens") == 0)
        return run_tokens(argv[2], argv[3]);
    for (size_t i = 0; argc == 3 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run(argv[2]);
    fprintf(stderr, "usage: process CASE BUNDLE, or process tokens BUNDLE OPTIONS\n");
    return 2;
}
