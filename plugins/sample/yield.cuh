// What a row of draft logits yields, from the list of its best ids: the candidates for the bonus
// token, and under the ratio rule the draft's law and a token drawn from it.

#pragma once

#include "plugins/noise/noise.cuh"
#include "plugins/sample/args.cuh"
#include "plugins/sample/top_list.cuh"

namespace ssd {

// As `Status` in plugins/verify/sampled.py.
enum class Status : i32 { kDone = 0, kDamaged = 1, kUnscanned = 3 };

constexpr int kMaxSupport = 128;

struct Weights {
    double weight[kMaxSupport], cumulative[kMaxSupport];
};

template <class Ctx>
SSD_DEVICE int target_at(const SampleArgs& args, const TopList<Ctx>& list, int rank) {
    const int id = id_of(list[rank]);
    return args.ids_map ? args.ids_map[id] : id;
}

// The best ids but for the excluded one.
template <class Ctx>
SSD_DEVICE void write_candidates(Ctx& ctx, const SampleArgs& args, int number,
                                 const TopList<Ctx>& list, int count) {
    const i64 excluded = args.exclude ? args.exclude[number] : -1;
    i32 left_out = count;
    for (int i = ctx.thread_index(); i < count; i += ctx.num_threads())
        if (target_at(args, list, i) == excluded) left_out = i;
    left_out = ctx.min(left_out);
    i64* const candidates = args.candidates + i64(number) * args.num_candidates;
    for (int i = ctx.thread_index(); i < args.num_candidates; i += ctx.num_threads()) {
        const int rank = i < left_out ? i : i + 1;
        candidates[i] = rank < count ? target_at(args, list, rank) : -1;
    }
}

// exp((l - peak) / T) of the first `count` ids; returns how many of them can be drawn.
template <class Ctx>
SSD_DEVICE int weigh(Ctx& ctx, float temperature, const TopList<Ctx>& list, int count,
                     Weights& weights) {
    const bool is_greedy = temperature == 0;
    if (is_greedy && count > 1) count = 1;
    i32 num_drawable = 0;
    for (int i = ctx.thread_index(); i < count; i += ctx.num_threads()) {
        const double below = double(value_of(list[i])) - double(value_of(list[0]));
        weights.weight[i] = is_greedy ? 1 : exp(below / double(temperature));
        num_drawable += is_kept(list[i]) && weights.weight[i] > 0;
    }
    return ctx.sum(num_drawable);
}

// Saguaro: the first ids keep a share of their weight. Returns the first that still has any.
template <class Ctx>
SSD_DEVICE int reshape(Ctx& ctx, const SampleArgs& args, int sequence, int size, Weights& weights) {
    const int top = args.shape_top ? args.shape_top[sequence] : 0;
    if (top <= 0 || top >= size) return 0;
    const double scale = args.shape_scale[sequence];
    for (int i = ctx.thread_index(); i < top; i += ctx.num_threads()) weights.weight[i] *= scale;
    ctx.sync();
    return scale == 0 ? top : 0;
}

// Draws from the likeliest ids that no cut removed, and writes the law that was drawn from.
template <class T, class Ctx>
SSD_DEVICE void draw(Ctx& ctx, const SampleArgs& args, int number, const Row<T>& row,
                     const TopList<Ctx>& list, int count) {
    auto& weights = ctx.template shared<Weights>();
    const int most = count < args.max_support ? count : args.max_support;
    const int size = weigh(ctx, row.temperature, list, most, weights);
    const int begin = reshape(ctx, args, row.sequence, size, weights);
    if (ctx.thread_index() == 0) {
        // One after the other: the sums then never fall, so no id of weight 0 is drawn.
        double sum = 0;
        for (int i = begin; i < size; ++i) weights.cumulative[i] = sum += weights.weight[i];
        if (size == 0) args.sample[number] = 0;
    }
    ctx.sync();
    i32* const ids = args.q_ids + i64(number) * args.max_support;
    double* const probs = args.q_probs + i64(number) * args.max_support;
    const double total = size > 0 ? weights.cumulative[size - 1] : 0;
    const u64 seed = row.is_greedy() ? 0 : args.scan.law.seed[row.sequence];
    const double drawn = total * uniform53(seed, row.position, Purpose::kDraft);
    for (int i = ctx.thread_index(); i < args.max_support; i += ctx.num_threads()) {
        const int rank = begin + i;
        const bool is_used = rank < size;
        ids[i] = is_used ? target_at(args, list, rank) : -1;
        probs[i] = is_used ? weights.weight[rank] / total : 0;
        if (is_used && weights.cumulative[rank] > drawn &&
            (i == 0 || weights.cumulative[rank - 1] <= drawn))
            args.sample[number] = ids[i];
    }
}

}  // namespace ssd
