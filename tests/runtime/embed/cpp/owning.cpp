// Who owns a handle, and what refusals look like.
#include "harness.hpp"

#include <cmath>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

template <typename T>
constexpr bool moves_only = std::is_nothrow_move_constructible_v<T> &&
                            std::is_nothrow_move_assignable_v<T> &&
                            std::is_nothrow_destructible_v<T> && !std::is_copy_constructible_v<T> &&
                            !std::is_copy_assignable_v<T>;
static_assert(moves_only<ssd::Model> && moves_only<ssd::Stream>);
static_assert(std::is_base_of_v<std::runtime_error, ssd::Error>);

CASE(a_model_moves) {
    ssd::Model first = open("ar");
    ssd::Model second = std::move(first);
    CHECK_EQUAL(second.mode(), "ar");
    check_throws<ssd::Error>(SSD_ERROR_HANDLE, "", [&] { first.info(); });
    check_throws<ssd::Error>(SSD_ERROR_HANDLE, "", [&] { first.generate("The rain"); });
    const int before = num_models;
    second = open("sd");  // and the one of ar is closed
    CHECK_EQUAL(num_models, before);
    CHECK_EQUAL(second.mode(), "sd");
    first = std::move(second);
    CHECK_EQUAL(first.generate("The rain", {}, up_to(3)).mode, "sd");
}

CASE(a_stream_moves_while_it_is_read) {
    const std::string whole = model.generate("The rain", {}, up_to(30)).text;
    ssd::Stream first = model.stream("The rain", {}, up_to(30));
    std::string text;
    CHECK(first.next(text));
    ssd::Stream second = std::move(first);
    CHECK_EQUAL(text + rest_of(second), whole);
    check_throws<ssd::Error>(SSD_ERROR_HANDLE, "", [&] { first.next(text); });
    check_throws<ssd::Error>(SSD_ERROR_HANDLE, "", [&] { first.completion(); });
    const int before = num_requests;
    second = model.stream("It is", {}, up_to(150));  // and the first one is freed
    CHECK_EQUAL(num_requests, before);
    std::vector<ssd::Stream> streams;  // which moves them as it grows
    for (int i = 0; i < 5; ++i) streams.push_back(model.stream("The rain", {}, up_to(30)));
    for (ssd::Stream& each : streams) CHECK_EQUAL(rest_of(each), whole);
}

CASE(a_model_closes_once) {
    ssd::Model closed = open("ar");
    const int before = num_models;
    closed.close();
    closed.close();
    CHECK_EQUAL(num_models, before - 1);
    check_throws<ssd::Error>(SSD_ERROR_HANDLE, "", [&] { closed.encode("The rain"); });
}

CASE(three_times_opened_and_destroyed) {
    const std::string whole = model.generate("The rain", {}, up_to(10)).text;
    for (int i = 0; i < 3; ++i) {
        const ssd::Model another = open();
        CHECK_EQUAL(another.generate("The rain", {}, up_to(10)).text, whole);
    }
    CHECK_EQUAL(num_models, 1);  // the other one
}

CASE(a_model_may_go_before_its_streams) {
    auto mortal = std::make_unique<ssd::Model>(open());
    std::vector<ssd::Stream> streams;
    for (int i = 0; i < 40; ++i) streams.push_back(mortal->stream("The rain", {}, up_to(150)));
    std::string text;
    CHECK(streams.front().next(text));
    mortal.reset();
    CHECK(streams.back().wait());
    const ssd::Completion last = streams.back().completion();
    CHECK_EQUAL(name(last.finish_reason), "cancelled");
    CHECK_EQUAL(last.text, "");
    CHECK_EQUAL(text + rest_of(streams.front()), streams.front().completion().text);
}

CASE(streams_that_are_left_early_free_their_places) {
    // Three texts run at once, and this is one of them. Were the others not cancelled, many would
    // still wait for the other two places when it ends.
    ssd::Stream longest = model.stream("The rain", {}, up_to(150));
    {
        std::vector<ssd::Stream> others;
        for (int i = 0; i < 40; ++i) others.push_back(model.stream("It is", {}, up_to(150)));
        for (const std::string& piece : others.front()) {
            CHECK(!piece.empty());
            break;
        }
        CHECK_EQUAL(num_requests, 41);
    }
    CHECK_EQUAL(num_requests, 1);
    CHECK(longest.wait());
    CHECK_EQUAL(model.info().num_waiting, 0);
    CHECK_EQUAL(longest.completion().statistics.num_tokens, 150);
}

CASE(what_fails_to_begin_leaves_nothing) {
    ssd::SamplingParams params;
    params.top_p = 1.5;
    for (int i = 0; i < 3; ++i) {
        check_throws<ssd::UsageError>(SSD_ERROR_USAGE, "top_p is 1.5",
                                      [&] { model.generate("The rain", params); });
    }
    CHECK_EQUAL(num_requests, 0);
    CHECK_EQUAL(model.info().num_running + model.info().num_waiting, 0);
}

// ------------------------------------------------------------------ errors

