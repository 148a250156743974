/*
 * The public functions of ssd.h: what a caller can do wrong with pointers and sizes is found here,
 * all else is Python's. Compiled behind ssd.h, python.h and start.h.
 */

#define SIZE_UP_TO(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))

/* Sizes of the structs in the first version of this ABI: no caller has smaller ones. */
#define LEAST_OPTIONS SIZE_UP_TO(ssd_options, cache_salt)
#define LEAST_PIECE SIZE_UP_TO(ssd_piece, state)
#define LEAST_INFO SIZE_UP_TO(ssd_model_info, num_waiting)
#define LEAST_RESULT SIZE_UP_TO(ssd_result, tokens_per_second)

static ssd_status null_pointer(const char *name)
{
    return fail(SSD_ERROR_USAGE, "%s is NULL, expected where to store it", name);
}

#define REQUIRE(pointer)                    \
    do {                                    \
        if ((pointer) == NULL)              \
            return null_pointer(#pointer);  \
    } while (0)

#define START()                       \
    do {                              \
        ssd_status started = start(); \
        if (started != SSD_OK)        \
            return started;           \
    } while (0)

static ssd_status check_size(const char *name, size_t size, size_t least, size_t own)
{
    if (size < least)
        return fail(SSD_ERROR_USAGE, "%s has a size of %zu bytes, expected at least %zu; set it by "
                                     "its init function, or give its sizeof", name, size, least);
    if (size > own)
        return fail(SSD_ERROR_USAGE, "%s has a size of %zu bytes, %zu in this library; the program "
                                     "was compiled for a newer ssd-trt", name, size, own);
    return SSD_OK;
}

#define CHECK_SIZE(name, size, least, own)                            \
    do {                                                              \
        ssd_status checked = check_size((name), (size), (least), (own)); \
        if (checked != SSD_OK)                                        \
            return checked;                                           \
    } while (0)

SSD_API const char *ssd_version(void)
{
    return SSD_VERSION;
}

SSD_API int32_t ssd_abi_version(void)
{
    return SSD_ABI_VERSION;
}

SSD_API const char *ssd_last_error(void)
{
    return last_error;
}

SSD_API const char *ssd_status_name(ssd_status status)
{
    static const char *const names[] = {
        "SSD_OK", "SSD_ERROR_USAGE", "SSD_ERROR_BUFFER", "SSD_ERROR_HANDLE", "SSD_ERROR_STATE",
        "SSD_ERROR_MISSING_DEPENDENCY", "SSD_ERROR_BUNDLE", "SSD_ERROR_BUNDLE_MISSING",
        "SSD_ERROR_BUNDLE_CORRUPT", "SSD_ERROR_BUNDLE_INCOMPATIBLE", "SSD_ERROR_PAIR",
        "SSD_ERROR_CHECKPOINT", "SSD_ERROR_CAPACITY", "SSD_ERROR_BACKEND", "SSD_ERROR_DEVICE",
        "SSD_ERROR_SYSTEM", "SSD_ERROR_MEMORY", "SSD_ERROR_PYTHON", "SSD_ERROR_FORKED",
        "SSD_ERROR_INTERNAL",
    };
    size_t number = (size_t)status;
    return number < sizeof names / sizeof names[0] ? names[number] : "unknown status";
}

/* ------------------------------------------------------------------ models */

#define OPENING_MS 30000 /* how long an exit waits for models that are being opened */
#define OPENING_STEP_MS 10

/* Engines that still run while the process's libraries are taken down would use what is gone. */
static void stop_at_exit(void)
{
    if (!is_forked() && Py_IsInitialized())
        py_stop_all();
}

/* Models that are being opened, and those of them by this thread: a signal handler that calls exit
 * may interrupt its own opening. */
static int num_opening = 0;
static __thread int num_own = 0;

/* Whether other threads of this process open models, and can come to an end with it. */
static int others_open(void)
{
    int num_others = __atomic_load_n(&num_opening, __ATOMIC_ACQUIRE) - num_own;
    return num_others > 0 && !is_forked() && !has_ended();
}

/* Until the first model is open there is nothing to stop, and stop_at_exit would come too late: the
 * libraries that are loaded meanwhile register their own handlers behind it. Runs when the main
 * thread ends, before any exit handler (also at pthread_exit, where it only waits). */
static void wait_for_opening(void *nothing)
{
    const struct timespec step = {0, OPENING_STEP_MS * 1000000L};
    PyThreadState *held;
    (void)nothing;
    if (!others_open())
        return;
    held = let_go_of_python();
    for (int waited_ms = 0; waited_ms < OPENING_MS && others_open(); waited_ms += OPENING_STEP_MS)
        nanosleep(&step, NULL);
    if (held != NULL && !has_ended())
        PyEval_RestoreThread(held); /* exit handlers of others rely on it */
}

/* What C++ compilers register destructors of a thread's objects with; not all C libraries have it. */
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

__attribute__((constructor))
static void wait_in_main_thread(void)
{
    if (syscall(SYS_gettid) == getpid() && __cxa_thread_atexit_impl != NULL)
        __cxa_thread_atexit_impl(wait_for_opening, NULL, &__dso_handle);
}

SSD_API ssd_status ssd_model_open(const char *bundle, const char *options, ssd_model **model)
{
    ssd_status status;
    REQUIRE(model);
    *model = NULL;
    num_own++;
    __atomic_add_fetch(&num_opening, 1, __ATOMIC_ACQ_REL);
    status = start();
    if (status == SSD_OK)
        status = py_model_open(bundle, options, model);
    /* What is registered last is done first: the engines' libraries are loaded and warm by now. */
    if (status == SSD_OK)
        atexit(stop_at_exit);
    __atomic_sub_fetch(&num_opening, 1, __ATOMIC_ACQ_REL);
    num_own--;
    return status;
}

SSD_API ssd_status ssd_model_close(ssd_model *model)
{
    if (model == NULL)
        return SSD_OK;
    START();
    return py_model_close(model);
}

SSD_API ssd_status ssd_model_info_get(ssd_model *model, ssd_model_info *info, size_t size)
{
    ssd_model_info whole;
    ssd_status status;
    REQUIRE(info);
    CHECK_SIZE("ssd_model_info", size, LEAST_INFO, sizeof whole);
    START();
    memset(&whole, 0, sizeof whole);
    status = py_model_info_get(model, &whole);
    if (status == SSD_OK)
        memcpy(info, &whole, size);
    return status;
}

SSD_API ssd_status ssd_model_text(ssd_model *model, ssd_model_text_kind kind, char *buffer,
                                  size_t size, size_t *needed)
{
    START();
    return py_model_text(model, (int32_t)kind, buffer, size, needed);
}

SSD_API ssd_status ssd_eos_token_ids(ssd_model *model, int32_t *token_ids, size_t size,
                                     size_t *needed)
{
    START();
    return py_eos_token_ids(model, token_ids, size, needed);
}

SSD_API ssd_status ssd_encode(ssd_model *model, const char *text, int32_t *token_ids, size_t size,
                              size_t *needed)
{
    START();
    return py_encode(model, text, token_ids, size, needed);
}

SSD_API ssd_status ssd_encode_chat(ssd_model *model, const ssd_message *messages,
                                   size_t num_messages, int32_t *token_ids, size_t size,
                                   size_t *needed)
{
    START();
    return py_encode_chat(model, messages, num_messages, token_ids, size, needed);
}

SSD_API ssd_status ssd_decode(ssd_model *model, const int32_t *token_ids, size_t num_token_ids,
                              char *buffer, size_t size, size_t *needed)
{
    START();
    return py_decode(model, token_ids, num_token_ids, buffer, size, needed);
}

/* ------------------------------------------------------------------ requests */

static void set_defaults(ssd_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
    options->top_p = 1.0;
    options->repetition_penalty = 1.0;
    options->max_tokens = 128;
    options->logprobs = -1;
}

SSD_API ssd_status ssd_options_init(ssd_options *options, size_t size)
{
    ssd_options whole;
    REQUIRE(options);
    CHECK_SIZE("ssd_options", size, LEAST_OPTIONS, sizeof whole);
    set_defaults(&whole);
    whole.struct_size = size;
    memcpy(options, &whole, size);
    return SSD_OK;
}

/* The caller's options over the defaults of those that it does not know. */
static ssd_status read_options(const ssd_options *options, ssd_options *whole)
{
    set_defaults(whole);
    if (options != NULL) {
        CHECK_SIZE("ssd_options", options->struct_size, LEAST_OPTIONS, sizeof *whole);
        memcpy(whole, options, options->struct_size);
    }
    return SSD_OK;
}

#define BEGIN(call)                                       \
    do {                                                  \
        ssd_options whole;                                \
        ssd_status status;                                \
        REQUIRE(request);                                 \
        *request = NULL;                                  \
        START();                                          \
        status = read_options(options, &whole);           \
        return status != SSD_OK ? status : (call);        \
    } while (0)

SSD_API ssd_status ssd_request_begin(ssd_model *model, const char *prompt,
                                     const ssd_options *options, ssd_request **request)
{
    BEGIN(py_request_begin(model, prompt, &whole, request));
}

SSD_API ssd_status ssd_request_begin_tokens(ssd_model *model, const int32_t *token_ids,
                                            size_t num_token_ids, const ssd_options *options,
                                            ssd_request **request)
{
    BEGIN(py_request_begin_tokens(model, token_ids, num_token_ids, &whole, request));
}

SSD_API ssd_status ssd_request_begin_chat(ssd_model *model, const ssd_message *messages,
                                          size_t num_messages, const ssd_options *options,
                                          ssd_request **request)
{
    BEGIN(py_request_begin_chat(model, messages, num_messages, &whole, request));
}

SSD_API ssd_status ssd_piece_init(ssd_piece *piece, size_t size)
{
    REQUIRE(piece);
    CHECK_SIZE("ssd_piece", size, LEAST_PIECE, sizeof *piece);
    memset(piece, 0, size);
    piece->struct_size = size;
    return SSD_OK;
}

SSD_API ssd_status ssd_request_read(ssd_request *request, int64_t timeout_ms, ssd_piece *piece)
{
    ssd_piece whole;
    ssd_status status;
    REQUIRE(piece);
    CHECK_SIZE("ssd_piece", piece->struct_size, LEAST_PIECE, sizeof whole);
    START();
    memset(&whole, 0, sizeof whole);
    memcpy(&whole, piece, piece->struct_size);
    whole.text_length = 0;
    whole.num_token_ids = 0;
    whole.state = 0;
    if (whole.text != NULL && whole.text_size > 0)
        whole.text[0] = '\0';
    status = py_request_read(request, timeout_ms, &whole);
    memcpy(piece, &whole, piece->struct_size);
    return status;
}

SSD_API ssd_status ssd_request_wait(ssd_request *request, int64_t timeout_ms, ssd_state *state)
{
    REQUIRE(state);
    START();
    return py_request_wait(request, timeout_ms, state);
}

SSD_API ssd_status ssd_request_cancel(ssd_request *request)
{
    START();
    return py_request_cancel(request);
}

SSD_API ssd_status ssd_request_destroy(ssd_request *request)
{
    if (request == NULL)
        return SSD_OK;
    START();
    return py_request_destroy(request);
}

SSD_API ssd_status ssd_request_result(ssd_request *request, ssd_result *result, size_t size)
{
    ssd_result whole;
    ssd_status status;
    REQUIRE(result);
    CHECK_SIZE("ssd_result", size, LEAST_RESULT, sizeof whole);
    START();
    memset(&whole, 0, sizeof whole);
    status = py_request_result(request, &whole);
    if (status == SSD_OK)
        memcpy(result, &whole, size);
    return status;
}

SSD_API ssd_status ssd_request_text(ssd_request *request, ssd_request_text_kind kind, char *buffer,
                                    size_t size, size_t *needed)
{
    START();
    return py_request_text(request, (int32_t)kind, buffer, size, needed);
}

SSD_API ssd_status ssd_request_token_ids(ssd_request *request, int32_t *token_ids, size_t size,
                                         size_t *needed)
{
    START();
    return py_request_token_ids(request, token_ids, size, needed);
}
