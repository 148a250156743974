/*
 * ssd-trt from C: open a bundle, ask for texts, read them as they come.
 *
 *     ssd_model *model;
 *     ssd_request *request;
 *     ssd_options options;
 *     ssd_piece piece;
 *     char text[256];
 *
 *     if (ssd_model_open("engines/bundles/demo", NULL, &model) != SSD_OK) {
 *         fprintf(stderr, "%s\n", ssd_last_error());
 *         return 1;
 *     }
 *     ssd_options_init(&options, sizeof options);
 *     options.temperature = 0.8;
 *     if (ssd_request_begin(model, "Once upon a time", &options, &request) == SSD_OK) {
 *         ssd_piece_init(&piece, sizeof piece);
 *         piece.text = text;
 *         piece.text_size = sizeof text;
 *         while (ssd_request_read(request, -1, &piece) == SSD_OK && piece.state == SSD_MORE)
 *             fputs(text, stdout);
 *         ssd_request_destroy(request);
 *     }
 *     ssd_model_close(model);
 *
 * START AND END. No call starts or ends the library. The first call that needs it starts a Python
 * interpreter inside of this process, or uses the one that runs already. The library knows the
 * environment that it was built from; SSD_TRT_PYTHON, a path to another environment's folder or
 * python (of the same version, with ssd-trt in it), takes its place. Other PYTHON* variables are
 * not looked at. A process may end by exit or return with models open, and in its main thread, if
 * that loaded the library (glibc), while models are being opened: it waits for them, 30 seconds at
 * most. dlclose leaves the library in memory; a later dlopen finds it as it was. No signal handler
 * is installed, nothing is printed, and no locale is changed.
 *
 * THREADS. Every function may be called from any thread, and any number of threads may use one
 * model at the same time: their texts share the rounds. A request is read by one thread at a time.
 * ssd_request_cancel may come from any thread at any time. Reading and waiting block the calling
 * thread alone. A thread that calls needs 512 KB of stack. In a process forked off one that has
 * started the library, all calls fail with SSD_ERROR_FORKED, and it should end by _exit or exec:
 * threads do not follow into a fork, and exit may wait for them. A fork before the first call is
 * like any other process.
 *
 * HANDLES are opaque. NULL, one of the other kind, one that is closed or destroyed and one that
 * never was are refused with SSD_ERROR_HANDLE. A function that makes one sets it to NULL unless it
 * returns SSD_OK.
 *
 * ERRORS. All but the functions that return text return a status. If it is not SSD_OK, nothing has
 * happened, and ssd_last_error() has a line that says what was found, what was expected and what
 * helps.
 *
 * TEXT is UTF-8 and ends with a NUL. BUFFERS are the caller's. A function that fills one takes its
 * size and stores in `needed` what all of it takes: bytes with the NUL, or token ids. With NULL and
 * size 0 this is all it does; with a smaller buffer than needed it returns SSD_ERROR_BUFFER. What is
 * passed in may be freed or changed when the call has returned.
 *
 * STRUCTS may grow at their end from version to version. Each is told apart by the size that it had
 * when the caller was compiled, so a program runs with every later library of the same
 * SSD_ABI_VERSION.
 */
#ifndef SSD_H
#define SSD_H

#include <stddef.h>
#include <stdint.h>

#ifndef SSD_API
#if defined(__GNUC__)
#define SSD_API __attribute__((visibility("default")))
#else
#define SSD_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program has to be compiled anew. */
#define SSD_ABI_VERSION 1

/* An open bundle. */
typedef struct ssd_model ssd_model;
/* One text that comes. */
typedef struct ssd_request ssd_request;

typedef enum ssd_status {
    SSD_OK = 0,
    SSD_ERROR_USAGE = 1,               /* a prompt, option or path that cannot be used */
    SSD_ERROR_BUFFER = 2,              /* the buffer is too small; `needed` says what fits */
    SSD_ERROR_HANDLE = 3,              /* no open model, or no request */
    SSD_ERROR_STATE = 4,               /* too early: the text is not complete */
    SSD_ERROR_MISSING_DEPENDENCY = 5,  /* a Python package is not installed */
    SSD_ERROR_BUNDLE = 6,              /* something else about the bundle */
    SSD_ERROR_BUNDLE_MISSING = 7,      /* there is no bundle */
    SSD_ERROR_BUNDLE_CORRUPT = 8,      /* its files are damaged, missing or foreign */
    SSD_ERROR_BUNDLE_INCOMPATIBLE = 9, /* it cannot run here, or not with these limits */
    SSD_ERROR_PAIR = 10,               /* draft and target do not belong together */
    SSD_ERROR_CHECKPOINT = 11,         /* a checkpoint cannot be read */
    SSD_ERROR_CAPACITY = 12,           /* beyond what the bundle was built for */
    SSD_ERROR_BACKEND = 13,            /* an engine refused to load or to run */
    SSD_ERROR_DEVICE = 14,             /* a stream, event, buffer or graph failed */
    SSD_ERROR_SYSTEM = 15,             /* the operating system refused something */
    SSD_ERROR_MEMORY = 16,             /* not enough memory */
    SSD_ERROR_PYTHON = 17,             /* the interpreter or ssd-trt in it cannot be started */
    SSD_ERROR_FORKED = 18,             /* the library was started before this process was forked */
    SSD_ERROR_INTERNAL = 19            /* a fault of ssd-trt; please report it */
} ssd_status;

