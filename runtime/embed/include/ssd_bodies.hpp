/// The bodies of ssd.hpp, which includes this.
#ifndef SSD_BODIES_HPP
#define SSD_BODIES_HPP

#include <array>

#include "ssd.hpp"
#include "ssd_detail.hpp"

namespace ssd {

// ------------------------------------------------------------------ Grammar

inline Grammar Grammar::json_schema(std::string_view schema) {
    return {SSD_GRAMMAR_JSON_SCHEMA, std::string(schema)};
}
inline Grammar Grammar::regex(std::string_view pattern) {
    return {SSD_GRAMMAR_REGEX, std::string(pattern)};
}
inline Grammar Grammar::lark(std::string_view grammar) {
    return {SSD_GRAMMAR_LARK, std::string(grammar)};
}
inline Grammar Grammar::choice(const std::vector<std::string>& texts) {
    std::ostringstream list;
    const char* before = "[";
    for (const std::string& text : texts) {
        list << before;
        detail::JsonObject::write(list, text);
        before = ", ";
    }
    return {SSD_GRAMMAR_CHOICE, texts.empty() ? "[]" : list.str() + "]"};
}

// ------------------------------------------------------------------ Stream

inline bool Stream::next(std::string& text) {
    std::array<char, 1024> buffer;
    ssd_piece piece;
    detail::check(ssd_piece_init(&piece, sizeof piece));
    piece.text = buffer.data();
    piece.text_size = buffer.size();
    detail::check(ssd_request_read(request_.get(), -1, &piece));
    text.assign(buffer.data(), piece.text_length);
    return piece.state == SSD_MORE;
}

inline State Stream::read(Piece& into, std::chrono::milliseconds timeout) {
    into.text.clear();
    into.token_ids.clear();
    std::array<char, 1024> buffer;
    std::array<std::int32_t, 256> token_ids;
    ssd_piece piece;
    detail::check(ssd_piece_init(&piece, sizeof piece));
    piece.text = buffer.data();
    piece.text_size = buffer.size();
    piece.token_ids = token_ids.data();
    piece.token_ids_size = token_ids.size();
    detail::check(ssd_request_read(request_.get(), timeout.count(), &piece));
    into.text.assign(buffer.data(), piece.text_length);
    into.token_ids.assign(token_ids.data(), token_ids.data() + piece.num_token_ids);
    return static_cast<State>(piece.state);
}

inline bool Stream::wait(std::chrono::milliseconds timeout) const {
    ssd_state state = SSD_TIMED_OUT;
    detail::check(ssd_request_wait(request_.get(), timeout.count(), &state));
    return state == SSD_END;
}

inline void Stream::cancel() const { detail::check(ssd_request_cancel(request_.get())); }

inline Completion Stream::completion() const {
    Completion all{};
    detail::check(ssd_request_result(request_.get(), &all.statistics, sizeof all.statistics));
    all.finish_reason = static_cast<FinishReason>(all.statistics.finish_reason);
    if (all.statistics.stop_token_id >= 0) all.stop_token_id = all.statistics.stop_token_id;
    all.text = text(SSD_REQUEST_TEXT);
    all.stop = text(SSD_REQUEST_STOP);
    all.mode = text(SSD_REQUEST_MODE);
    all.note = text(SSD_REQUEST_NOTE);
    const auto guess = static_cast<std::size_t>(all.statistics.num_tokens);
    all.token_ids = detail::filled<std::vector<std::int32_t>>(
        guess, [this](std::int32_t* buffer, std::size_t size, std::size_t* needed) {
            return ssd_request_token_ids(request_.get(), buffer, size, needed);
        });
    return all;
}

inline std::string Stream::json() const { return text(SSD_REQUEST_JSON); }

inline std::string Stream::text(ssd_request_text_kind kind) const {
    return detail::filled_text([&](char* buffer, std::size_t size, std::size_t* needed) {
        return ssd_request_text(request_.get(), kind, buffer, size, needed);
    });
}

// ------------------------------------------------------------------ Model

inline Model::Model(std::string_view bundle, const OpenOptions& options) {
    const std::string path(bundle);
    const std::string json = detail::json(options);
    ssd_model* model = nullptr;
    detail::check(ssd_model_open(detail::c_string(path), detail::c_string(json), &model));
    model_.reset(model);
}

inline void Model::close() {
    detail::check(ssd_model_close(model_.get()));
    static_cast<void>(model_.release());
}

inline Stream Model::stream(std::string_view prompt, const SamplingParams& params,
                            const Options& options) const {
    const std::string text(prompt);
    const detail::COptions asked(params, options);
    ssd_request* request = nullptr;
    detail::check(
        ssd_request_begin(model_.get(), detail::c_string(text), asked.get(), &request));
    return Stream(request);
}

inline Stream Model::stream(const std::vector<std::int32_t>& prompt, const SamplingParams& params,
                            const Options& options) const {
    const detail::COptions asked(params, options);
    ssd_request* request = nullptr;
    detail::check(ssd_request_begin_tokens(model_.get(), prompt.data(), prompt.size(), asked.get(),
                                           &request));
    return Stream(request);
}

inline Stream Model::stream_chat(const std::vector<Message>& messages,
                                 const SamplingParams& params, const Options& options) const {
    const std::vector<ssd_message> turns = detail::c_messages(messages);
    const detail::COptions asked(params, options);
    ssd_request* request = nullptr;
    detail::check(ssd_request_begin_chat(model_.get(), turns.data(), turns.size(), asked.get(),
                                         &request));
    return Stream(request);
}

inline Completion Model::generate(std::string_view prompt, const SamplingParams& params,
                                  const Options& options) const {
    const Stream text = stream(prompt, params, options);
    text.wait();
    return text.completion();
}

inline Completion Model::generate(const std::vector<std::int32_t>& prompt,
                                  const SamplingParams& params, const Options& options) const {
    const Stream text = stream(prompt, params, options);
    text.wait();
    return text.completion();
}

inline Completion Model::chat(const std::vector<Message>& messages, const SamplingParams& params,
                              const Options& options) const {
    const Stream text = stream_chat(messages, params, options);
    text.wait();
    return text.completion();
}

inline std::vector<std::int32_t> Model::eos_token_ids() const {
    return detail::filled<std::vector<std::int32_t>>(
        8, [this](std::int32_t* buffer, std::size_t size, std::size_t* needed) {
            return ssd_eos_token_ids(model_.get(), buffer, size, needed);
        });
}

inline std::vector<std::int32_t> Model::encode(std::string_view text) const {
    const std::string prompt(text);
    return detail::filled<std::vector<std::int32_t>>(
        prompt.size() + 8, [&](std::int32_t* buffer, std::size_t size, std::size_t* needed) {
            return ssd_encode(model_.get(), detail::c_string(prompt), buffer, size, needed);
        });
}

inline std::vector<std::int32_t> Model::encode_chat(const std::vector<Message>& messages) const {
    const std::vector<ssd_message> turns = detail::c_messages(messages);
    return detail::filled<std::vector<std::int32_t>>(
        1024, [&](std::int32_t* buffer, std::size_t size, std::size_t* needed) {
            return ssd_encode_chat(model_.get(), turns.data(), turns.size(), buffer, size, needed);
        });
}

inline std::string Model::decode(const std::vector<std::int32_t>& token_ids) const {
    return detail::filled_text([&](char* buffer, std::size_t size, std::size_t* needed) {
        return ssd_decode(model_.get(), token_ids.data(), token_ids.size(), buffer, size, needed);
    });
}

inline ssd_model_info Model::info() const {
    ssd_model_info info{};
    detail::check(ssd_model_info_get(model_.get(), &info, sizeof info));
    return info;
}

inline std::string Model::mode() const { return text(SSD_MODEL_MODE); }
inline std::string Model::note() const { return text(SSD_MODEL_NOTE); }
inline std::string Model::path() const { return text(SSD_MODEL_PATH); }
inline std::string Model::json() const { return text(SSD_MODEL_JSON); }

inline std::string Model::text(ssd_model_text_kind kind) const {
    return detail::filled_text([&](char* buffer, std::size_t size, std::size_t* needed) {
        return ssd_model_text(model_.get(), kind, buffer, size, needed);
    });
}

}  // namespace ssd

#endif
