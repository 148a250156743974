/* Whatever a caller does wrong is refused with a status and a line: refusals BUNDLE. */
#include "texts.h"

static void check_handles(const char *bundle)
{
    ssd_model *model = opened(bundle, AR), *none = (ssd_model *)&model;
    ssd_request *request = begun(model, NULL);
    ssd_state state;
    size_t needed;
    REFUSED(ssd_request_begin(NULL, PROMPT, NULL, &request), SSD_ERROR_HANDLE, "NULL");
    CHECK(request == NULL);
    request = begun(model, NULL);
    REFUSED(ssd_request_wait(NULL, 0, &state), SSD_ERROR_HANDLE, "request");
    REFUSED(ssd_request_wait((ssd_request *)model, 0, &state), SSD_ERROR_HANDLE, "request");
    REFUSED(ssd_model_close((ssd_model *)request), SSD_ERROR_HANDLE, "model");
    REFUSED(ssd_encode(none, "a", NULL, 0, &needed), SSD_ERROR_HANDLE, "model");
    REFUSED(ssd_request_begin(model, PROMPT, NULL, NULL), SSD_ERROR_USAGE, "request is NULL");
    REFUSED(ssd_model_open(bundle, NULL, NULL), SSD_ERROR_USAGE, "model is NULL");
    REFUSED(ssd_request_wait(request, 0, NULL), SSD_ERROR_USAGE, "state is NULL");
    REFUSED(ssd_request_read(request, 0, NULL), SSD_ERROR_USAGE, "piece is NULL");
    OK(ssd_request_destroy(request));
    REFUSED(ssd_request_destroy(request), SSD_ERROR_HANDLE, "destroyed");
    REFUSED(ssd_request_cancel(request), SSD_ERROR_HANDLE, "destroyed");
    OK(ssd_model_close(model));
    REFUSED(ssd_model_close(model), SSD_ERROR_HANDLE, "closed");
    REFUSED(ssd_request_begin(model, PROMPT, NULL, &request), SSD_ERROR_HANDLE, "closed");
    OK(ssd_model_close(NULL));
    OK(ssd_request_destroy(NULL));
}

static void check_refused_bundles(const char *bundle)
{
    ssd_model *model = (ssd_model *)&bundle;
    REFUSED(ssd_model_open("/no/such/bundle", NULL, &model), SSD_ERROR_BUNDLE_MISSING, "/no/such");
    CHECK(model == NULL);
    REFUSED(ssd_model_open(NULL, NULL, &model), SSD_ERROR_USAGE, "bundle is NULL");
    REFUSED(ssd_model_open("\xff", NULL, &model), SSD_ERROR_USAGE, "UTF-8");
    REFUSED(ssd_model_open(bundle, "mode", &model), SSD_ERROR_USAGE, "JSON");
    REFUSED(ssd_model_open(bundle, "[]", &model), SSD_ERROR_USAGE, "object");
    REFUSED(ssd_model_open(bundle, "{\"mod\": 1}", &model), SSD_ERROR_USAGE, "mod");
    REFUSED(ssd_model_open(bundle, "{\"mode\": 1}", &model), SSD_ERROR_USAGE, "mode");
    REFUSED(ssd_model_open(bundle, "{\"mode\": \"no\"}", &model), SSD_ERROR_USAGE, "no");
    REFUSED(ssd_model_open(bundle, "{\"max_batch\": 2.5}", &model), SSD_ERROR_USAGE, "2.5");
    REFUSED(ssd_model_open(bundle, "{\"saguaro\": NaN}", &model), SSD_ERROR_USAGE, "saguaro");
    REFUSED(ssd_model_open(bundle, "{\"prefix_reuse\": 1}", &model), SSD_ERROR_USAGE, "prefix");
    REFUSED(ssd_model_open(bundle, "{\"max_batch\": 9999}", &model), SSD_ERROR_CAPACITY, "9999");
    CHECK(model == NULL);
}

