// What the cases share: checks that say what they saw, a count of open handles, and their folders.
#pragma once

#include <ssd.hpp>

#include <atomic>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

/// A case, called with a model of bundle() that is open for all of them; it fails by an exception,
/// or by what it leaves open.
using Case = void (*)(const ssd::Model& model);
#define CASE(name)                                    \
    void name(const ssd::Model& model);               \
    const bool name##_is_known = add_case(#name, name); \
    void name([[maybe_unused]] const ssd::Model& model)
bool add_case(const char* name, Case run);

#define CHECK(condition) \
    ((condition) ? void() : fail(std::string("line ") + std::to_string(__LINE__) + ": " #condition))
#define CHECK_EQUAL(a, b) check_equal(__LINE__, #a " == " #b, a, b)

[[noreturn]] inline void fail(const std::string& what) { throw std::logic_error(what); }

template <typename A, typename B>
void check_equal(int line, const char* what, const A& a, const B& b) {
    if (a == b) return;
    std::ostringstream text;
    text << "line " << line << ": " << what << ", but the first is " << a << ", the second " << b;
    fail(text.str());
}

/// That `call` throws a Kind itself, no kind of it, with `status`, and says `part` in one line.
template <typename Kind, typename Call>
void check_throws(ssd_status status, std::string_view part, Call call) {
    try {
        call();
    } catch (const ssd::Error& error) {
        const std::string said = error.what();
        if (typeid(error) == typeid(Kind) && error.status() == status &&
            said.find(part) != std::string::npos && said.find('\n') == std::string::npos) {
            return;
        }
        fail("expected \"" + std::string(part) + "\" as " + ssd_status_name(status) + ", caught " +
             ssd_status_name(error.status()) + " in a " + typeid(error).name() + ": " + said);
    }
    fail("nothing was thrown, \"" + std::string(part) + "\" was expected");
}

/// Models and requests that were made and not freed yet. The linker puts these in front of the
/// library's functions (--wrap), so a handle that is leaked or freed twice is seen.
extern std::atomic<int> num_models, num_requests;

/// Given to the program: a bundle of three texts at once, 160 positions and a chat template; one
/// that lost its draft's engine; and an empty folder.
extern std::string bundle, broken_bundle, empty_folder;

/// bundle, opened once more.
ssd::Model open(const std::string& mode = "ssd");
/// So many tokens, whatever they are.
ssd::Options up_to(std::int32_t max_tokens);
/// What a stream still has.
std::string rest_of(ssd::Stream& stream);
