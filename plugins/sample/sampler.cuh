// Drafting a token with a temperature, as plugins/sample/sampled.py means it: one launch for all
// rows of a batch of draft logits.
//
// A row is read by S blocks. Each makes a list of its best ids. The last to finish makes one more,
// of those ids whose fate was open (plugins/law/cut.cuh), joins the lists, and writes what the row
// yields.

#pragma once

#include "plugins/sample/yield.cuh"

namespace ssd {

// Whether the first pass has found a row's cut; a row that does not truncate needs none.
template <class T>
SSD_DEVICE Status scanned_status(const SampleArgs& args, const Row<T>& row, int number) {
    if (!row.truncates()) return Status::kDone;
    if (args.scan.brackets == nullptr) return Status::kUnscanned;
    return args.scan.brackets[number].is_damaged ? Status::kDamaged : Status::kDone;
}

template <class T>
SSD_DEVICE Bracket bracket_of_row(const SampleArgs& args, const Row<T>& row, int number) {
    Bracket bracket = {};
    if (row.truncates()) bracket = args.scan.brackets[number];
    return bracket;
}

// The bits of eight target ids, as if they shared a block; of those in `wanted`.
SSD_CALLED PhiloxBlock mapped_bits(u64 seed, u64 position, const i32* ids, u32 wanted) {
    PhiloxBlock mapped = {};
    for (int i = 0; i < kGroup; ++i) {
        if (!(wanted >> i & 1u)) continue;
        const PhiloxBlock block =
            philox(seed, position, Purpose::kToken, u64(ids[i] / kIdsPerBlock));
        mapped.words[i / 2] |= u64(bits_of(block, ids[i] % kIdsPerBlock)) << (i % 2 * 32);
    }
    return mapped;
}

// What the ids of a row are ranked by.
struct Scorer {
    const i32* ids_map;
    bool is_perturbed;  // by noise: under the coupled rule, at a temperature
    float scale;        // of the noise
    u64 seed, position;

    SSD_DEVICE int target(int id) const { return ids_map ? ids_map[id] : id; }

    SSD_DEVICE u64 key(bool is_kept, float logit, int id) const {
        const bool has_noise = is_kept && is_perturbed;
        const float noise = has_noise ? gumbel_of(seed, position, target(id)) : 0;
        return list_key(is_kept, has_noise ? logit + scale * noise : logit, id);
    }

    // Keys between which that of an id lies. (Products and sums round monotonously.)
    SSD_DEVICE u64 best_key(bool is_kept, float logit, int id) const {
        const bool has_noise = is_kept && is_perturbed;
        return list_key(is_kept, has_noise ? logit + scale * kLargestGumbel : logit, id);
    }
    SSD_DEVICE u64 worst_key(bool is_kept, float logit, int id) const {
        const bool has_noise = is_kept && is_perturbed;
        return list_key(is_kept, has_noise ? logit + scale * kLeastGumbel : logit, id);
    }

    // Adds their noise to the values of the ids first .. first + 7 whose bit is set. Returns the
    // bits of those whose key may lie below `bound`; the others are left without noise, which costs
    // far more than all else: 26 instructions an id for its bits, 55 for its two logarithms.
    SSD_DEVICE u32 perturb(int first, u32 offered, u64 bound, float* values) const {
        float largest = -infinity();
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i) {
            if (!(offered >> i & 1u)) continue;
            if (best_key(true, values[i], first + i) >= bound) offered &= ~(1u << i);
            else if (values[i] > largest) largest = values[i];
        }
        if (offered == 0) return 0;
        const float farthest = is_kept(bound) ? reach(largest, value_of(bound)) : 1;
        PhiloxBlock block;
        if (ids_map)
            block = mapped_bits(seed, position, ids_map + first, offered);
        else
            block = philox(seed, position, Purpose::kToken, u64(first / kIdsPerBlock));
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i) {
            if (!(offered >> i & 1u)) continue;
            const u32 bits = bits_of(block, i);
            if (1.0f - uniform24(bits) > farthest)
                offered &= ~(1u << i);
            else
                values[i] = values[i] + scale * gumbel_of_bits(bits);
        }
        return offered;
    }

   private:
    // The largest 1 - u with which a logit may reach the value `bar`, and a little more: the noise
    // is at least t only where 1 - u <= 1 - exp(-exp(-t)) < exp(-t).
    SSD_DEVICE float reach(float logit, float bar) const {
        const float rounding = 1e-6f * (fabsf(bar) + fabsf(logit));
        return 1.01f * exp_f32((logit - bar + rounding) / scale);
    }
};

