// The second pass over a row that truncates: the cut itself.
//
// The pass classifies each logit by the row's `Bracket`, and collects the open ones. When the row
// is read, its last block narrows these down, in histograms over their ranks that grow finer
// until the cut's bin holds a single id. Where more are open than are collected (many equal
// logits, as a rule), that block reads the row again for each histogram, alone.

#pragma once

#include "plugins/law/bracket.cuh"

namespace ssd {

constexpr int kMaxCollected = 2048;
constexpr int kIdBits = 20;
static_assert(kMaxVocab == 1 << kIdBits);

// Ids in the order of the ranking: the larger logit first, of equal ones the lower id.
SSD_DEVICE u64 rank_of(float logit, int id) {
    return u64(~order_key(logit + 0.0f)) << kIdBits | u32(id);  // + 0: -0 equals 0
}

SSD_DEVICE float logit_of_rank(u64 rank) { return from_order_key(~u32(rank >> kIdBits)); }
SSD_DEVICE int id_of_rank(u64 rank) { return int(rank & (kMaxVocab - 1)); }

// The last rank that stays is a row's cut.
constexpr u64 kKeepsAll = ~u64(0);

enum class Fate { kStays, kOpen, kGone };

struct Cutter {
    float certain, possible, floor;

    SSD_DEVICE Fate fate_of(float logit) const {
        if (logit >= certain) return logit >= floor ? Fate::kStays : Fate::kGone;
        return logit >= possible ? Fate::kOpen : Fate::kGone;
    }
};

template <class T>
SSD_DEVICE Cutter cutter_of(const Row<T>& row, const Bracket* bracket) {
    if (!row.truncates()) return {-infinity(), -infinity(), -infinity()};
    return {bracket->certain, bracket->possible, bracket->floor};
}

// Where the open ids of a row are: collected, or anywhere in the row.
struct OpenIds {
    u64* ranks;           // [kMaxCollected]
    u32* num_collected;
    bool is_collected;    // they all fit

    template <class Ctx>
    SSD_DEVICE void collect(Ctx& ctx, float logit, int id) const {
        if (!is_collected) return;
        const u32 slot = ctx.atomic_add(num_collected, 1u);
        if (slot < u32(kMaxCollected)) ranks[slot] = rank_of(logit, id);
    }

