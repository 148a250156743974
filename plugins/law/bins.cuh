// A histogram of ids by rank, and the bin in which a count or a mass is reached.

#pragma once

#include "plugins/cuda/block.cuh"

namespace ssd {

constexpr int kBins = 512;

struct Bin {
    u32 count;
    u64 mass;
};

// What lies in the bins before one, and in it.
struct Crossing {
    int bin;
    u32 count_before, count_in;
    u64 mass_before, mass_in;

    SSD_DEVICE u32 count_through() const { return count_before + count_in; }
    SSD_DEVICE u64 mass_through() const { return mass_before + mass_in; }
};

enum class Measure { kCount, kMass };

// The first bin whose running total reaches `target` >= 1, or the last that adds to it; behind
// all of them where nothing does. `bin_at` is a function of 0 .. kBins - 1. Called by all
// threads.
template <class Ctx, class BinAt>
SSD_DEVICE Crossing find_crossing(Ctx& ctx, Measure measure, u64 target, BinAt bin_at) {
    auto& found = ctx.template shared<Crossing>();
    const int each = (kBins + ctx.num_threads() - 1) / ctx.num_threads();
    const int begin = ctx.thread_index() * each < kBins ? ctx.thread_index() * each : kBins;
    const int end = begin + each < kBins ? begin + each : kBins;

    u32 own_count = 0, total_count;
    u64 own_mass = 0, total_mass;
    for (int i = begin; i < end; ++i) {
        const Bin bin = bin_at(i);
        own_count += bin.count;
        own_mass += bin.mass;
    }
    u32 count = ctx.exclusive_scan(own_count, &total_count);
    u64 mass = ctx.exclusive_scan(own_mass, &total_mass);
    const u64 total = measure == Measure::kCount ? total_count : total_mass;
    if (total == 0) return {kBins - 1, total_count, 0, total_mass, 0};
    target = target < total ? target : total;

    for (int i = begin; i < end; ++i) {
        const Bin bin = bin_at(i);
        const u64 before = measure == Measure::kCount ? count : mass;
        const u64 in = measure == Measure::kCount ? bin.count : bin.mass;
        if (before < target && target <= before + in)
            found = {i, count, bin.count, mass, bin.mass};
        count += bin.count;
        mass += bin.mass;
    }
    ctx.sync();
    const Crossing crossing = found;
    ctx.sync();
    return crossing;
}

}  // namespace ssd
