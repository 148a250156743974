/// ssd-trt from C++17: open a bundle, ask for texts, read them as they come. Headers only, over
/// ssd.h.
///
///     ssd::OpenOptions how;
///     how.mode = "ssd";
///     ssd::Model model("engines/bundles/demo", how);
///
///     ssd::SamplingParams params;
///     params.temperature = 0.8;
///     ssd::Stream stream = model.stream("Once upon a time", params);
///     for (const std::string& piece : stream) std::cout << piece << std::flush;
///     std::cout << stream.completion().statistics.tokens_per_second << " tokens/s\n";
///
/// THREADS. Any number of threads may use one Model at the same time, through references to it:
/// their texts share the rounds. A Stream is read by one thread at a time; cancel() may come from
/// any. What moves, assigns or destroys an object must be the only one that uses it.
///
/// LIFETIME. Model and Stream own what they hold and free it; they move, and are not copied. They
/// may be destroyed in any order, also as static objects: a Stream whose Model is gone ends as
/// cancelled. What was moved from, or closed, refuses every call with SSD_ERROR_HANDLE.
///
/// ERRORS are exceptions, ssd::Error or a kind of it; nothing has happened then. Destructors and
/// moves throw nothing. Any text must be UTF-8 without a NUL, else UsageError.
#ifndef SSD_HPP
#define SSD_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ssd.h"

namespace ssd {

// ------------------------------------------------------------------ errors

/// What went wrong: what() says in one line what was found, what was expected and what helps.
class Error : public std::runtime_error {
  public:
    Error(ssd_status status, const std::string& message)
        : std::runtime_error(message), status_(status) {}

    /// Never SSD_OK. ssd.h says what each one means.
    ssd_status status() const noexcept { return status_; }

  private:
    ssd_status status_;
};

/// A prompt, option or path that cannot be used.
class UsageError : public Error {
    using Error::Error;
};
/// A request beyond what the bundle was built for.
class CapacityError : public Error {
    using Error::Error;
};
/// A Python package that is not installed.
class MissingDependencyError : public Error {
    using Error::Error;
};
/// A bundle that cannot be opened; its kinds say why, and status() does.
class BundleError : public Error {
    using Error::Error;
};
/// There is no bundle at the path.
class BundleMissingError : public BundleError {
    using BundleError::BundleError;
};
/// Files of the bundle are damaged, missing or foreign.
class BundleCorruptError : public BundleError {
    using BundleError::BundleError;
};
/// A sound bundle that cannot run here, or not with these options.
class BundleIncompatibleError : public BundleError {
    using BundleError::BundleError;
};
/// An engine, or its device, refused to load or to run (SSD_ERROR_BACKEND, SSD_ERROR_DEVICE).
class EngineError : public Error {
    using Error::Error;
};

// ------------------------------------------------------------------ what to ask for

/// How to open a bundle: the keyword arguments of Python's LLM.open, with its defaults.
struct OpenOptions {
    std::string mode = "auto";              ///< ar, sd, ssd, or auto: the fastest, as it runs
    std::string verify = "coupled";         ///< coupled (plain decoding's tokens) or ratio
    std::optional<std::int32_t> num_draft;  ///< tokens drafted a round; none: as built
    std::string drafter = "auto";           ///< model, lookup, both or auto
    std::optional<std::int32_t> branches;   ///< outcomes prepared a round; none: as built
    std::optional<std::int32_t> max_batch;  ///< texts decoded at once; none: as built
    std::string fallback = "auto";          ///< after a miss: zero, jit, lookup or auto
    std::optional<double> saguaro = 1.0;    ///< with ratio: 0 to 1 (off); none: auto
    bool adaptive_length = false;           ///< draft fewer tokens where the draft is unsure
    std::optional<std::string> backend;     ///< what the bundle has to be built for; none: any
    std::optional<std::string> device;      ///< cpu, cuda:0, "cuda:0,cpu"; none: as built
    std::optional<double> draft_sm_share;   ///< the draft's part of a GPU that both share
    std::int32_t tensor_parallel = 1;       ///< GPUs that the target is spread over
    bool prefix_reuse = true;               ///< feed what two texts begin with only once
};

/// How the next token is drawn: Python's SamplingParams, with its defaults.
struct SamplingParams {
    double temperature = 0.0;         ///< 0 takes the most likely token
    std::int32_t top_k = 0;           ///< keep that many tokens; 0 keeps all
    double top_p = 1.0;               ///< keep the fewest tokens with this share of the mass
    std::uint64_t seed = 0;           ///< the same seed gives the same tokens, in every mode
    double min_p = 0.0;               ///< keep tokens this share as likely as the likeliest
    double repetition_penalty = 1.0;  ///< above 1: tokens of prompt and text are less likely
    double presence_penalty = 0.0;    ///< taken off the logit of what the text has
    double frequency_penalty = 0.0;   ///< the same, once for each time
    std::map<std::int32_t, double> logit_bias;  ///< token id: added to its logit, -1e30 to 1e30
};

/// What a text has to be, exactly. Needs the Python package llguidance where the bundle runs.
struct Grammar {
    ssd_grammar_kind kind = SSD_GRAMMAR_NONE;
    std::string text;  ///< see ssd_grammar_kind

