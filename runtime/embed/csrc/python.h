/* What the public functions ask of Python, see runtime/embed/bridge.py. Read by the C compiler and
 * by cffi. Structs are whole here, whatever size the caller's have. */
ssd_status py_model_open(const char *bundle, const char *options, ssd_model **model);
ssd_status py_model_close(ssd_model *model);
ssd_status py_model_info_get(ssd_model *model, ssd_model_info *info);
ssd_status py_model_text(ssd_model *model, int32_t kind, char *buffer, size_t size,
                         size_t *needed);
ssd_status py_eos_token_ids(ssd_model *model, int32_t *token_ids, size_t size, size_t *needed);
ssd_status py_encode(ssd_model *model, const char *text, int32_t *token_ids, size_t size,
                     size_t *needed);
ssd_status py_encode_chat(ssd_model *model, const ssd_message *messages, size_t num_messages,
                          int32_t *token_ids, size_t size, size_t *needed);
ssd_status py_decode(ssd_model *model, const int32_t *token_ids, size_t num_token_ids,
                     char *buffer, size_t size, size_t *needed);
ssd_status py_request_begin(ssd_model *model, const char *prompt, const ssd_options *options,
                            ssd_request **request);
ssd_status py_request_begin_tokens(ssd_model *model, const int32_t *token_ids,
                                   size_t num_token_ids, const ssd_options *options,
                                   ssd_request **request);
ssd_status py_request_begin_chat(ssd_model *model, const ssd_message *messages,
                                 size_t num_messages, const ssd_options *options,
                                 ssd_request **request);
ssd_status py_request_read(ssd_request *request, int64_t timeout_ms, ssd_piece *piece);
ssd_status py_request_wait(ssd_request *request, int64_t timeout_ms, ssd_state *state);
ssd_status py_request_cancel(ssd_request *request);
ssd_status py_request_destroy(ssd_request *request);
ssd_status py_request_result(ssd_request *request, ssd_result *result);
ssd_status py_request_text(ssd_request *request, int32_t kind, char *buffer, size_t size,
                           size_t *needed);
ssd_status py_request_token_ids(ssd_request *request, int32_t *token_ids, size_t size,
                                size_t *needed);
ssd_status py_stop_all(void);
