// Two threads that share one model in C++: their texts are decoded in the same rounds.
//
//     threads BUNDLE PROMPT PROMPT [MODE]
#include <ssd.hpp>

#include <functional>
#include <future>
#include <iostream>
#include <string>

namespace {

ssd::Completion generate(const ssd::Model& model, const std::string& prompt) {
    ssd::Options options;
    options.max_tokens = 40;
    return model.generate(prompt, {}, options);
}

void print(const std::string& prompt, const ssd::Completion& done) {
    std::cout << prompt << done.text << "\n[" << done.statistics.num_tokens << " tokens, "
              << done.statistics.acceptance_length << " a round]\n";
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 4) {
        std::cerr << "usage: threads BUNDLE PROMPT PROMPT [MODE]\n";
        return 2;
    }
    ssd::OpenOptions how;
    if (argc > 4) how.mode = argv[4];
    const ssd::Model model(argv[1], how);

    const std::string first = argv[2], second = argv[3];
    auto in_thread = [&model](const std::string& prompt) {
        return std::async(std::launch::async, generate, std::cref(model), std::cref(prompt));
    };
    std::future<ssd::Completion> one = in_thread(first), other = in_thread(second);
    print(first, one.get());  // what its thread threw is thrown here
    print(second, other.get());
} catch (const ssd::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