    static Grammar json_schema(std::string_view schema);
    static Grammar regex(std::string_view pattern);     ///< Rust's syntax
    static Grammar lark(std::string_view grammar);
    static Grammar choice(const std::vector<std::string>& texts);  ///< one of them, word for word
};

/// What ends a text and what it has to be: Python's GenerateOptions, with their defaults.
struct Options {
    std::int32_t max_tokens = 128;             ///< the longest text
    std::int32_t min_tokens = 0;               ///< until then nothing ends it
    std::vector<std::string> stop;             ///< the text ends before the first of them
    std::vector<std::int32_t> stop_token_ids;  ///< they end it, too
    std::optional<std::int32_t> logprobs;      ///< of so many likeliest tokens, in Stream::json
    bool ignore_eos = false;                   ///< the model's end of sequence ends nothing
    std::vector<std::string> bad_words;        ///< their tokens do not follow one another
    Grammar grammar;                           ///< what the text has to be
    std::optional<std::string> cache_salt;     ///< share cache rows with texts of this salt only
};

/// One turn of a conversation.
struct Message {
    std::string role;  ///< "system", "user" or "assistant"
    std::string content;
};

// ------------------------------------------------------------------ what comes of it

enum class FinishReason : std::int32_t {
    stop = SSD_FINISH_STOP,            ///< end of sequence, a stop token or a stop string
    length = SSD_FINISH_LENGTH,        ///< max_tokens
    context = SSD_FINISH_CONTEXT,      ///< prompt and text fill the bundle's max_len
    cancelled = SSD_FINISH_CANCELLED,  ///< by cancel(), or because the Model was closed
    grammar = SSD_FINISH_GRAMMAR       ///< the grammar could not be held to; the note says why
};

/// Its name in Python and in JSON; "unknown" for a number that is none.
inline std::string_view name(FinishReason reason) noexcept {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::context: return "context";
        case FinishReason::cancelled: return "cancelled";
        case FinishReason::grammar: return "grammar";
    }
    return "unknown";
}

/// Counts and times (seconds) of one text; ssd.h says what each one is.
using Statistics = ssd_result;

/// A complete text.
struct Completion {
    std::string text;  ///< without prompt and stop
    std::vector<std::int32_t> token_ids;
    FinishReason finish_reason;
    std::string stop;                           ///< the stop string that ended it; else empty
    std::optional<std::int32_t> stop_token_id;  ///< the one of stop_token_ids that ended it
    std::string mode;                           ///< what ran
    std::string note;  ///< what is not as it was asked for, and why; empty where all is
    Statistics statistics;
};

/// What became certain of a text since the last piece. Text and tokens may come one without the
/// other, as where a character is spread over two tokens.
struct Piece {
    std::string text;
    std::vector<std::int32_t> token_ids;
};

enum class State : std::int32_t {
    more = SSD_MORE,           ///< there is something, and may be more: read again
    end = SSD_END,             ///< the text is complete, and all of it was read
    timed_out = SSD_TIMED_OUT  ///< nothing new yet
};

/// A timeout that never comes, as any negative one.
inline constexpr std::chrono::milliseconds forever{-1};

/// One text that comes. Model makes it; destroyed early it cancels its request, without waiting.
class Stream {
  public:
    /// Reads text as it is moved forward. Valid as long as the Stream stays where it is; all
    /// iterators of one Stream take from the same text.
    class Iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = std::string;
        using difference_type = std::ptrdiff_t;
        using pointer = const std::string*;
        using reference = const std::string&;

        Iterator() = default;
        explicit Iterator(Stream* stream) : stream_(stream) { ++*this; }

        reference operator*() const noexcept { return text_; }
        pointer operator->() const noexcept { return &text_; }
        Iterator& operator++() {
            if (!stream_->next(text_)) stream_ = nullptr;
            return *this;
        }
        Iterator operator++(int) {
            Iterator before = *this;
            ++*this;
            return before;
        }
        friend bool operator==(const Iterator& a, const Iterator& b) noexcept {
            return a.stream_ == b.stream_;
        }
        friend bool operator!=(const Iterator& a, const Iterator& b) noexcept { return !(a == b); }

