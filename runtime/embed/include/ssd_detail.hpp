/// How ssd.hpp's values and errors cross into C and back; nothing in here is for users.
#ifndef SSD_DETAIL_HPP
#define SSD_DETAIL_HPP

#include <cmath>
#include <locale>
#include <sstream>

#include "ssd.hpp"

namespace ssd::detail {

/// Throw what `status` stands for.
[[noreturn]] inline void fail(ssd_status status, const std::string& message) {
    switch (status) {
        case SSD_ERROR_USAGE: throw UsageError(status, message);
        case SSD_ERROR_CAPACITY: throw CapacityError(status, message);
        case SSD_ERROR_MISSING_DEPENDENCY: throw MissingDependencyError(status, message);
        case SSD_ERROR_BUNDLE_MISSING: throw BundleMissingError(status, message);
        case SSD_ERROR_BUNDLE_CORRUPT: throw BundleCorruptError(status, message);
        case SSD_ERROR_BUNDLE_INCOMPATIBLE: throw BundleIncompatibleError(status, message);
        case SSD_ERROR_BUNDLE:
        case SSD_ERROR_PAIR: throw BundleError(status, message);
        case SSD_ERROR_BACKEND:
        case SSD_ERROR_DEVICE: throw EngineError(status, message);
        default: throw Error(status, message);
    }
}

inline void check(ssd_status status) {
    if (status != SSD_OK) fail(status, ssd_last_error());
}

/// A string as C reads it.
inline const char* c_string(const std::string& text) {
    const std::size_t end = text.find('\0');
    if (end != std::string::npos) {
        fail(SSD_ERROR_USAGE, "the text \"" + text.substr(0, end < 30 ? end : 30) +
                                  "\" has a NUL at byte " + std::to_string(end) +
                                  ", where it would end; leave the NUL away");
    }
    return text.c_str();
}

inline std::vector<const char*> c_strings(const std::vector<std::string>& texts) {
    std::vector<const char*> result;
    for (const std::string& text : texts) result.push_back(c_string(text));
    return result;
}

inline std::vector<ssd_message> c_messages(const std::vector<Message>& messages) {
    std::vector<ssd_message> result;
    for (const Message& each : messages) {
        result.push_back({c_string(each.role), c_string(each.content)});
    }
    return result;
}

/// What call(buffer, size, &needed) fills; `guess` elements are room enough, most of the time. At
/// least one, since no room at all asks for the size alone.
template <typename Container, typename Call>
Container filled(std::size_t guess, Call call) {
    Container buffer;
    ssd_status status = SSD_ERROR_BUFFER;
    for (std::size_t needed = guess + 1; status == SSD_ERROR_BUFFER;) {
        buffer.resize(needed);
        status = call(buffer.data(), buffer.size(), &needed);
        if (status == SSD_OK) buffer.resize(needed);
    }
    check(status);
    return buffer;
}

/// The same for text, which ends with a NUL there.
template <typename Call>
std::string filled_text(Call call) {
    std::string text = filled<std::string>(256, call);
    text.pop_back();
    return text;
}

/// A JSON object, written member by member.
class JsonObject {
  public:
    JsonObject() { out_.imbue(std::locale::classic()); }

    template <typename Value>
    JsonObject& add(const char* key, const Value& value) {
        out_ << (is_empty_ ? "{" : ", ");
        is_empty_ = false;
        write(out_, std::string(key));
        out_ << ": ";
        write(out_, value);
        return *this;
    }
    template <typename Value>
    JsonObject& add(const char* key, const std::optional<Value>& value) {
        return value ? add(key, *value) : *this;
    }
    std::string text() const { return is_empty_ ? "{}" : out_.str() + "}"; }

    template <typename Value>
    static void write(std::ostream&, const Value*) = delete;  // it would be a bool
    static void write(std::ostream& out, std::int32_t value) { out << value; }
    static void write(std::ostream& out, bool value) { out << (value ? "true" : "false"); }
    static void write(std::ostream& out, double value) {
        if (std::isfinite(value)) {
            out.precision(17);
            out << value;
        } else {  // as Python's json reads them, so that the refusal can name the value
            out << (std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
        }
    }
    static void write(std::ostream& out, const std::string& value) {
        static const char digits[] = "0123456789abcdef";
        out << '"';
        for (const char c : value) {
            const auto code = static_cast<unsigned char>(c);
            if (code < 0x20) {
                out << "\\u00" << digits[code >> 4] << digits[code & 15];
            } else {
                if (c == '"' || c == '\\') out << '\\';
                out << c;
            }
        }
        out << '"';
    }

  private:
    std::ostringstream out_;
    bool is_empty_ = true;
};

inline std::string json(const OpenOptions& options) {
    JsonObject object;
    object.add("mode", options.mode)
        .add("verify", options.verify)
        .add("num_draft", options.num_draft)
        .add("drafter", options.drafter)
        .add("branches", options.branches)
        .add("max_batch", options.max_batch)
        .add("fallback", options.fallback)
        .add("adaptive_length", options.adaptive_length)
        .add("backend", options.backend)
        .add("device", options.device)
        .add("draft_sm_share", options.draft_sm_share)
        .add("tensor_parallel", options.tensor_parallel)
        .add("prefix_reuse", options.prefix_reuse);
    if (options.saguaro) object.add("saguaro", *options.saguaro);
    else object.add("saguaro", std::string("auto"));
    return object.text();
}

/// What is asked for as C takes it. Points into what it was made from, and into itself.
class COptions {
  public:
    COptions(const SamplingParams& params, const Options& options)
        : stop_(c_strings(options.stop)), bad_words_(c_strings(options.bad_words)) {
        check(ssd_options_init(&c_, sizeof c_));
        c_.temperature = params.temperature;
        c_.top_k = params.top_k;
        c_.top_p = params.top_p;
        c_.seed = params.seed;
        c_.min_p = params.min_p;
        c_.repetition_penalty = params.repetition_penalty;
        c_.presence_penalty = params.presence_penalty;
        c_.frequency_penalty = params.frequency_penalty;
        for (const auto& [token_id, bias] : params.logit_bias) bias_.push_back({token_id, bias});
        c_.logit_bias = bias_.data();
        c_.num_logit_bias = bias_.size();

        c_.max_tokens = options.max_tokens;
        c_.min_tokens = options.min_tokens;
        c_.stop = stop_.data();
        c_.num_stop = stop_.size();
        c_.stop_token_ids = options.stop_token_ids.data();
        c_.num_stop_token_ids = options.stop_token_ids.size();
        if (options.logprobs) c_.logprobs = *options.logprobs;
        c_.ignore_eos = options.ignore_eos ? 1 : 0;
        c_.bad_words = bad_words_.data();
        c_.num_bad_words = bad_words_.size();
        c_.grammar_kind = options.grammar.kind;
        if (options.grammar.kind != SSD_GRAMMAR_NONE) c_.grammar = c_string(options.grammar.text);
        if (options.cache_salt) c_.cache_salt = c_string(*options.cache_salt);
    }
    COptions(const COptions&) = delete;
    COptions& operator=(const COptions&) = delete;

    const ssd_options* get() const noexcept { return &c_; }

  private:
    ssd_options c_{};
    std::vector<const char*> stop_, bad_words_;
    std::vector<ssd_logit_bias> bias_;
};

}  // namespace ssd::detail

#endif