CASE(errors_name_what_is_wrong) {
    check_throws<ssd::BundleMissingError>(SSD_ERROR_BUNDLE_MISSING, "nowhere/at-all",
                                          [] { ssd::Model("nowhere/at-all"); });
    check_throws<ssd::BundleMissingError>(SSD_ERROR_BUNDLE_MISSING, empty_folder,
                                          [] { ssd::Model{empty_folder}; });
    check_throws<ssd::BundleCorruptError>(SSD_ERROR_BUNDLE_CORRUPT, "draft/",
                                          [] { ssd::Model{broken_bundle}; });
    CHECK_EQUAL(num_models, 1);

    const auto refused = [&](auto change, std::string_view part) {
        ssd::SamplingParams params;
        ssd::Options options;
        change(params, options);
        check_throws<ssd::UsageError>(SSD_ERROR_USAGE, part,
                                      [&] { model.generate("The rain", params, options); });
    };
    refused([](auto& p, auto&) { p.temperature = -0.25; }, "temperature is -0.25");
    refused([](auto& p, auto&) { p.temperature = std::nan(""); }, "temperature is nan");
    refused([](auto& p, auto&) { p.top_k = -3; }, "top_k is -3");
    refused([](auto& p, auto&) { p.min_p = 2; }, "min_p is 2");
    refused([](auto& p, auto&) { p.repetition_penalty = 0; }, "repetition_penalty is 0");
    refused([](auto& p, auto&) { p.logit_bias[-7] = 1; }, "-7");
    refused([](auto&, auto& o) { o.max_tokens = -2; }, "is -2");
    refused([](auto&, auto& o) { o.min_tokens = -4; }, "is -4");
    refused([](auto&, auto& o) { o.logprobs = -5; }, "is -5");
    refused([](auto&, auto& o) { o.stop = {""}; }, "stop");
    refused([](auto&, auto& o) { o.stop = {std::string("a\0b", 3)}; }, "\"a\" has a NUL at byte 1");
    refused([](auto&, auto& o) { o.stop_token_ids = {-9}; }, "-9");
    refused([](auto&, auto& o) { o.cache_salt = ""; }, "cache-salt");
    refused([](auto&, auto& o) { o.grammar = ssd::Grammar::choice({}); }, "choice");

    check_throws<ssd::UsageError>(SSD_ERROR_USAGE, "NUL at byte 3", [&] {
        model.generate(std::string_view("The\0rain", 8));
    });
    check_throws<ssd::UsageError>(SSD_ERROR_USAGE, "UTF-8", [&] { model.generate("\xff\xfe"); });
    check_throws<ssd::UsageError>(SSD_ERROR_USAGE, "", [&] { model.generate(""); });
    check_throws<ssd::UsageError>(SSD_ERROR_USAGE, "", [&] { model.chat({}); });
    check_throws<ssd::CapacityError>(SSD_ERROR_CAPACITY, "160", [&] {
        model.generate(std::vector<std::int32_t>(500, 40));
    });
}

CASE(options_of_opening_are_refused_by_name) {
    const auto refused = [](auto change, std::string_view part) {
        ssd::OpenOptions how;
        how.mode = "ssd";
        change(how);
        check_throws<ssd::UsageError>(SSD_ERROR_USAGE, part, [&] { ssd::Model{bundle, how}; });
    };
    refused([](auto& how) { how.mode = "fast\n\"\\"; }, "fast");
    refused([](auto& how) { how.mode = std::string("sd\0", 3); }, "mode");
    refused([](auto& how) { how.mode = "\xff"; }, "UTF-8");
    refused([](auto& how) { how.verify = "never"; }, "never");
    refused([](auto& how) { how.saguaro = 1.5; }, "saguaro is 1.5");
    refused([](auto& how) { how.saguaro = std::nan(""); }, "saguaro");
    refused([](auto& how) { how.saguaro = std::nullopt; }, "--saguaro");  // auto, with coupled
    refused([](auto& how) { how.tensor_parallel = 2; }, "");
    refused([](auto& how) { how.device = "cuda:x"; }, "cuda:x");
    refused([](auto& how) { how.num_draft = -1; }, "num_draft is -1");
}

template <typename Kind>
void check_kind(std::initializer_list<ssd_status> statuses) {
    for (const ssd_status status : statuses) {
        check_throws<Kind>(status, "why", [status] { ssd::detail::fail(status, "why"); });
    }
}

CASE(every_status_has_its_exception) {
    check_kind<ssd::UsageError>({SSD_ERROR_USAGE});
    check_kind<ssd::CapacityError>({SSD_ERROR_CAPACITY});
    check_kind<ssd::MissingDependencyError>({SSD_ERROR_MISSING_DEPENDENCY});
    check_kind<ssd::BundleError>({SSD_ERROR_BUNDLE, SSD_ERROR_PAIR});
    check_kind<ssd::BundleMissingError>({SSD_ERROR_BUNDLE_MISSING});
    check_kind<ssd::BundleCorruptError>({SSD_ERROR_BUNDLE_CORRUPT});
    check_kind<ssd::BundleIncompatibleError>({SSD_ERROR_BUNDLE_INCOMPATIBLE});
    check_kind<ssd::EngineError>({SSD_ERROR_BACKEND, SSD_ERROR_DEVICE});
    check_kind<ssd::Error>({SSD_ERROR_STATE, SSD_ERROR_HANDLE, SSD_ERROR_PYTHON, SSD_ERROR_FORKED,
                            SSD_ERROR_SYSTEM, SSD_ERROR_MEMORY, SSD_ERROR_INTERNAL});
}

}  // namespace
