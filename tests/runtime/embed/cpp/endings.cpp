// endings HOW BUNDLE: ends the process with models open and texts on their way, and says "ending".
#include <ssd.hpp>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

// Made before main and the library's own statics, so destroyed behind them.
std::optional<ssd::Model> first_made;
std::vector<ssd::Stream> streams;

ssd::OpenOptions with(const std::string& mode) {
    ssd::OpenOptions how;
    how.mode = mode;
    return how;
}

ssd::Options endless() {
    ssd::Options options;
    options.max_tokens = 150;
    options.ignore_eos = true;
    return options;
}

// Many more than run at once, so that some still wait whatever the machine does.
void begin_many(const ssd::Model& model) {
    for (int i = 0; i < 40; ++i) streams.push_back(model.stream("The rain", {}, endless()));
    std::string text;
    streams.front().next(text);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string_view how = argv[1];
    if (how == "static") {
        begin_many(first_made.emplace(argv[2], with("ssd")));
        static const ssd::Model last_made(argv[2], with("sd"));
        streams.push_back(last_made.stream("It is", {}, endless()));
    } else if (how == "never-closed") {
        const auto* model = new ssd::Model(argv[2], with("ssd"));
        begin_many(*model);
        auto* kept = new std::vector<ssd::Stream>(std::move(streams));
        std::thread([kept] { kept->back().wait(); }).detach();
    } else if (how == "thread") {  // all of it in a thread that ends before
        std::thread([&] { begin_many(first_made.emplace(argv[2], with("ssd"))); }).join();
    } else if (how == "throw") {
        try {
            ssd::Model model(argv[2], with("ssd"));
            begin_many(model);
            throw std::runtime_error("a fault of the caller's");
        } catch (const std::runtime_error&) {  // and the model was closed on the way
            streams.back().wait();
        }
    }
    std::cout << "ending" << std::endl;
    if (how == "never-closed") std::exit(0);
}