static void check_refused_options(ssd_model *model)
{
    static const char *const stops[] = {"a", "\xff"};
    static const ssd_logit_bias biases[] = {{5, 1.0}, {5, 2.0}};
    ssd_request *request;
    ssd_options options = defaults();

    options.struct_size = 8;
    REFUSED(ssd_request_begin(model, PROMPT, &options, &request), SSD_ERROR_USAGE, "8 bytes");
    options.struct_size = sizeof options + 8;
    REFUSED(ssd_request_begin(model, PROMPT, &options, &request), SSD_ERROR_USAGE, "newer");
    REFUSED(ssd_options_init(&options, 3), SSD_ERROR_USAGE, "3 bytes");
    REFUSED(ssd_options_init(NULL, sizeof options), SSD_ERROR_USAGE, "NULL");

#define BAD(field, value, status, word)                                                  \
    do {                                                                                 \
        options = defaults();                                                            \
        options.field = (value);                                                         \
        REFUSED(ssd_request_begin(model, PROMPT, &options, &request), (status), (word)); \
        CHECK(request == NULL);                                                          \
    } while (0)
    BAD(temperature, -1.0, SSD_ERROR_USAGE, "temperature");
    BAD(temperature, strtod("nan", NULL), SSD_ERROR_USAGE, "temperature");
    BAD(top_p, 0.0, SSD_ERROR_USAGE, "top_p");
    BAD(top_k, -1, SSD_ERROR_USAGE, "top_k");
    BAD(min_p, 2.0, SSD_ERROR_USAGE, "min_p");
    BAD(repetition_penalty, 0.0, SSD_ERROR_USAGE, "repetition_penalty");
    BAD(max_tokens, 0, SSD_ERROR_USAGE, "max-tokens");
    BAD(min_tokens, 500, SSD_ERROR_USAGE, "min-tokens");
    BAD(logprobs, -2, SSD_ERROR_USAGE, "logprobs");
    BAD(grammar, "{}", SSD_ERROR_USAGE, "grammar_kind");
    BAD(grammar_kind, 77, SSD_ERROR_USAGE, "77");
    BAD(grammar_kind, SSD_GRAMMAR_REGEX, SSD_ERROR_USAGE, "grammar is NULL");
    BAD(num_stop, 1, SSD_ERROR_USAGE, "stop is NULL");
    BAD(num_stop_token_ids, SIZE_MAX, SSD_ERROR_USAGE, "stop_token_ids");
    BAD(cache_salt, "", SSD_ERROR_USAGE, "cache-salt");

    options = defaults();
    options.stop = stops;
    options.num_stop = 2;
    REFUSED(ssd_request_begin(model, PROMPT, &options, &request), SSD_ERROR_USAGE, "UTF-8");
    options = defaults();
    options.logit_bias = biases;
    options.num_logit_bias = 2;
    REFUSED(ssd_request_begin(model, PROMPT, &options, &request), SSD_ERROR_USAGE, "twice");
    REFUSED(ssd_request_begin(model, NULL, NULL, &request), SSD_ERROR_USAGE, "prompt is NULL");
    REFUSED(ssd_request_begin(model, "", NULL, &request), SSD_ERROR_USAGE, "empty");
    REFUSED(ssd_request_begin(model, "\xc3(", NULL, &request), SSD_ERROR_USAGE, "UTF-8");
    REFUSED(ssd_request_begin_tokens(model, NULL, 3, NULL, &request), SSD_ERROR_USAGE, "NULL");
    REFUSED(ssd_request_begin_tokens(model, NULL, 0, NULL, &request), SSD_ERROR_USAGE, "empty");
    REFUSED(ssd_request_begin_chat(model, NULL, 0, NULL, &request), SSD_ERROR_USAGE, "messages");
}

static void check_buffers(ssd_model *model)
{
    ssd_options options = defaults();
    ssd_request *request;
    ssd_result result;
    ssd_piece piece;
    ssd_state state;
    char small[4] = "abc", *text;
    int32_t ids[64];
    size_t needed = 0;

    OK(ssd_encode(model, PROMPT, NULL, 0, &needed));
    CHECK(needed > 1 && needed < 64);
    REFUSED(ssd_encode(model, PROMPT, ids, 1, &needed), SSD_ERROR_BUFFER, "needed");
    REFUSED(ssd_encode(model, PROMPT, NULL, 5, &needed), SSD_ERROR_USAGE, "NULL");
    REFUSED(ssd_encode(model, PROMPT, NULL, 0, NULL), SSD_ERROR_USAGE, "NULL");
    OK(ssd_encode(model, PROMPT, ids, 64, &needed));
    text = malloc(64);
    OK(ssd_decode(model, ids, needed, text, 64, NULL));
    CHECK(strcmp(text, PROMPT) == 0);
    free(text);
    REFUSED(ssd_decode(model, ids, needed, small, sizeof small, &needed), SSD_ERROR_BUFFER, "4");
    CHECK(strcmp(small, "abc") == 0 && needed == strlen(PROMPT) + 1);
    ids[0] = -1;
    REFUSED(ssd_decode(model, ids, 1, small, sizeof small, &needed), SSD_ERROR_USAGE, "-1");
    REFUSED(ssd_model_text(model, (ssd_model_text_kind)99, NULL, 0, &needed), SSD_ERROR_USAGE, "99");

    options.max_tokens = 20;
    request = begun(model, &options);
    OK(ssd_piece_init(&piece, sizeof piece));
    REFUSED(ssd_request_read(request, 0, &piece), SSD_ERROR_USAGE, "ssd_request_wait");
    piece.text = small;
    piece.text_size = sizeof small;
    REFUSED(ssd_request_read(request, 0, &piece), SSD_ERROR_BUFFER, "5");
    piece.text = NULL;
    piece.token_ids = ids;
    REFUSED(ssd_request_read(request, 0, &piece), SSD_ERROR_BUFFER, "at least 1");
    piece.struct_size = 0;
    REFUSED(ssd_request_read(request, 0, &piece), SSD_ERROR_USAGE, "0 bytes");
    OK(ssd_request_wait(request, -1, &state));
    REFUSED(ssd_request_result(request, &result, 1), SSD_ERROR_USAGE, "1 bytes");
    REFUSED(ssd_request_result(request, NULL, sizeof result), SSD_ERROR_USAGE, "NULL");
    REFUSED(ssd_request_token_ids(request, ids, 2, &needed), SSD_ERROR_BUFFER, "20");
    CHECK(needed == 20);
    OK(ssd_request_destroy(request));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(ssd_abi_version() == SSD_ABI_VERSION && strlen(ssd_version()) > 0);
    CHECK(strcmp(ssd_last_error(), "") == 0);
    CHECK(strcmp(ssd_status_name(SSD_ERROR_INTERNAL), "SSD_ERROR_INTERNAL") == 0);
    CHECK(strcmp(ssd_status_name((ssd_status)-1), "unknown status") == 0);
    check_refused_bundles(argv[1]);
    check_handles(argv[1]);
    ssd_model *model = opened(argv[1], AR);
    check_refused_options(model);
    check_buffers(model);
    OK(ssd_model_close(model));
    return 0;
}
