/* A text, printed as it comes, in C.
 *
 *     generate BUNDLE PROMPT [OPTIONS]
 *
 * such as: generate engines/bundles/demo "The rain" '{"mode": "sd"}'
 */
#include <stdio.h>

#include "ssd.h"

static int failed(void) {
    fprintf(stderr, "error: %s\n", ssd_last_error());
    return 1;
}

/* Prints the pieces of a text as they come. */
static int print_pieces(ssd_request *request) {
    char text[256];
    ssd_piece piece;
    ssd_piece_init(&piece, sizeof piece);
    piece.text = text;
    piece.text_size = sizeof text;
    do {
        if (ssd_request_read(request, -1, &piece) != SSD_OK) return failed();
        fwrite(text, 1, piece.text_length, stdout);
        fflush(stdout);
    } while (piece.state == SSD_MORE);
    return 0;
}

static int print_figures(ssd_request *request) {
    ssd_result result;
    if (ssd_request_result(request, &result, sizeof result) != SSD_OK) return failed();
    printf("\n%lld tokens in %lld rounds, %.1f tokens/s\n", (long long)result.num_tokens,
           (long long)result.num_rounds, result.tokens_per_second);
    return 0;
}

static int generate(ssd_model *model, const char *prompt) {
    ssd_options options;
    ssd_request *request;
    int error;

    ssd_options_init(&options, sizeof options);
    options.temperature = 0.8;
    options.seed = 7;
    options.max_tokens = 40;
    if (ssd_request_begin(model, prompt, &options, &request) != SSD_OK) return failed();
    error = print_pieces(request) || print_figures(request);
    ssd_request_destroy(request);
    return error;
}

int main(int argc, char **argv) {
    ssd_model *model;
    int error;

    if (argc < 3) {
        fprintf(stderr, "usage: generate BUNDLE PROMPT [OPTIONS]\n");
        return 2;
    }
    if (ssd_model_open(argv[1], argc > 3 ? argv[3] : NULL, &model) != SSD_OK) return failed();
    error = generate(model, argv[2]);
    ssd_model_close(model);
    return error;
}