/* ------------------------------------------------------------------ about the library */

/* Version of ssd-trt, such as "0.1.0". Never fails. */
SSD_API const char *ssd_version(void);

/* SSD_ABI_VERSION of the library. Never fails. */
SSD_API int32_t ssd_abi_version(void);

/* "SSD_ERROR_USAGE" for SSD_ERROR_USAGE; "unknown status" for a number that is none. */
SSD_API const char *ssd_status_name(ssd_status status);

/* What went wrong in the calling thread's last call that failed, in one line; empty before one did.
 * Valid until the thread's next call that fails. */
SSD_API const char *ssd_last_error(void);

/* ------------------------------------------------------------------ models */

/*
 * Load a bundle, which takes some seconds.
 *
 * options   NULL, or a JSON object: how to decode and where. Its keys are those of Python's
 *           LLM.open: mode ("auto", "ar", "sd", "ssd"), verify, num_draft, drafter, branches,
 *           max_batch, fallback, saguaro, adaptive_length, backend, device, draft_sm_share,
 *           tensor_parallel, prefix_reuse. For example {"mode": "ssd", "max_batch": 4}
 */
SSD_API ssd_status ssd_model_open(const char *bundle, const char *options, ssd_model **model);

/* End all its requests as cancelled and free the engines. Blocks until that is done. Its requests
 * can still be read, and have to be destroyed. NULL is no error. */
SSD_API ssd_status ssd_model_close(ssd_model *model);

typedef struct ssd_model_info {
    int32_t max_len;           /* positions that prompt and text may fill together */
    int32_t max_batch;         /* texts decoded at once; more wait for a free place */
    int32_t num_draft;         /* tokens drafted a round, at most */
    int32_t num_branches;      /* outcomes prepared a round, at most */
    int32_t vocab_size;        /* token ids are below it */
    int32_t has_draft;         /* 1: the bundle has a draft model */
    int32_t has_chat_template; /* 1: ssd_request_begin_chat works */
    int32_t num_running;       /* requests that hold a place now */
    int32_t num_waiting;       /* requests that wait for one now */
} ssd_model_info;

/* Numbers of a model; fills `size` bytes, which is sizeof *info. */
SSD_API ssd_status ssd_model_info_get(ssd_model *model, ssd_model_info *info, size_t size);

typedef enum ssd_model_text_kind {
    SSD_MODEL_MODE = 0, /* ar, sd, ssd or auto */
    SSD_MODEL_NOTE = 1, /* what is not as it was asked for, and why; empty where all is */
    SSD_MODEL_PATH = 2, /* the bundle's folder */
    SSD_MODEL_JSON = 3  /* settings, limits, memory and the numbers above, as one object */
} ssd_model_text_kind;

SSD_API ssd_status ssd_model_text(ssd_model *model, ssd_model_text_kind kind, char *buffer,
                                  size_t size, size_t *needed);

typedef struct ssd_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} ssd_message;

/* Token ids that end a text by themselves. */
SSD_API ssd_status ssd_eos_token_ids(ssd_model *model, int32_t *token_ids, size_t size,
                                     size_t *needed);

/* Token ids of a prompt, with those that the model wants around it. */
SSD_API ssd_status ssd_encode(ssd_model *model, const char *text, int32_t *token_ids, size_t size,
                              size_t *needed);

/* Token ids of a conversation in the chat template, up to where the assistant's turn begins. */
SSD_API ssd_status ssd_encode_chat(ssd_model *model, const ssd_message *messages,
                                   size_t num_messages, int32_t *token_ids, size_t size,
                                   size_t *needed);

/* The text of token ids; bytes that are no UTF-8 become U+FFFD. */
SSD_API ssd_status ssd_decode(ssd_model *model, const int32_t *token_ids, size_t num_token_ids,
                              char *buffer, size_t size, size_t *needed);

