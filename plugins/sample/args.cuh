// What a drafting launch is given, and the order in which it ranks ids.

#pragma once

#include "plugins/law/cut.cuh"

namespace ssd {

struct SampleArgs {
    LawArgs scan;              // in draft ids. `brackets` null: the caller knows that no row
                               // truncates. `rows.positions` is given
    const i32* ids_map;        // [V], target ids, no id twice; null: the same ids
    const i64* exclude;        // [B, R], target ids, -1 for none; null: none anywhere
    const i32* shape_top;      // [B], F of Saguaro, 0 for none; null: none anywhere
    const float* shape_scale;  // [B], C of Saguaro
    u64* lists;                // workspace [B * R, S + 1, L]
    i64* sample;               // [B, R]
    i64* candidates;           // [B, R, F], -1 behind the last
    i32* q_ids;                // [B, R, M] of the ratio rule, -1 behind the last
    double* q_probs;           // [B, R, M] of the ratio rule, 0 behind the last
    i32* status;               // [B, R]
    const i64* layer_map;      // [V], the target ids of the layer ssd::Sample, for greedy.cuh
    i32 list_size;             // L, ids to rank: at least F + 1 and M
    i32 num_candidates;        // F
    i32 max_support;           // M; 0 is the coupled rule
};

// Ranks ids by a number that is smaller for a better id: first those that no cut removes, then by
// value, of equal values the lower id. NaN is better than all else, so that a damaged row shows it.
SSD_DEVICE u64 list_key(bool is_kept, float value, int id) {
    const float number = value == value ? value + 0.0f : bit_cast<float>(0x7FFFFFFFu);
    return u64(!is_kept) << 63 | u64(~order_key(number)) << 31 | u64(id);  // + 0: -0 equals 0
}
SSD_DEVICE bool is_kept(u64 key) { return key >> 63 == 0; }
SSD_DEVICE float value_of(u64 key) { return from_order_key(~u32(key >> 31)); }
SSD_DEVICE int id_of(u64 key) { return int(key & 0x7FFFFFFFu); }

}  // namespace ssd