template <class T>
SSD_DEVICE Scorer scorer_of(const SampleArgs& args, const Row<T>& row) {
    constexpr float kMaxScale = 1e30f;  // beyond this temperature the law is uniform to float32
    const bool is_perturbed = args.max_support == 0 && !row.is_greedy();
    if (!is_perturbed) return {args.ids_map, false, 0, 0, 0};
    const float scale = row.temperature < kMaxScale ? row.temperature : kMaxScale;
    const u64 seed = args.scan.law.seed[row.sequence];
    return {args.ids_map, true, scale, seed, row.position};
}

// Where the lists of a row are: one a slice, and that of the ids whose fate was open.
SSD_DEVICE u64* lists_of_row(const SampleArgs& args, int number) {
    return args.lists + i64(number) * (args.scan.num_slices + 1) * args.list_size;
}

template <class Ctx>
SSD_DEVICE void keep(Ctx& ctx, const SampleArgs& args, int number, int which, TopList<Ctx>& list) {
    const int count = list.settle();
    u64* const own = lists_of_row(args, number) + i64(which) * args.list_size;
    for (int i = ctx.thread_index(); i < args.list_size; i += ctx.num_threads())
        own[i] = i < count ? list[i] : kNoKey;
}

// key_of(i) for each i below `count`.
template <class Ctx, class KeyOf>
SSD_DEVICE void offer_all(Ctx& ctx, TopList<Ctx>& list, int count, KeyOf key_of) {
    const int num_threads = ctx.num_threads(), thread = ctx.thread_index();
    for (int begin = 0; begin < count; begin += kOfferedAtOnce * num_threads) {
        u32 offered = 0;
        for (int i = 0; i < kOfferedAtOnce; ++i)
            offered |= u32(begin + i * num_threads + thread < count) << i;
        list.offer(offered, [&](int i) { return key_of(begin + i * num_threads + thread); });
    }
}

// The best ids of a slice, but for those whose fate is open: they are collected.
template <class T, class Ctx>
SSD_DEVICE void rank_slice(Ctx& ctx, const SampleArgs& args, const Row<T>& row, int number,
                           Range slice, TopList<Ctx>& list) {
    const Bracket bracket = bracket_of_row(args, row, number);
    const OpenIds open = open_ids(scanned_of(args.scan), number, bracket);
    const Cutter cutter = cutter_of(row, &bracket);
    const Scorer scorer = scorer_of(args, row);

    auto& edits = ctx.template shared<EditMap>();
    row.mark_edits(ctx, edits, slice);
    const int tile = kGroup * ctx.num_threads();
    for (int begin = slice.begin; begin < slice.end; begin += tile) {
        const int first = begin + kGroup * ctx.thread_index();
        const bool is_first = begin == slice.begin;
        float values[kGroup] = {};
        u32 offered = 0, kept = 0;  // a bit for each of the eight ids
        if (first < slice.end) row.load_group(edits, slice, first, values);
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i) {
            if (first + i >= slice.end) continue;
            const Fate fate = cutter.fate_of(values[i]);
            if (fate == Fate::kOpen) {
                open.collect(ctx, values[i], first + i);
                continue;
            }
            offered |= 1u << i;
            kept |= u32(fate == Fate::kStays || values[i] != values[i]) << i;
        }
        if (is_first) {
            u64 promised = kNoKey;
            SSD_UNROLL
            for (int i = 0; i < kGroup; ++i) {
                if (!(offered >> i & 1u)) continue;
                const u64 key = scorer.worst_key(kept >> i & 1u, values[i], first + i);
                promised = key < promised ? key : promised;
            }
            list.promise(promised);
        }
        if (scorer.is_perturbed) {
            u32 noisy = offered & kept;
            SSD_UNROLL
            for (int i = 0; i < kGroup; ++i)
                if (values[i] != values[i]) noisy &= ~(1u << i);  // goes onto the list as it is
            offered = (offered & ~noisy) | scorer.perturb(first, noisy, list.bound(), values);
        }
        list.offer(
            offered, [&](int i) { return list_key(kept >> i & 1u, values[i], first + i); },
            is_first);
    }
}