/* ------------------------------------------------------------------ what to ask for */

typedef struct ssd_logit_bias {
    int32_t token_id;
    double bias; /* added to the token's logit, -1e30 to 1e30 */
} ssd_logit_bias;

typedef enum ssd_grammar_kind {
    SSD_GRAMMAR_NONE = 0,
    SSD_GRAMMAR_JSON_SCHEMA = 1, /* a JSON schema; {"type": "object"} for any object */
    SSD_GRAMMAR_REGEX = 2,       /* a regular expression in Rust's syntax */
    SSD_GRAMMAR_LARK = 3,        /* a grammar in Lark's syntax */
    SSD_GRAMMAR_CHOICE = 4       /* a JSON list of strings: one of them, word for word */
} ssd_grammar_kind;

/* Set by ssd_options_init to what stands in brackets. Strings are copied by the call that gets
 * them. Tokens depend on bundle, prompt, these options and the seed, not on the mode. */
typedef struct ssd_options {
    size_t struct_size;        /* set by ssd_options_init */
    double temperature;        /* 0 takes the most likely token [0] */
    double top_p;              /* keep the fewest tokens that hold this share of the mass [1] */
    double min_p;              /* keep tokens this share as likely as the likeliest [0] */
    double repetition_penalty; /* above 1: what prompt and text have is less likely [1] */
    double presence_penalty;   /* taken off the logit of what the text has [0] */
    double frequency_penalty;  /* the same, once for each time [0] */
    uint64_t seed;             /* names the noise: the same seed, the same tokens [0] */
    int32_t top_k;             /* keep that many tokens; 0 keeps all [0] */
    int32_t max_tokens;        /* longest text [128] */
    int32_t min_tokens;        /* until then nothing ends the text [0] */
    int32_t logprobs;          /* log-probabilities of so many likeliest tokens, in
                                * SSD_REQUEST_JSON; -1: none [-1] */
    int32_t ignore_eos;        /* 1: the model's end of sequence ends nothing [0] */
    int32_t grammar_kind;      /* ssd_grammar_kind: what the text has to be [SSD_GRAMMAR_NONE] */
    const char *grammar;       /* [NULL] */
    const char *const *stop;   /* the text ends before the first of them [NULL] */
    size_t num_stop;
    const int32_t *stop_token_ids; /* they end the text, too [NULL] */
    size_t num_stop_token_ids;
    const char *const *bad_words; /* their tokens do not follow one another in the text [NULL] */
    size_t num_bad_words;
    const ssd_logit_bias *logit_bias; /* [NULL] */
    size_t num_logit_bias;
    const char *cache_salt; /* cache rows are shared only with texts of the same salt [NULL] */
} ssd_options;

/* Set all options to their defaults; `size` is sizeof *options. */
SSD_API ssd_status ssd_options_init(ssd_options *options, size_t size);

/* ------------------------------------------------------------------ requests */

/* Begin to continue a prompt. Returns at once; what waits for a free place waits inside. `options`
 * may be NULL: the defaults. */
SSD_API ssd_status ssd_request_begin(ssd_model *model, const char *prompt,
                                     const ssd_options *options, ssd_request **request);

/* The same from token ids. */
SSD_API ssd_status ssd_request_begin_tokens(ssd_model *model, const int32_t *token_ids,
                                            size_t num_token_ids, const ssd_options *options,
                                            ssd_request **request);

/* The same from a conversation, the oldest turn first. */
SSD_API ssd_status ssd_request_begin_chat(ssd_model *model, const ssd_message *messages,
                                          size_t num_messages, const ssd_options *options,
                                          ssd_request **request);

typedef enum ssd_state {
    SSD_MORE = 1,     /* there is something, and may be more: read again */
    SSD_END = 2,      /* the text is complete and all of it was read */
    SSD_TIMED_OUT = 3 /* nothing new yet */
} ssd_state;

/* What ssd_request_read fills. The caller sets the buffers once; NULL for what is not wanted. */
typedef struct ssd_piece {
    size_t struct_size;    /* set by ssd_piece_init */
    char *text;            /* buffer for text, ended with a NUL; of 5 bytes at least */
    size_t text_size;      /* its bytes */
    size_t text_length;    /* out: bytes of new text, without the NUL */
    int32_t *token_ids;    /* buffer for token ids */
    size_t token_ids_size; /* how many it holds */
    size_t num_token_ids;  /* out: new ones in it */
    int32_t state;         /* out: ssd_state */
} ssd_piece;

