// The first pass over a row that truncates: two logits between which its cut lies.
//
// Each block counts and weighs the ids of its slice in bins of an eighth of an octave of exp(l /
// T). The bins are absolute, and a circle of them covers the 64 octaves below the largest weight
// so far; 2**-64 of the peak's weight is out of reach of the noise, and of a mass that float32
// can name. The last block of a row adds the slices up and finds the bins where top_k and top_p
// cut.

#pragma once

#include "plugins/law/bins.cuh"
#include "plugins/law/row.cuh"
#include "plugins/law/weight.cuh"

namespace ssd {

constexpr int kOctaves = 64;
constexpr int kPerOctave = kBins / kOctaves;

// What the first pass leaves of a row. Of its adjusted logits
//     l >= certain  stay, if l >= floor
//     l >= possible and below certain: the cut lies among these, `num_between` of them
//     the others    are cut
struct Bracket {
    u64 mass_above, total_mass;  // of l >= certain, and of all, in units of `scaled_mass`
    i64 top;                     // the octave of the peak
    float peak, certain, possible, floor;
    u32 count_above, num_between;
    u32 cuts_by_count;           // whether top_k cuts within the bins
    u32 is_damaged;
};
static_assert(sizeof(Bracket) == 56);  // known to plugins/law/kernel.py, as the next

// Of one slice. Its bins stand beside it, in a circle: see `slot_of`.
struct SliceBins {
    i64 top;
    float peak;
    u32 is_damaged;
};
static_assert(sizeof(SliceBins) == 16);

// Of both passes; each reads and writes what it needs.
struct LawArgs {
    LogitRows rows;
    LawParams law;
    Bracket* brackets;    // [B * R]
    u32* num_collected;   // [B * R], set to 0 by the first pass
    SliceBins* slices;    // [B * R, S], of the first pass
    u32* counts;          // [B * R, S, 512], of the first pass
    u64* masses;          // [B * R, S, 512], of the first pass
    u64* open_ranks;      // [B * R, 2048], of the second pass
    u32* tickets;         // [B * R], zero before the first launch
    u64* cuts;            // [B * R], the last rank that stays: see `rank_of`
    float* peaks;         // [B * R], the largest logit; NaN of a row that nothing cuts
    int num_slices;       // S
};

SSD_DEVICE int eighth_of(float fraction) {
    const int eighth = int(fraction * kPerOctave);
    return eighth < kPerOctave ? eighth : kPerOctave - 1;
}

SSD_DEVICE int slot_of(i64 octave, int eighth) {
    return int(octave & (kOctaves - 1)) * kPerOctave + eighth;
}

// The bin of a weight, counted from the top one of the octave `top`; kBins where it is too small.
SSD_DEVICE int bin_below(i64 top, Exponent exponent) {
    const i64 octaves = top - exponent.octave;
    if (octaves >= kOctaves) return kBins;
    return int(octaves) * kPerOctave + kPerOctave - 1 - eighth_of(exponent.fraction);
}

// The least float whose weight lies in bin `last` or above; the next above the peak for no bin.
SSD_CALLED float lowest_within(i64 top, float peak, int last, Scale scale) {
    if (last < 0) return from_order_key(order_key(peak + 0.0f) + 1);  // + 0: -0 equals 0
    u32 low = order_key(-infinity()), high = order_key(infinity());  // above low, at most high
    while (high - low > 1) {
        const u32 middle = low + (high - low) / 2;
        const Exponent exponent = exponent_of(from_order_key(middle), scale);
        if (exponent.octave > top || bin_below(top, exponent) <= last)
            high = middle;
        else
            low = middle;
    }
    return from_order_key(high);
}

struct BlockBins {
    u32 count[kBins];
    u32 mass_low[kBins], mass_high[kBins];  // shared memory adds 32 bits in one step
};

struct RowBins {
    u32 count[kBins];
    u64 mass[kBins];
};

// Makes room for the octaves in (top, raised]: each takes the slots of one that falls off the
// circle.
template <class Ctx>
SSD_DEVICE void raise_top(Ctx& ctx, BlockBins& bins, i64 top, i64 raised) {
    for (int slot = ctx.thread_index(); slot < kBins; slot += ctx.num_threads()) {
        const i64 octave = raised - ((raised - slot / kPerOctave) & (kOctaves - 1));
        if (octave <= top) continue;
        bins.count[slot] = 0;
        bins.mass_low[slot] = 0;
        bins.mass_high[slot] = 0;
    }
    ctx.sync();
}

template <class Ctx>
SSD_DEVICE void add_to_bins(Ctx& ctx, BlockBins& bins, Exponent exponent) {
    const int slot = slot_of(exponent.octave, eighth_of(exponent.fraction));
    const u32 mass = significand_of(exponent.fraction);
    ctx.atomic_add(&bins.count[slot], 1u);
    const u32 old = ctx.atomic_add(&bins.mass_low[slot], mass);
    if (old + mass < old) ctx.atomic_add(&bins.mass_high[slot], 1u);
}

template <class T, class Ctx>
SSD_DEVICE SliceBins bin_slice(Ctx& ctx, const Row<T>& row, Range slice, BlockBins& bins) {
    auto& edits = ctx.template shared<EditMap>();
    const Scale scale = scale_of(row.temperature);
    const int tile = kGroup * ctx.num_threads();
    row.mark_edits(ctx, edits, slice);

    i64 top = kNoOctave;
    float peak = -infinity();
    bool is_damaged = false;
    for (int begin = slice.begin; begin < slice.end; begin += tile) {
        const int first = begin + kGroup * ctx.thread_index();
        float values[kGroup];
        float largest = -infinity();
        if (first < slice.end) {
            row.load_group(edits, slice, first, values);
            SSD_UNROLL
            for (int i = 0; i < kGroup; ++i) {
                is_damaged |= values[i] != values[i];
                largest = values[i] > largest ? values[i] : largest;
            }
        }
        peak = largest > peak ? largest : peak;
        const i64 raised = ctx.max(exponent_of(largest, scale).octave);
        if (raised > top) {
            raise_top(ctx, bins, top, raised);
            top = raised;
        }
        if (first >= slice.end || top == kNoOctave || !row.cuts_by_rank()) continue;
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i) {
            const Exponent exponent = exponent_of(values[i], scale);
            if (exponent.octave > top - kOctaves) add_to_bins(ctx, bins, exponent);
        }
    }
    return {top, ctx.max(peak), ctx.any(is_damaged)};
}