      private:
        Stream* stream_ = nullptr;  ///< nullptr: behind the last piece
        std::string text_;
    };

    /// Pieces of text, none of them empty, each final; joined they are the text. Waits for each.
    /// Throws what stopped the text, such as EngineError, behind its last piece.
    Iterator begin() { return Iterator(this); }
    Iterator end() { return {}; }

    /// The same without iterators: waits for the next piece; false, and no text, behind the last.
    bool next(std::string& text);

    /// The next piece with its tokens, as far as it came within the timeout (0: do not wait;
    /// negative: without end). What next() or an iterator handed over does not come again.
    State read(Piece& piece, std::chrono::milliseconds timeout = forever);

    /// Wait until the text is complete, whether or not it is read; false: not within the timeout.
    /// Throws what stopped the text.
    bool wait(std::chrono::milliseconds timeout = forever) const;

    /// Want no more of it, from any thread: it ends soon with what there is, as cancelled.
    void cancel() const;

    /// All of a text that is complete, whether or not it was read. Throws Error with
    /// SSD_ERROR_STATE while it goes on, and what stopped the text if something did.
    Completion completion() const;

    /// The same as `python -m runtime generate --json` has it, with log-probabilities.
    std::string json() const;

  private:
    friend class Model;
    struct Destroy {
        void operator()(ssd_request* request) const noexcept { ssd_request_destroy(request); }
    };
    explicit Stream(ssd_request* request) noexcept : request_(request) {}
    std::string text(ssd_request_text_kind kind) const;

    std::unique_ptr<ssd_request, Destroy> request_;
};

/// An open bundle.
class Model {
  public:
    /// Load a bundle, which takes some seconds; mode "auto" measures the machine once, which takes
    /// more. Throws BundleError, UsageError, CapacityError, EngineError, MissingDependencyError, or
    /// Error with SSD_ERROR_PYTHON where ssd-trt cannot be started.
    explicit Model(std::string_view bundle, const OpenOptions& options = {});

    /// End all requests as cancelled and free the engines, as the destructor does. Waits until that
    /// is done. Their Streams can still be read. Idempotent.
    void close();

    /// Begin to continue a prompt, a text or token ids. Returns at once; with more requests than
    /// info().max_batch the last ones wait inside. Throws UsageError or CapacityError for what
    /// cannot be served, MissingDependencyError for a grammar without its library.
    [[nodiscard]] Stream stream(std::string_view prompt, const SamplingParams& params = {},
                                const Options& options = {}) const;
    [[nodiscard]] Stream stream(const std::vector<std::int32_t>& prompt,
                                const SamplingParams& params = {},
                                const Options& options = {}) const;
    /// Begin to answer a conversation, its oldest turn first. Needs info().has_chat_template.
    [[nodiscard]] Stream stream_chat(const std::vector<Message>& messages,
                                     const SamplingParams& params = {},
                                     const Options& options = {}) const;

    /// Continue a prompt, or answer a conversation, and wait for all of it. Throws as stream()
    /// does, and EngineError where the engines fail.
    Completion generate(std::string_view prompt, const SamplingParams& params = {},
                        const Options& options = {}) const;
    Completion generate(const std::vector<std::int32_t>& prompt, const SamplingParams& params = {},
                        const Options& options = {}) const;
    Completion chat(const std::vector<Message>& messages, const SamplingParams& params = {},
                    const Options& options = {}) const;

    /// Token ids that end a text by themselves.
    std::vector<std::int32_t> eos_token_ids() const;
    /// Token ids of a prompt, with those that the model wants around it.
    std::vector<std::int32_t> encode(std::string_view text) const;
    /// Token ids of a conversation in the chat template.
    std::vector<std::int32_t> encode_chat(const std::vector<Message>& messages) const;
    /// The text of token ids; bytes that are no UTF-8 become U+FFFD.
    std::string decode(const std::vector<std::int32_t>& token_ids) const;

    /// Limits, and how many requests run and wait now.
    ssd_model_info info() const;
    std::string mode() const;  ///< ar, sd, ssd or auto
    std::string note() const;  ///< what is not as it was asked for, and why; it may change
    std::string path() const;  ///< the bundle's folder
    std::string json() const;  ///< settings, limits, memory and manifest, as one object

  private:
    struct Close {
        void operator()(ssd_model* model) const noexcept { ssd_model_close(model); }
    };
    std::string text(ssd_model_text_kind kind) const;

    std::unique_ptr<ssd_model, Close> model_;
};

/// Version of the library, such as "0.1.0".
inline std::string_view version() noexcept { return ssd_version(); }

}  // namespace ssd

#include "ssd_bodies.hpp"

#endif
