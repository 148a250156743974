/* Texts as they come and as they end, in models that are opened and closed again: texts BUNDLE. */
#include "texts.h"

static void check_pieces(ssd_model *model)
{
    static const size_t sizes[][2] = {{5, 1}, {7, 3}, {4096, 64}};
    ssd_options options = defaults();
    options.max_tokens = 40;
    options.temperature = 1.5;
    options.ignore_eos = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ssd_request *request = begun(model, &options);
        size_t num_ids;
        char *pieces = read_all(request, sizes[i][0], sizes[i][1], &num_ids);
        char *text = text_of(request, SSD_REQUEST_TEXT);
        ssd_result result;
        OK(ssd_request_result(request, &result, sizeof result));
        CHECK(strcmp(pieces, text) == 0 && strlen(text) > 0);
        CHECK(num_ids == 40 && result.num_tokens == 40);
        CHECK(result.finish_reason == SSD_FINISH_LENGTH && result.stop_token_id == -1);
        CHECK(result.num_rounds > 0 && result.num_emitted >= 40 && result.prompt_tokens > 0);
        free(pieces);
        free(text);
        OK(ssd_request_destroy(request));
    }
}

static void check_ends(ssd_model *model)
{
    ssd_options options = defaults();
    ssd_request *request;
    ssd_result result;
    ssd_state state;
    ssd_piece piece;
    char *text, *stop, letter[2] = "", buffer[64];
    const char *stops[] = {letter};
    size_t needed;

    /* A stop string in the middle: the text is what stands before it. */
    options.max_tokens = 60;
    options.temperature = 1.3;
    options.seed = 13;
    options.ignore_eos = 1;
    request = begun(model, &options);
    wait_for(request);
    text = text_of(request, SSD_REQUEST_TEXT);
    OK(ssd_request_destroy(request));
    for (char *each = text + strlen(text) - 1; each > text && letter[0] == '\0'; each--)
        if (*each > ' ' && *each < 0x7f && strchr(text, *each) == each)
            letter[0] = *each;
    CHECK(letter[0] != '\0');
    *strchr(text, letter[0]) = '\0';
    CHECK(strlen(text) > 0);
    options.stop = stops;
    options.num_stop = 1;
    request = begun(model, &options);
    wait_for(request);
    stop = text_of(request, SSD_REQUEST_TEXT);
    CHECK(strcmp(stop, text) == 0);
    free(stop);
    stop = text_of(request, SSD_REQUEST_STOP);
    CHECK(strcmp(stop, letter) == 0);
    OK(ssd_request_result(request, &result, sizeof result));
    CHECK(result.finish_reason == SSD_FINISH_STOP);
    OK(ssd_request_destroy(request));
    free(stop);
    free(text);

    /* Cancelled: what there is stays readable, and nothing is known before the end. */
    options = defaults();
    options.max_tokens = 150;
    options.ignore_eos = 1;
    request = begun(model, &options);
    OK(ssd_request_cancel(request));
    wait_for(request);
    OK(ssd_request_cancel(request));
    OK(ssd_request_result(request, &result, sizeof result));
    CHECK(result.finish_reason == SSD_FINISH_CANCELLED && result.num_tokens < 150);
    OK(ssd_request_destroy(request));

    /* One that waits for a free place has nothing to read yet, and no result. */
    ssd_request *others[8];
    for (int i = 0; i < 8; i++)
        others[i] = begun(model, &options);
    request = begun(model, &options);
    OK(ssd_piece_init(&piece, sizeof piece));
    piece.text = buffer;
    piece.text_size = sizeof buffer;
    OK(ssd_request_read(request, 0, &piece));
    CHECK(piece.state == SSD_TIMED_OUT);
    OK(ssd_request_wait(request, 0, &state));
    CHECK(state == SSD_TIMED_OUT);
    REFUSED(ssd_request_result(request, &result, sizeof result), SSD_ERROR_STATE, "not complete");
    REFUSED(ssd_request_text(request, SSD_REQUEST_TEXT, NULL, 0, &needed), SSD_ERROR_STATE, "not");
    REFUSED(ssd_request_token_ids(request, NULL, 0, &needed), SSD_ERROR_STATE, "not");
    for (int i = 0; i < 8; i++)
        OK(ssd_request_destroy(others[i])); /* cancels them, which lets the waiting one in */
    wait_for(request);
    OK(ssd_request_destroy(request));
}

/* With a single core, what was asked for as ssd runs as sd. */
static int is_mode(const char *mode, int is_plain)
{
    return is_plain ? strcmp(mode, "ar") == 0 : strcmp(mode, "ssd") == 0 || strcmp(mode, "sd") == 0;
}

static void check_reports(ssd_model *model, int is_plain)
{
    ssd_options options = defaults();
    ssd_request *request;
    ssd_model_info info;
    char *text = malloc(1 << 16);
    int32_t ids[8];
    size_t needed;

    OK(ssd_model_info_get(model, &info, sizeof info));
    CHECK(info.max_len > 0 && info.max_batch > 0 && info.vocab_size > 0 && info.has_draft == 1);
    CHECK(info.num_running == 0 && info.num_waiting == 0);
    OK(ssd_model_text(model, SSD_MODEL_MODE, text, 1 << 16, &needed));
    CHECK(is_mode(text, is_plain));
    OK(ssd_model_text(model, SSD_MODEL_JSON, text, 1 << 16, &needed));
    CHECK(strstr(text, "\"max_len\"") != NULL && text[0] == '{');
    OK(ssd_model_text(model, SSD_MODEL_PATH, text, 1 << 16, &needed));
    CHECK(text[0] == '/');
    OK(ssd_model_text(model, SSD_MODEL_NOTE, text, 1 << 16, &needed));
    OK(ssd_eos_token_ids(model, ids, 8, &needed));
    CHECK(needed >= 1);
    free(text);

    options.logprobs = 2;
    options.max_tokens = 4;
    request = begun(model, &options);
    wait_for(request);
    text = text_of(request, SSD_REQUEST_JSON);
    CHECK(strstr(text, "\"logprob\"") != NULL && strstr(text, "\"finish_reason\"") != NULL);
    free(text);
    text = text_of(request, SSD_REQUEST_MODE);
    CHECK(is_mode(text, is_plain));
    free(text);
    OK(ssd_request_destroy(request));
}

static void check_closing(const char *bundle)
{
    ssd_model *model = opened(bundle, SSD);
    ssd_options options = defaults();
    ssd_request *requests[6];
    ssd_result result;
    options.max_tokens = 150;
    options.ignore_eos = 1;
    for (int i = 0; i < 6; i++)
        requests[i] = begun(model, &options);
    OK(ssd_model_close(model)); /* texts that run and texts that wait */
    for (int i = 0; i < 6; i++) {
        wait_for(requests[i]);
        OK(ssd_request_result(requests[i], &result, sizeof result));
        CHECK(i == 0 || result.finish_reason == SSD_FINISH_CANCELLED);
        free(text_of(requests[i], SSD_REQUEST_JSON));
        OK(ssd_request_destroy(requests[i]));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (int i = 0; i < 3; i++) {
        ssd_model *model = opened(argv[1], i == 1 ? AR : SSD);
        check_pieces(model);
        check_ends(model);
        check_reports(model, i == 1);
        OK(ssd_model_close(model));
    }
    check_closing(argv[1]);
    return 0;
}