// The bins of all slices of a row, from the top one down, with masses in the row's units.
template <class Ctx>
SSD_DEVICE SliceBins add_slices(Ctx& ctx, const LawArgs& args, i64 number, RowBins& sum) {
    const SliceBins* const slices = args.slices + number * args.num_slices;
    SliceBins all = {kNoOctave, -infinity(), 0};
    for (int i = 0; i < args.num_slices; ++i) {
        all.top = slices[i].top > all.top ? slices[i].top : all.top;
        all.peak = slices[i].peak > all.peak ? slices[i].peak : all.peak;
        all.is_damaged |= slices[i].is_damaged;
    }
    for (int bin = ctx.thread_index(); bin < kBins; bin += ctx.num_threads()) {
        const i64 octave = all.top - bin / kPerOctave;
        const int slot = slot_of(octave, kPerOctave - 1 - bin % kPerOctave);
        u32 count = 0;
        u64 mass = 0;
        for (int i = 0; i < args.num_slices; ++i) {
            if (octave > slices[i].top) continue;
            const i64 at = (number * args.num_slices + i) * kBins + slot;
            count += args.counts[at];
            mass += args.masses[at];
        }
        sum.count[bin] = count;
        sum.mass[bin] = scaled_mass(mass, bin / kPerOctave);
    }
    ctx.sync();
    return all;
}

// The mass that top_p keeps of `total`, at least 1.
SSD_DEVICE u64 mass_to_keep(float top_p, u64 total) {
    const u64 mass = u64(ceil(double(top_p) * double(total)));
    return mass > 0 ? mass : 1;
}

