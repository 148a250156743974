// cases BUNDLE BROKEN EMPTY: runs every case and prints "NAME passed" or "NAME failed: WHY".
#include "harness.hpp"

std::atomic<int> num_models{0}, num_requests{0};

// A function that makes a handle, or frees one, and counts it; the linker's --wrap gives the names.
#define MAKES(function, counter, parameters, arguments)                                           \
    extern "C" ssd_status __real_##function parameters;                                           \
    extern "C" ssd_status __wrap_##function parameters {                                          \
        const ssd_status status = __real_##function arguments;                                    \
        if (*made != nullptr) ++counter;                                                          \
        return status;                                                                            \
    }
#define FREES(function, counter, handle)                                                          \
    extern "C" ssd_status __real_##function(handle* freed);                                       \
    extern "C" ssd_status __wrap_##function(handle* freed) {                                      \
        if (freed != nullptr) --counter;                                                          \
        return __real_##function(freed);                                                          \
    }

MAKES(ssd_model_open, num_models, (const char* path, const char* options, ssd_model** made),
      (path, options, made))
MAKES(ssd_request_begin, num_requests,
      (ssd_model * model, const char* prompt, const ssd_options* options, ssd_request** made),
      (model, prompt, options, made))
MAKES(ssd_request_begin_tokens, num_requests,
      (ssd_model * model, const int32_t* token_ids, size_t size, const ssd_options* options,
       ssd_request** made),
      (model, token_ids, size, options, made))
MAKES(ssd_request_begin_chat, num_requests,
      (ssd_model * model, const ssd_message* messages, size_t size, const ssd_options* options,
       ssd_request** made),
      (model, messages, size, options, made))
FREES(ssd_model_close, num_models, ssd_model)
FREES(ssd_request_destroy, num_requests, ssd_request)

std::string bundle, broken_bundle, empty_folder;

ssd::Model open(const std::string& mode) {
    ssd::OpenOptions how;
    how.mode = mode;
    return ssd::Model(bundle, how);
}

ssd::Options up_to(std::int32_t max_tokens) {
    ssd::Options options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    return options;
}

std::string rest_of(ssd::Stream& stream) {
    std::string text;
    for (const std::string& piece : stream) text += piece;
    return text;
}

static std::vector<std::pair<const char*, Case>>& cases() {
    static std::vector<std::pair<const char*, Case>> all;
    return all;
}

bool add_case(const char* name, Case run) {
    cases().emplace_back(name, run);
    return true;
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    bundle = argv[1], broken_bundle = argv[2], empty_folder = argv[3];
    const ssd::Model model = open();
    for (const auto& [name, run] : cases()) {
        std::cout << name << std::flush;
        try {
            run(model);
            CHECK_EQUAL(num_requests, 0);
            CHECK_EQUAL(num_models, 1);
            std::cout << " passed" << std::endl;
        } catch (const std::exception& error) {
            std::cout << " failed: " << error.what() << std::endl;
        }
    }
}
