// The coupled rule: the target's token is argmax over what stays of l + T * g, and a drafted token
// stands iff it equals it.
//
// Noise is dear: 26 instructions an id for its bits, and 55 for its two logarithms. It is
// bounded, so eight ids whose largest logit cannot reach a score that another id has need no
// bits. Those that may wait in a queue, which the threads of the block empty together: without it
// a warp would draw the noise of all its threads' ids as soon as one of them needs its own. And
// of the ids whose bits were drawn, only those need the logarithms whose uniform is close enough
// to 1.

#pragma once

#include "plugins/verify/verdict.cuh"

namespace ssd {

constexpr float kMaxScale = 1e30f;  // beyond this temperature the law is uniform to float32
constexpr int kMaxThreads = 256;

// The first ids of groups of eight.
struct Queue {
    i32 first[2 * kMaxThreads];
};

template <class T>
struct Scorer {
    const Row<T>& row;
    Cutter cutter;
    float temperature;
    u64 seed, position;

    // Bounds of the score of any id with this logit. (Products and sums round monotonously.)
    SSD_DEVICE float most(float logit) const { return logit + temperature * kLargestGumbel; }
    SSD_DEVICE float least(float logit) const { return logit + temperature * kLeastGumbel; }

    SSD_DEVICE Best of_id(Best best, float logit, int id) const {
        if (!(most(logit) >= best.score)) return best;
        return better(best, {logit + temperature * gumbel_of(seed, position, id), id});
    }

    // The largest 1 - u with which a logit may reach the score `bar`, and a little more: the noise
    // is at least t only where 1 - u <= 1 - exp(-exp(-t)) < exp(-t).
    SSD_DEVICE float reach(float logit, float bar) const {
        const float rounding = 1e-6f * (fabsf(bar) + fabsf(logit));
        return 1.01f * exp_f32((logit - bar + rounding) / temperature);
    }

    // `bar` is a score that some id reaches.
    SSD_DEVICE Best of_group(Best best, float bar, const float* logits, int first) const {
        float largest = -infinity();
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i)
            if (cutter.fate_of(logits[i]) == Fate::kStays)
                largest = logits[i] > largest ? logits[i] : largest;
        const float farthest = reach(largest, best.score > bar ? best.score : bar);
        const PhiloxBlock block = philox(seed, position, Purpose::kToken, u64(first / kGroup));
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i) {
            const u32 bits = bits_of(block, i);
            if (1.0f - uniform24(bits) > farthest) continue;
            if (cutter.fate_of(logits[i]) == Fate::kStays)
                best = better(best, {logits[i] + temperature * gumbel_of_bits(bits), first + i});
        }
        return best;
    }
};

template <class T>
SSD_DEVICE Scorer<T> scorer_of(const Row<T>& row, const Cutter& cutter) {
    if (row.is_greedy()) return {row, cutter, 0, 0, 0};
    const float scale = row.temperature < kMaxScale ? row.temperature : kMaxScale;
    return {row, cutter, scale, row.law->seed[row.sequence], row.position};
}

// The best id of a slice that surely stays; ids whose fate is open are collected.
template <class T, class Ctx>
SSD_DEVICE Partial best_of_slice(Ctx& ctx, const Scorer<T>& scorer, Range slice,
                                 const OpenIds& open) {
    const Row<T>& row = scorer.row;
    auto& queue = ctx.template shared<Queue>();
    auto& edits = ctx.template shared<EditMap>();
    const int tile = kGroup * ctx.num_threads();
    row.mark_edits(ctx, edits, slice);

    Best best = no_best();
    float bar = -infinity();  // a score that an id of the block reaches
    bool is_damaged = false;
    int waiting = 0;
    for (int begin = slice.begin; begin < slice.end; begin += tile) {
        const int first = begin + kGroup * ctx.thread_index();
        float values[kGroup];
        float largest = -infinity();
        if (first < slice.end) {
            row.load_group(edits, slice, first, values);
            for (int i = 0; i < kGroup; ++i) {
                is_damaged |= values[i] != values[i];
                const Fate fate = scorer.cutter.fate_of(values[i]);
                if (fate == Fate::kOpen) open.collect(ctx, values[i], first + i);
                if (fate != Fate::kStays) continue;
                largest = values[i] > largest ? values[i] : largest;
                if (row.is_greedy()) best = better(best, {values[i], first + i});
            }
        }
        if (row.is_greedy()) continue;

        if (begin == slice.begin) bar = scorer.least(ctx.max(largest));
        const bool may_win = largest > -infinity() && scorer.most(largest) >= bar;
        int added;
        const int slot = waiting + ctx.exclusive_scan(int(may_win), &added);
        if (may_win) queue.first[slot] = first;
        waiting += added;
        if (waiting <= ctx.num_threads() && begin + tile < slice.end) continue;
        ctx.sync();
        for (int i = ctx.thread_index(); i < waiting; i += ctx.num_threads()) {
            row.load_group(edits, slice, queue.first[i], values);
            best = scorer.of_group(best, bar, values, queue.first[i]);
        }
        waiting = 0;
        const float reached = ctx.max(best.score);
        bar = reached > bar ? reached : bar;
    }
    return {ctx.arg_max(best), ctx.any(is_damaged)};
}

// The row's token from what its blocks left, and the end of its sequence.
template <class T, class Ctx>
SSD_CALLED void finish_coupled(Ctx& ctx, const VerifyArgs& args, int number) {
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    const Bracketed known = bracketed(args, row, number);
    Judged judged = {};
    judged.status = known.status;
    if (judged.status == Status::kDone) {
        const Partial partial = best_of_slices(ctx, args, number);
        Best best = partial.best;
        if (known.bracket.num_between > 0) {
            const OpenIds open = open_ids(scanned_of(args.scan), number, known.bracket);
            const Cutter cutter = cutter_of(row, &known.bracket);
            const Scorer<T> scorer = scorer_of(row, cutter);
            const u64 cut = settle_cut(ctx, row, known.bracket, open);
            open.for_each(ctx, row, cutter, [&](u64 rank) {
                if (rank <= cut) best = scorer.of_id(best, logit_of_rank(rank), id_of_rank(rank));
            });
            best = ctx.arg_max(best);
        }
        judged.token = best.id;
        if (partial.is_damaged || !is_finite(best.score)) judged.status = Status::kDamaged;
    }
    judged.accepts = judged.status == Status::kDone && row.place < row.num_draft &&
                     row.drafts[row.place] == judged.token;
    conclude(ctx, args, row, judged, [&](int stop) { return args.judged[stop].token; });
}

template <class T, class Ctx>
SSD_DEVICE void verify_coupled(Ctx& ctx, const VerifyArgs& args) {
    const int number = ctx.block_index() / args.scan.num_slices;
    const int part = ctx.block_index() % args.scan.num_slices;
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    if (!row.is_live()) return;

    const Bracketed known = bracketed(args, row, number);
    Partial partial = {no_best(), 0};
    if (known.status == Status::kDone) {
        const Scorer<T> scorer = scorer_of(row, cutter_of(row, &known.bracket));
        const OpenIds open = open_ids(scanned_of(args.scan), number, known.bracket);
        partial = best_of_slice(
            ctx, scorer, slice_of(ctx, row.vocab_size, part, args.scan.num_slices), open);
    }
    if (ctx.thread_index() == 0) args.partials[i64(number) * args.scan.num_slices + part] = partial;
    if (ctx.arrive_last(args.scan.tickets + number, args.scan.num_slices))
        finish_coupled<T>(ctx, args, number);
}

}  // namespace ssd
