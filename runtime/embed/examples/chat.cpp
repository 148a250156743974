// A conversation in C++: reads a line, streams the answer, and keeps both for the next turn.
//
//     chat BUNDLE [MODE]     such as: echo "Name three rivers." | chat engines/bundles/demo
#include <ssd.hpp>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

void answer(const ssd::Model& model, std::vector<ssd::Message>& messages) {
    ssd::SamplingParams params;
    params.temperature = 0.7;
    params.seed = 1;
    ssd::Options options;
    options.max_tokens = 60;

    ssd::Stream stream = model.stream_chat(messages, params, options);
    for (const std::string& piece : stream) std::cout << piece << std::flush;

    ssd::Completion done = stream.completion();
    std::cout << "\n[" << done.statistics.num_tokens << " tokens, ended by "
              << ssd::name(done.finish_reason) << "]\n";
    messages.push_back({"assistant", std::move(done.text)});
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 2) {
        std::cerr << "usage: chat BUNDLE [MODE]\n";
        return 2;
    }
    ssd::OpenOptions how;
    if (argc > 2) how.mode = argv[2];
    const ssd::Model model(argv[1], how);

    std::vector<ssd::Message> messages;
    for (std::string line; std::getline(std::cin, line);) {
        messages.push_back({"user", line});
        try {
            answer(model, messages);
        } catch (const ssd::CapacityError& error) {
            std::cout << "[starting anew: " << error.what() << "]\n";
            messages.clear();
        }
    }
} catch (const ssd::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
