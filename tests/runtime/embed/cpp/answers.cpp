// answers BUNDLE MODE: what the wrapper's structs say by themselves, and some texts, as JSON lines.
#include <ssd.hpp>

#include <cstdint>
#include <iostream>
#include <vector>

namespace {

void print_defaults() {
    const ssd::SamplingParams params;
    const ssd::Options options;
    std::cout << ssd::detail::json(ssd::OpenOptions{}) << '\n'
              << ssd::detail::JsonObject()
                     .add("temperature", params.temperature)
                     .add("top_k", params.top_k)
                     .add("top_p", params.top_p)
                     .add("seed", static_cast<double>(params.seed))
                     .add("min_p", params.min_p)
                     .add("repetition_penalty", params.repetition_penalty)
                     .add("presence_penalty", params.presence_penalty)
                     .add("frequency_penalty", params.frequency_penalty)
                     .add("num_biases", static_cast<std::int32_t>(params.logit_bias.size()))
                     .text()
              << '\n'
              << ssd::detail::JsonObject()
                     .add("max_tokens", options.max_tokens)
                     .add("min_tokens", options.min_tokens)
                     .add("ignore_eos", options.ignore_eos)
                     .add("logprobs", options.logprobs)
                     .add("cache_salt", options.cache_salt)
                     .add("num_stops", static_cast<std::int32_t>(options.stop.size() +
                                                                options.stop_token_ids.size() +
                                                                options.bad_words.size()))
                     .add("has_grammar", options.grammar.kind != SSD_GRAMMAR_NONE)
                     .text()
              << '\n';
}

struct Asked {
    ssd::SamplingParams params;
    ssd::Options options;
};

/// One text of "The rain in", drawn with a temperature, and with what `change` sets.
template <typename Change>
void print(const ssd::Model& model, const char* label, Change change) {
    Asked asked;
    asked.params.temperature = 1.5;
    asked.params.seed = 3;
    asked.options.max_tokens = 30;
    change(asked.params, asked.options);
    const ssd::Stream stream = model.stream("The rain in", asked.params, asked.options);
    stream.wait();
    std::cout << label << ' ' << stream.json() << '\n';
}

void print_texts(const ssd::Model& model) {
    const std::int32_t eos = model.eos_token_ids().front();
    const std::vector<std::int32_t> some_ids{289, 72};  // the plain text has them

    print(model, "plain", [](auto&, auto&) {});
    print(model, "temperature", [](auto& params, auto&) { params.temperature = 0; });
    print(model, "top_k", [](auto& params, auto&) { params.top_k = 5; });
    print(model, "top_p", [](auto& params, auto&) { params.top_p = 0.3; });
    print(model, "seed", [](auto& params, auto&) { params.seed = ~std::uint64_t{0}; });
    print(model, "min_p", [](auto& params, auto&) { params.min_p = 0.4; });
    print(model, "repetition_penalty", [](auto& params, auto&) { params.repetition_penalty = 3; });
    print(model, "presence_penalty", [](auto& params, auto&) { params.presence_penalty = 4; });
    print(model, "frequency_penalty", [](auto& params, auto&) { params.frequency_penalty = -4; });
    print(model, "logit_bias", [](auto& params, auto&) {
        params.logit_bias = {{40, 7.5}, {41, -1e30}};
    });
    print(model, "max_tokens", [](auto&, auto& options) { options.max_tokens = 7; });
    print(model, "eos", [eos](auto& params, auto&) { params.logit_bias = {{eos, 20.0}}; });
    print(model, "ignore_eos", [eos](auto& params, auto& options) {
        params.logit_bias = {{eos, 20.0}};
        options.ignore_eos = true;
    });
    print(model, "stop", [](auto&, auto& options) { options.stop = {"never", "e", "a", "t"}; });
    print(model, "stop_token_ids", [&](auto&, auto& options) {
        options.stop_token_ids = some_ids;
    });
    print(model, "min_tokens", [&](auto&, auto& options) {
        options.stop_token_ids = some_ids;
        options.min_tokens = 25;
    });
    print(model, "bad_words", [](auto&, auto& options) { options.bad_words = {"never", "F"}; });
    print(model, "logprobs", [](auto&, auto& options) { options.logprobs = 2; });
    print(model, "grammar", [](auto&, auto& options) {
        options.grammar = ssd::Grammar::choice({"yes", "no"});
    });
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    print_defaults();
    ssd::OpenOptions how;
    how.mode = argv[2];
    print_texts(ssd::Model(argv[1], how));
}