/* Set all to 0 but struct_size; `size` is sizeof *piece. */
SSD_API ssd_status ssd_piece_init(ssd_piece *piece, size_t size);

/*
 * The next piece of the text: waits up to timeout_ms (0: not at all, negative: without end) until
 * there is something to hand over. What does not fit comes with the next call; text is never cut
 * inside of a character. Text and tokens may come one without the other, as where a character is
 * spread over two tokens. With SSD_END or SSD_TIMED_OUT nothing is handed over, so a loop may stop
 * at once. Joined, the pieces are the whole text and all its tokens.
 *
 * If the engines failed meanwhile, returns what stopped the text, behind its last piece.
 */
SSD_API ssd_status ssd_request_read(ssd_request *request, int64_t timeout_ms, ssd_piece *piece);

/* Wait until the text is complete (SSD_END), whether or not it is read, or SSD_TIMED_OUT. If the
 * engines failed meanwhile, returns what stopped the text, as all do that ask for its end. */
SSD_API ssd_status ssd_request_wait(ssd_request *request, int64_t timeout_ms, ssd_state *state);

/* Want no more of it: it ends soon, with what there is and SSD_FINISH_CANCELLED. From any thread;
 * no error where the text is complete. */
SSD_API ssd_status ssd_request_cancel(ssd_request *request);

/* Free the request; cancels what still comes, without waiting. NULL is no error. */
SSD_API ssd_status ssd_request_destroy(ssd_request *request);

typedef enum ssd_finish_reason {
    SSD_FINISH_STOP = 1,      /* end of sequence, a stop token or a stop string; not in the text */
    SSD_FINISH_LENGTH = 2,    /* max_tokens */
    SSD_FINISH_CONTEXT = 3,   /* prompt and text fill the bundle's max_len */
    SSD_FINISH_CANCELLED = 4, /* by ssd_request_cancel or ssd_model_close */
    SSD_FINISH_GRAMMAR = 5    /* the grammar could not be held to; see SSD_REQUEST_NOTE */
} ssd_finish_reason;

typedef struct ssd_result {
    int32_t finish_reason;    /* ssd_finish_reason */
    int32_t stop_token_id;    /* the one of stop_token_ids that ended the text, or -1 */
    int64_t prompt_tokens;    /* tokens of the prompt */
    int64_t num_tokens;       /* tokens of the text */
    int64_t num_rounds;       /* verifications */
    int64_t num_emitted;      /* tokens that they emitted, one that ended the text included */
    int64_t num_drafted;      /* tokens drafted for them */
    int64_t num_accepted;     /* of these, accepted and emitted */
    int64_t num_discarded;    /* tokens of blocks beyond the text's end */
    int64_t num_cached;       /* tokens of the prompt that an earlier text had left in the cache */
    int64_t num_hits;         /* rounds that began with a prepared proposal; -1: none of ssd ran */
    int64_t num_jit;          /* rounds of ssd with a proposal drafted just in time */
    int64_t num_lookup;       /* rounds of ssd with a proposal copied from the text */
    double acceptance_length; /* emitted tokens a verification */
    double hit_rate;          /* share of outcomes that were prepared; -1: none was looked up */
    double prompt_s;          /* seconds from the start to the first verification */
    double decode_s;          /* from there to the last token */
    double tokens_per_second; /* num_tokens / decode_s */
} ssd_result;

/* What came of a complete text; fills `size` bytes, which is sizeof *result. SSD_ERROR_STATE while
 * the text goes on. */
SSD_API ssd_status ssd_request_result(ssd_request *request, ssd_result *result, size_t size);

typedef enum ssd_request_text_kind {
    SSD_REQUEST_TEXT = 0, /* the whole text, whether or not it was read */
    SSD_REQUEST_MODE = 1, /* what ran */
    SSD_REQUEST_NOTE = 2, /* what is not as it was asked for, and why; empty where all is */
    SSD_REQUEST_STOP = 3, /* the stop string that ended the text; empty where none did */
    SSD_REQUEST_JSON = 4  /* all of it as `python -m runtime generate --json` has it, with logprobs */
} ssd_request_text_kind;

/* Text about a complete text; SSD_ERROR_STATE while it goes on. */
SSD_API ssd_status ssd_request_text(ssd_request *request, ssd_request_text_kind kind, char *buffer,
                                    size_t size, size_t *needed);

/* All tokens of a complete text; SSD_ERROR_STATE while it goes on. */
SSD_API ssd_status ssd_request_token_ids(ssd_request *request, int32_t *token_ids, size_t size,
                                         size_t *needed);

#ifdef __cplusplus
}
#endif

#endif