// The best of the ids whose fate was open, for the block that knows them all. Where they are too
// many to collect (equal logits, as a rule) it reads the row again.
template <class T, class Ctx>
SSD_CALLED void rank_open(Ctx& ctx, const SampleArgs& args, int number) {
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    const Bracket bracket = args.scan.brackets[number];
    const OpenIds open = open_ids(scanned_of(args.scan), number, bracket);
    const Cutter cutter = cutter_of(row, &bracket);
    const Scorer scorer = scorer_of(args, row);
    const u64 cut = settle_cut(ctx, row, bracket, open);
    auto key_of = [&](u64 rank) {
        return scorer.key(rank <= cut, logit_of_rank(rank), id_of_rank(rank));
    };

    TopList<Ctx> list(ctx, args.list_size);
    if (open.is_collected) {
        offer_all(ctx, list, int(bracket.num_between),
                  [&](int i) { return key_of(open.ranks[i]); });
    } else {
        offer_all(ctx, list, row.vocab_size, [&](int id) {
            const float logit = row.value(id);
            return cutter.fate_of(logit) == Fate::kOpen ? key_of(rank_of(logit, id)) : kNoKey;
        });
    }
    keep(ctx, args, number, args.scan.num_slices, list);
}

// What a row yields, for the last of its blocks, from the first `num_lists` of its lists.
template <class Ctx>
SSD_CALLED void finish_row(Ctx& ctx, const SampleArgs& args, int number, int num_lists) {
    // No logits are read, so their type does not matter.
    const auto row = row_at<float>(args.scan.rows, args.scan.law, number);
    const u64* const lists = lists_of_row(args, number);
    TopList<Ctx> list(ctx, args.list_size);
    offer_all(ctx, list, num_lists * args.list_size, [&](int i) { return lists[i]; });
    int count = list.settle();

    Status status = scanned_status(args, row, number);
    const float best = count > 0 ? value_of(list[0]) : -infinity();
    if (status == Status::kDone && !(fabsf(best) < infinity())) status = Status::kDamaged;
    if (status != Status::kDone) count = 0;
    if (ctx.thread_index() == 0) args.status[number] = i32(status);
    write_candidates(ctx, args, number, list, count);
    if (args.max_support > 0) {
        // The law's passes make no cut among weights below 2**-64 of the largest.
        const int most = row.top_k > 0 && row.top_k < count ? row.top_k : count;
        draw(ctx, args, number, row, list, most);
    } else if (ctx.thread_index() == 0) {
        // An id outside the vocabulary would reach the next call before a host has seen the status.
        args.sample[number] = count > 0 ? target_at(args, list, 0) : 0;
    }
}

template <class T, class Ctx>
SSD_DEVICE void sample(Ctx& ctx, const SampleArgs& args) {
    const int number = ctx.block_index() / args.scan.num_slices;
    const int part = ctx.block_index() % args.scan.num_slices;
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    const bool is_law = scanned_status(args, row, number) == Status::kDone;
    TopList<Ctx> list(ctx, args.list_size);
    if (is_law)
        rank_slice(ctx, args, row, number,
                   slice_of(ctx, row.vocab_size, part, args.scan.num_slices), list);
    keep(ctx, args, number, part, list);
    if (!ctx.arrive_last(args.scan.tickets + number, args.scan.num_slices)) return;
    const bool has_open = is_law && bracket_of_row(args, row, number).num_between > 0;
    if (has_open) rank_open<T>(ctx, args, number);
    finish_row(ctx, args, number, args.scan.num_slices + (has_open ? 1 : 0));
}

// The law's first pass, for batches in which a row truncates.
template <class T, class Ctx>
SSD_DEVICE void find_sample_brackets(Ctx& ctx, const SampleArgs& args) {
    find_brackets<T>(ctx, args.scan);
}

}  // namespace ssd