// The least logit that min_p keeps.
SSD_DEVICE float min_p_floor(float peak, float temperature, float min_p) {
    return float(double(peak) + double(temperature) * log(double(min_p)));
}

template <class T, class Ctx>
SSD_DEVICE Bracket bracket_of(Ctx& ctx, const Row<T>& row, const SliceBins& all,
                              const RowBins& bins) {
    Bracket bracket = {};
    bracket.top = all.top;
    bracket.peak = all.peak;
    bracket.certain = bracket.possible = bracket.floor = -infinity();
    const bool is_law = all.peak > -infinity() && all.peak < infinity();
    bracket.is_damaged = all.is_damaged || !is_law;
    if (bracket.is_damaged) return bracket;
    if (row.min_p > 0) bracket.floor = min_p_floor(all.peak, row.temperature, row.min_p);
    if (!row.cuts_by_rank()) return bracket;

    u32 own_count = 0;
    u64 own_mass = 0;
    for (int bin = ctx.thread_index(); bin < kBins; bin += ctx.num_threads()) {
        own_count += bins.count[bin];
        own_mass += bins.mass[bin];
    }
    const u32 num_ids = ctx.sum(own_count);
    bracket.total_mass = ctx.sum(own_mass);
    bracket.cuts_by_count = row.top_k > 0 && u32(row.top_k) < num_ids;
    if (!bracket.cuts_by_count && row.top_p >= 1) return bracket;

    auto bin_at = [&](int bin) { return Bin{bins.count[bin], bins.mass[bin]}; };
    Crossing first, last;
    if (bracket.cuts_by_count)
        first = last = find_crossing(ctx, Measure::kCount, u64(row.top_k), bin_at);
    if (row.top_p < 1) {
        // top_p sees what top_k leaves: at least the mass of the bins before top_k's.
        const u64 least = bracket.cuts_by_count ? last.mass_before : bracket.total_mass;
        first = find_crossing(ctx, Measure::kMass, mass_to_keep(row.top_p, least), bin_at);
        if (!bracket.cuts_by_count) last = first;
    }
    const Scale scale = scale_of(row.temperature);
    bracket.certain = lowest_within(all.top, all.peak, first.bin - 1, scale);
    bracket.possible = lowest_within(all.top, all.peak, last.bin, scale);
    bracket.count_above = first.count_before;
    bracket.mass_above = first.mass_before;
    bracket.num_between = last.count_through() - first.count_before;
    return bracket;
}

template <class T, class Ctx>
SSD_CALLED void bracket_row(Ctx& ctx, const LawArgs& args, int number) {
    auto& sum = ctx.template shared<RowBins>();
    const SliceBins all = add_slices(ctx, args, number, sum);
    const Row<T> row = row_at<T>(args.rows, args.law, number);
    const Bracket bracket = bracket_of(ctx, row, all, sum);
    if (ctx.thread_index() == 0) {
        args.brackets[number] = bracket;
        args.num_collected[number] = 0;
    }
}

template <class T, class Ctx>
SSD_DEVICE void find_brackets(Ctx& ctx, const LawArgs& args) {
    const int number = ctx.block_index() / args.num_slices;
    const int part = ctx.block_index() % args.num_slices;
    const Row<T> row = row_at<T>(args.rows, args.law, number);
    if (!row.is_live() || !row.truncates()) return;

    auto& bins = ctx.template shared<BlockBins>();
    const SliceBins slice =
        bin_slice(ctx, row, slice_of(ctx, row.vocab_size, part, args.num_slices), bins);
    const i64 at = i64(number) * args.num_slices + part;
    if (ctx.thread_index() == 0) args.slices[at] = slice;
    for (int i = ctx.thread_index(); i < kBins; i += ctx.num_threads()) {
        args.counts[at * kBins + i] = bins.count[i];
        args.masses[at * kBins + i] = u64(bins.mass_high[i]) << 32 | bins.mass_low[i];
    }
    if (ctx.arrive_last(args.tickets + number, args.num_slices)) bracket_row<T>(ctx, args, number);
}

}  // namespace ssd
