// What is read of a text, in which way and by whom.
#include "harness.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace {

CASE(all_ways_of_reading_give_one_text) {
    ssd::Options options = up_to(40);
    const ssd::Completion whole = model.generate("The rain", {}, options);
    CHECK_EQUAL(whole.token_ids.size(), 40U);
    CHECK_EQUAL(name(whole.finish_reason), "length");
    CHECK_EQUAL(whole.text, model.decode(whole.token_ids));

    ssd::Stream by_piece = model.stream("The rain", {}, options);
    std::string text;
    std::vector<std::int32_t> token_ids;
    ssd::Piece piece;
    for (ssd::State state = by_piece.read(piece); state != ssd::State::end;
         state = by_piece.read(piece)) {
        CHECK(state == ssd::State::more);
        text += piece.text;
        token_ids.insert(token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
    }
    CHECK(piece.text.empty() && piece.token_ids.empty());
    CHECK_EQUAL(text, whole.text);
    CHECK(token_ids == whole.token_ids);

    ssd::Stream by_iterator = model.stream(model.encode("The rain"), {}, options);
    std::string joined;
    std::for_each(by_iterator.begin(), by_iterator.end(),
                  [&](const std::string& each) { joined += each; });
    CHECK_EQUAL(joined, whole.text);
    CHECK(by_iterator.begin() == by_iterator.end());

    ssd::Stream by_copies = model.stream("The rain", {}, options);
    std::string copied;
    for (auto at = by_copies.begin(); at != by_copies.end();) copied += *at++;
    CHECK_EQUAL(copied, whole.text);

    ssd::Stream unread = model.stream("The rain", {}, options);
    CHECK(unread.wait());
    CHECK_EQUAL(unread.completion().text, whole.text);
}

CASE(a_long_text_fits_through_the_buffers) {
    // Nothing is read until all of it is there.
    const std::vector<std::int32_t> prompt = model.encode("a");
    ssd::Stream stream = model.stream(prompt, {}, up_to(150));
    CHECK(stream.wait());
    const ssd::Completion all = stream.completion();
    CHECK_EQUAL(all.token_ids.size(), 150U);
    CHECK_EQUAL(rest_of(stream), all.text);
    std::string long_text;
    while (long_text.size() < 5000) long_text += "\xe2\x82\xac ";
    CHECK_EQUAL(model.decode(model.encode(long_text)), long_text);
    CHECK_EQUAL(model.decode({}), "");
}

CASE(what_does_not_come_in_time_times_out) {
    using std::chrono::milliseconds;
    std::vector<ssd::Stream> streams;
    for (int i = 0; i < 40; ++i) streams.push_back(model.stream("It is", {}, up_to(150)));
    ssd::Stream& last = streams.back();  // has no place yet
    ssd::Piece piece;
    CHECK(last.read(piece, milliseconds(0)) == ssd::State::timed_out);
    CHECK(piece.text.empty() && piece.token_ids.empty());
    CHECK(!last.wait(milliseconds(1)));
    CHECK(last.read(piece, milliseconds(1)) == ssd::State::timed_out);
    check_throws<ssd::Error>(SSD_ERROR_STATE, "", [&] { last.completion(); });
    check_throws<ssd::Error>(SSD_ERROR_STATE, "", [&] { last.json(); });
    CHECK(model.info().num_waiting > 0);
}

CASE(any_timeout_is_one) {
    using std::chrono::milliseconds;
    ssd::Piece piece;
    for (const milliseconds timeout : {milliseconds::max(), milliseconds::min(), ssd::forever,
                                       milliseconds(std::chrono::hours(1))}) {
        ssd::Stream stream = model.stream("It is", {}, up_to(3));
        CHECK(stream.read(piece, timeout) == ssd::State::more);
        CHECK(stream.wait(timeout));
    }
}

CASE(another_thread_cancels_what_is_waited_for) {
    std::vector<ssd::Stream> streams;
    for (int i = 0; i < 40; ++i) streams.push_back(model.stream("It is", {}, up_to(150)));
    ssd::Stream& last = streams.back();
    std::string text("not read yet");
    bool has_more = true;
    std::thread reader([&] { has_more = last.next(text); });
    last.cancel();
    reader.join();
    CHECK(!has_more);
    CHECK_EQUAL(text, "");
    CHECK_EQUAL(name(last.completion().finish_reason), "cancelled");
    last.cancel();  // is no error, now or after a text's own end
    ssd::Stream whole = model.stream("It is", {}, up_to(2));
    for (ssd::Stream& each : streams) each.cancel();
    CHECK(whole.wait());
    whole.cancel();
    CHECK_EQUAL(name(whole.completion().finish_reason), "length");
}

CASE(two_threads_share_a_model) {
    ssd::SamplingParams params;
    params.temperature = 1.0;
    params.seed = 5;
    const std::string first = model.generate("The rain", {}, up_to(40)).text;
    const std::string second = model.generate("It is", params, up_to(40)).text;
    std::string wrong;
    const auto several = [&](const std::string& prompt, const ssd::SamplingParams& law,
                             const std::string& expected, std::string& failure) {
        try {
            for (int i = 0; i < 4; ++i) {
                ssd::Stream stream = model.stream(prompt, law, up_to(40));
                if (rest_of(stream) != expected) failure = prompt;
                if (model.decode(model.encode(prompt)) != prompt) failure = "decode " + prompt;
            }
        } catch (const std::exception& error) {
            failure = error.what();
        }
    };
    std::string one, other;
    std::thread thread([&] { several("The rain", {}, first, one); });
    several("It is", params, second, other);
    thread.join();
    CHECK_EQUAL(one + other, "");
}

CASE(errors_belong_to_the_thread_that_made_them) {
    const auto refuse = [&model](double top_p, std::string_view part, std::string& failure) {
        try {
            ssd::SamplingParams params;
            params.top_p = top_p;
            for (int i = 0; i < 50; ++i) {
                check_throws<ssd::UsageError>(SSD_ERROR_USAGE, part,
                                              [&] { model.generate("The rain", params); });
            }
        } catch (const std::exception& error) {
            failure = error.what();
        }
    };
    std::string one, other;
    std::thread thread([&] { refuse(2.5, "top_p is 2.5", one); });
    refuse(3.5, "top_p is 3.5", other);
    thread.join();
    CHECK_EQUAL(one + other, "");
}

// ------------------------------------------------------------------ the rest

CASE(what_ended_a_text_is_told) {
    const ssd::Completion whole = model.generate("The rain", {}, up_to(30));
    ssd::Options options = up_to(30);
    options.stop = {"never there, this", whole.text.substr(whole.text.size() / 2, 6)};
    const ssd::Completion by_text = model.generate("The rain", {}, options);
    CHECK_EQUAL(name(by_text.finish_reason), "stop");
    CHECK_EQUAL(by_text.stop, options.stop[1]);
    CHECK_EQUAL(by_text.text, whole.text.substr(0, whole.text.find(options.stop[1])));
    CHECK(!by_text.stop_token_id);

    options = up_to(30);
    options.stop_token_ids = {whole.token_ids[7]};
    const ssd::Completion by_token = model.generate("The rain", {}, options);
    CHECK_EQUAL(by_token.stop_token_id.value_or(-1), whole.token_ids[7]);
    CHECK_EQUAL(by_token.stop, "");
    CHECK(!whole.stop_token_id);
}

CASE(a_grammar_is_held_to) {
    ssd::Options options;
    options.grammar = ssd::Grammar::choice({"say \"yes\"", "no\\\n"});
    const std::string chosen = model.generate("The rain", {}, options).text;
    CHECK(chosen == "say \"yes\"" || chosen == "no\\\n");
    options.grammar = ssd::Grammar::regex("[0-9]{3}x");
    const std::string matched = model.generate("The rain", {}, options).text;
    CHECK_EQUAL(matched.size(), 4U);
    CHECK_EQUAL(matched.back(), 'x');
    options.grammar = ssd::Grammar::lark("start: \"(\" /[ab]/ \")\"");
    CHECK_EQUAL(model.generate("The rain", {}, options).text.size(), 3U);
    options.grammar = ssd::Grammar::json_schema(R"({"enum": [17]})");
    CHECK_EQUAL(model.generate("The rain", {}, options).text, "17");
}

CASE(a_model_tells_about_itself) {
    const ssd_model_info info = model.info();
    CHECK_EQUAL(info.max_len, 160);
    CHECK_EQUAL(info.max_batch, 3);
    CHECK_EQUAL(info.has_draft, 1);
    CHECK_EQUAL(info.has_chat_template, 1);
    CHECK(model.mode() == "ssd" || !model.note().empty());  // not on one core
    CHECK(model.path().find(bundle) != std::string::npos);
    CHECK_EQUAL(model.json().front(), '{');
    CHECK(!model.eos_token_ids().empty());
    const std::vector<ssd::Message> messages{{"system", "Be brief."}, {"user", "Why?"}};
    const std::vector<std::int32_t> ids = model.encode_chat(messages);
    CHECK(ids.size() > model.encode("Why?").size());
    const ssd::Completion answer = model.chat(messages, {}, up_to(5));
    CHECK(answer.token_ids == model.generate(ids, {}, up_to(5)).token_ids);
    CHECK_EQUAL(answer.statistics.prompt_tokens, static_cast<std::int64_t>(ids.size()));
    CHECK(ssd_version() == ssd::version());
}

}  // namespace
