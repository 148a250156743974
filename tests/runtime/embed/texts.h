/* A model and its texts, for programs that are linked with the library. */
#ifndef TEXTS_H
#define TEXTS_H

#include "check.h"

#define PROMPT "the cat sat"
#define AR "{\"mode\": \"ar\"}"
#define SSD "{\"mode\": \"ssd\"}"

static inline ssd_model *opened(const char *bundle, const char *options)
{
    ssd_model *model = NULL;
    OK(ssd_model_open(bundle, options, &model));
    CHECK(model != NULL);
    return model;
}

static inline ssd_options defaults(void)
{
    ssd_options options;
    OK(ssd_options_init(&options, sizeof options));
    return options;
}

static inline ssd_request *begun(ssd_model *model, const ssd_options *options)
{
    ssd_request *request = NULL;
    OK(ssd_request_begin(model, PROMPT, options, &request));
    CHECK(request != NULL);
    return request;
}

static inline void wait_for(ssd_request *request)
{
    ssd_state state;
    OK(ssd_request_wait(request, -1, &state));
    CHECK(state == SSD_END);
}

/* The whole text, of a request that is complete. */
static inline char *text_of(ssd_request *request, ssd_request_text_kind kind)
{
    size_t needed = 0;
    OK(ssd_request_text(request, kind, NULL, 0, &needed));
    char *text = malloc(needed);
    OK(ssd_request_text(request, kind, text, needed, &needed));
    CHECK(strlen(text) + 1 == needed);
    return text;
}

/* All that is read piece by piece, by buffers of these sizes. */
static inline char *read_all(ssd_request *request, size_t text_size, size_t token_ids_size,
                             size_t *num_token_ids)
{
    char *whole = calloc(1, 1), *text = malloc(text_size);
    int32_t *token_ids = malloc(token_ids_size * sizeof *token_ids);
    size_t length = 0;
    ssd_piece piece;
    OK(ssd_piece_init(&piece, sizeof piece));
    piece.text = text;
    piece.text_size = text_size;
    piece.token_ids = token_ids;
    piece.token_ids_size = token_ids_size;
    *num_token_ids = 0;
    for (;;) {
        OK(ssd_request_read(request, -1, &piece));
        CHECK(strlen(text) == piece.text_length && piece.text_length < text_size);
        CHECK(piece.num_token_ids <= token_ids_size);
        if (piece.state != SSD_MORE)
            break;
        CHECK(piece.text_length > 0 || piece.num_token_ids > 0);
        whole = realloc(whole, length + piece.text_length + 1);
        memcpy(whole + length, text, piece.text_length + 1);
        length += piece.text_length;
        *num_token_ids += piece.num_token_ids;
    }
    CHECK(piece.state == SSD_END && piece.text_length == 0 && piece.num_token_ids == 0);
    free(text);
    free(token_ids);
    return whole;
}

#endif