    // visit(rank) for each open id, shared out over the block's threads, in no order.
    template <class T, class Ctx, class Visit>
    SSD_DEVICE void for_each(Ctx& ctx, const Row<T>& row, const Cutter& cutter, Visit visit) const {
        if (is_collected) {
            const int count = int(*num_collected);
            for (int i = ctx.thread_index(); i < count; i += ctx.num_threads()) visit(ranks[i]);
            return;
        }
        for (int id = ctx.thread_index(); id < row.vocab_size; id += ctx.num_threads()) {
            const float logit = row.value(id);
            if (cutter.fate_of(logit) == Fate::kOpen) visit(rank_of(logit, id));
        }
    }
};

// What a second pass has of the first one, for all rows.
struct Scanned {
    const Bracket* brackets;
    u64* open_ranks;
    u32* num_collected;
};

SSD_DEVICE Scanned scanned_of(const LawArgs& args) {
    return {args.brackets, args.open_ranks, args.num_collected};
}

SSD_DEVICE OpenIds open_ids(const Scanned& scanned, i64 number, const Bracket& bracket) {
    return {scanned.open_ranks + number * kMaxCollected, scanned.num_collected + number,
            bracket.num_between <= u32(kMaxCollected)};
}

struct Narrowed {
    u64 cut;   // the ids up to this rank reach the target, and no fewer do
    u64 mass;  // of these ids
};

// Where the count or mass of the ids, in the order of their ranks, reaches `target`.
template <class T, class Ctx>
SSD_CALLED Narrowed narrow(Ctx& ctx, const Row<T>& row, const Bracket& bracket,
                           const OpenIds& open, Measure measure, u64 target) {
    auto& bins = ctx.template shared<RowBins>();
    const Scale scale = scale_of(row.temperature);
    const Cutter cutter = cutter_of(row, &bracket);
    u64 low = rank_of(bracket.certain, 0), high = rank_of(bracket.possible, kMaxVocab - 1);
    u64 count = bracket.count_above, mass = bracket.mass_above;
    for (;;) {
        int shift = 0;
        while ((high - low) >> shift >= kBins) ++shift;
        for (int i = ctx.thread_index(); i < kBins; i += ctx.num_threads()) {
            bins.count[i] = 0;
            bins.mass[i] = 0;
        }
        ctx.sync();
        open.for_each(ctx, row, cutter, [&](u64 rank) {
            if (rank < low || rank > high) return;
            const int bin = int((rank - low) >> shift);
            const Exponent exponent = exponent_of(logit_of_rank(rank), scale);
            ctx.atomic_add(&bins.count[bin], 1u);
            ctx.atomic_add(&bins.mass[bin], mass_of(exponent, bracket.top));
        });
        ctx.sync();
        const u64 before = measure == Measure::kCount ? count : mass;
        const Crossing found =
            find_crossing(ctx, measure, target > before ? target - before : 1,
                          [&](int bin) { return Bin{bins.count[bin], bins.mass[bin]}; });
        const u64 begin = low + (u64(found.bin) << shift);
        const u64 end = begin + ((u64(1) << shift) - 1);
        low = begin;
        high = end < high ? end : high;
        if (found.count_in <= 1 || shift == 0) return {high, mass + found.mass_through()};
        count += found.count_before;
        mass += found.mass_before;
    }
}

// The row's cut, when all open ids are collected. Called by all threads of one block.
template <class T, class Ctx>
SSD_DEVICE u64 settle_cut(Ctx& ctx, const Row<T>& row, const Bracket& bracket,
                          const OpenIds& open) {
    u64 cut = kKeepsAll, total = bracket.total_mass;
    if (bracket.cuts_by_count) {
        const Narrowed top = narrow(ctx, row, bracket, open, Measure::kCount, u64(row.top_k));
        cut = top.cut;
        total = top.mass;
    }
    if (row.top_p < 1) {
        const u64 kept = mass_to_keep(row.top_p, total);
        const u64 nucleus = narrow(ctx, row, bracket, open, Measure::kMass, kept).cut;
        cut = nucleus < cut ? nucleus : cut;
    }
    if (row.min_p > 0) {
        const u64 likely = rank_of(bracket.floor, kMaxVocab - 1);
        cut = likely < cut ? likely : cut;
    }
    return cut;
}

template <class T, class Ctx>
SSD_CALLED void settle_row(Ctx& ctx, const LawArgs& args, int number) {
    const Bracket bracket = args.brackets[number];
    const Row<T> row = row_at<T>(args.rows, args.law, number);
    const u64 cut = settle_cut(ctx, row, bracket, open_ids(scanned_of(args), number, bracket));
    if (ctx.thread_index() == 0) {
        args.cuts[number] = cut;
        args.peaks[number] = bracket.peak;
    }
}

template <class T, class Ctx>
SSD_DEVICE void find_cuts(Ctx& ctx, const LawArgs& args) {
    const int number = ctx.block_index() / args.num_slices;
    const int part = ctx.block_index() % args.num_slices;
    const auto row = row_at<T>(args.rows, args.law, number);
    if (!row.is_live()) return;
    const Bracket bracket = args.brackets[number];
    if (!row.truncates() || bracket.is_damaged) {
        if (part == 0 && ctx.thread_index() == 0) {
            args.cuts[number] = kKeepsAll;
            args.peaks[number] = bit_cast<float>(0x7FC00000u);
        }
        return;
    }
    const auto open = open_ids(scanned_of(args), number, bracket);
    const auto cutter = cutter_of(row, &bracket);
    if (open.is_collected && bracket.num_between > 0) {
        auto& edits = ctx.template shared<EditMap>();
        const auto slice = slice_of(ctx, row.vocab_size, part, args.num_slices);
        row.mark_edits(ctx, edits, slice);
        for (int first = slice.begin + kGroup * ctx.thread_index(); first < slice.end;
             first += kGroup * ctx.num_threads()) {
            float values[kGroup];
            row.load_group(edits, slice, first, values);
            for (int i = 0; i < kGroup; ++i)
                if (cutter.fate_of(values[i]) == Fate::kOpen)
                    open.collect(ctx, values[i], first + i);
        }
    }
    if (ctx.arrive_last(args.tickets + number, args.num_slices)) settle_row<T>(ctx, args, number);
}

}  // namespace ssd
