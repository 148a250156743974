// The rows of a batch of logits, with the adjustments of plugins/law/reference.py: the padded tail
// left out, penalties and bias from sparse lists.

#pragma once

#include "plugins/cuda/rows.cuh"

namespace ssd {

constexpr int kGroup = 8;  // ids that a thread takes at a time, as many as a block of noise serves
constexpr int kMaxSlice = 32768;  // ids that a block reads of a row

// B sequences of R rows each. Drafts before a row's place count as generated.
struct LogitRows {
    const void* logits;    // T [B, R, pitch]
    const i64* drafts;     // [B, R-1], target ids; null where nothing was drafted
    const i64* num_draft;  // [B], 0..R-1; null: R-1. Rows behind num_draft are not read
    const i64* positions;  // [B, R], of the rows' tokens; null: on from `first_position`
    int num_sequences;     // B
    int rows_each;         // R
    int pitch;             // V, the padded vocabulary
    int vocab_size;        // the real one
    int drafts_stride;     // from one sequence's drafts to the next one's; 0: R-1
    int position_offset;   // what `positions` lack
};

struct LawParams {
    const float* temperature;    // [B]; null: 0 everywhere
    const i32* top_k;            // [B]
    const float* top_p;          // [B]
    const float* min_p;          // [B]
    const u64* seed;             // [B]
    const i64* first_position;   // [B], that of a sequence's first row
    const i32* edit_offsets;     // [B+1]; null: no penalties and no bias anywhere
    const i32* edit_ids;         // ascending in each sequence, no id twice
    const float* edit_bias;
    const i32* edit_generated;   // how often the sequence has generated the id
    const u8* edit_in_prompt;
    const float* repetition;     // [B]; 1 is none
    const float* presence;       // [B]; 0 is none
    const float* frequency;      // [B]; 0 is none
    const i64* ban_before;       // [B], the first position without bans; null: none anywhere
    const i32* ban_ids;          // [B, N], -1 for none
    int num_bans;                // N
};

// A bit for each id of a block's slice, set where the logit is adjusted.
struct EditMap {
    u32 words[kMaxSlice / 32];
};

// The first place in a sequence's list whose id is not below `id`.
SSD_DEVICE int edit_at(const LawParams& law, int sequence, int id) {
    int low = law.edit_offsets[sequence], high = law.edit_offsets[sequence + 1];
    while (low < high) {
        const int middle = (low + high) / 2;
        if (law.edit_ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The adjusted logit of an id. Few ids have one, so it is a call.
SSD_CALLED float adjusted_logit(const LawParams& law, int sequence, const i64* drafts,
                                int num_before, int num_bans, int id, float logit) {
    const i32* const banned = law.ban_ids + i64(sequence) * num_bans;
    for (int i = 0; i < num_bans; ++i)
        if (banned[i] == id) return -infinity();
    if (law.edit_offsets == nullptr) return logit;
    float bias = 0;
    int num_generated = 0;
    bool in_prompt = false;
    const int edit = edit_at(law, sequence, id);
    if (edit < law.edit_offsets[sequence + 1] && law.edit_ids[edit] == id) {
        bias = law.edit_bias[edit];
        num_generated = law.edit_generated[edit];
        in_prompt = law.edit_in_prompt[edit] != 0;
    }
    for (int i = 0; i < num_before; ++i) num_generated += drafts[i] == id;
    if (in_prompt || num_generated > 0) {
        const float penalty = law.repetition[sequence];
        logit = logit > 0 ? logit / penalty : logit * penalty;
    }
    logit = logit - law.frequency[sequence] * float(num_generated);
    if (num_generated > 0) logit = logit - law.presence[sequence];
    return logit + bias;
}

template <class Ctx>
SSD_CALLED void mark_edited_ids(Ctx& ctx, const LawParams& law, int sequence, const i64* drafts,
                                int num_before, int num_bans, EditMap& map, Range slice) {
    ctx.sync();
    const int num_words = (slice.end - slice.begin + 31) / 32;
    for (int i = ctx.thread_index(); i < num_words; i += ctx.num_threads()) map.words[i] = 0;
    ctx.sync();
    auto mark = [&](i64 id) {
        if (id < slice.begin || id >= slice.end) return;
        const int bit = int(id) - slice.begin;
        ctx.atomic_or(&map.words[bit / 32], 1u << bit % 32);
    };
    if (law.edit_offsets != nullptr) {
        const int end = edit_at(law, sequence, slice.end);
        for (int i = edit_at(law, sequence, slice.begin) + ctx.thread_index(); i < end;
             i += ctx.num_threads())
            mark(law.edit_ids[i]);
        for (int i = ctx.thread_index(); i < num_before; i += ctx.num_threads()) mark(drafts[i]);
    }
    const i32* const banned = law.ban_ids + i64(sequence) * num_bans;
    for (int i = ctx.thread_index(); i < num_bans; i += ctx.num_threads()) mark(banned[i]);
    ctx.sync();
}

template <class T>
struct Row {
    const T* logits;
    int vocab_size;
    int sequence, place;
    int num_draft;
    float temperature;
    int top_k;           // of a greedy row, as top_p and min_p, such that nothing is cut
    float top_p, min_p;
    bool has_edits;
    const i64* drafts;  // of the sequence
    int num_before;     // of them, those before this place
    int num_bans;       // at this position
    u64 position;       // of the row's token, where anything hangs on it
    const LawParams* law;

    SSD_DEVICE bool is_live() const { return place <= num_draft; }
    SSD_DEVICE bool is_greedy() const { return temperature == 0; }
    SSD_DEVICE bool cuts_by_rank() const { return top_k > 0 || top_p < 1; }
    SSD_DEVICE bool truncates() const { return cuts_by_rank() || min_p > 0; }
    SSD_DEVICE float adjusted(int id, float logit) const {
        return adjusted_logit(*law, sequence, drafts, num_before, num_bans, id, logit);
    }

    SSD_DEVICE float value(int id) const {
        const float logit = to_float(logits[id]);
        return has_edits ? adjusted(id, logit) : logit;
    }

    // Sets the map's bits for the ids of `slice`, which starts at a multiple of 8.
    template <class Ctx>
    SSD_DEVICE void mark_edits(Ctx& ctx, EditMap& map, Range slice) const {
        if (has_edits)
            mark_edited_ids(ctx, *law, sequence, drafts, num_before, num_bans, map, slice);
    }

    // The adjusted logits of the ids first .. first + 7; -inf behind the end of the slice.
    SSD_DEVICE void load_group(const EditMap& map, Range slice, int first, float* values) const {
        const int count = slice.end - first < kGroup ? slice.end - first : kGroup;
        if (count == kGroup && is_aligned16(logits)) {
            SSD_UNROLL
            for (int i = 0; i < kGroup; i += kPerVector<T>)
                unpack<T>(load16(logits + first + i), values + i);
        } else {
            SSD_UNROLL
            for (int i = 0; i < kGroup; ++i)
                values[i] = i < count ? to_float(logits[first + i]) : -infinity();
        }
        if (!has_edits) return;
        const int bit = first - slice.begin;
        const u32 edited = map.words[bit / 32] >> bit % 32 & 255u;
        if (edited == 0) return;
        SSD_UNROLL
        for (int i = 0; i < kGroup; ++i)
            if (edited >> i & 1u) values[i] = adjusted(first + i, values[i]);
    }
};

// The row of this number, 0 .. B * R - 1.
template <class T>
SSD_DEVICE Row<T> row_at(const LogitRows& rows, const LawParams& law, int number) {
    Row<T> row;
    const int sequence = number / rows.rows_each, most = rows.rows_each - 1;
    row.logits = static_cast<const T*>(rows.logits) + i64(number) * rows.pitch;
    row.vocab_size = rows.vocab_size;
    row.sequence = sequence;
    row.place = number % rows.rows_each;
    const int stride = rows.drafts_stride > 0 ? rows.drafts_stride : most;
    row.drafts = rows.drafts ? rows.drafts + i64(sequence) * stride : nullptr;
    row.num_before = rows.drafts ? row.place : 0;
    // A count from device memory cannot be refused, so it is kept within the batch.
    const i64 count = rows.num_draft ? rows.num_draft[sequence] : most;
    row.num_draft = count < 0 ? 0 : count > most ? most : int(count);
    row.law = &law;
    row.temperature = law.temperature ? law.temperature[sequence] : 0;
    const bool is_sampled = row.temperature > 0;
    row.top_k = is_sampled ? law.top_k[sequence] : 0;
    row.top_p = is_sampled ? law.top_p[sequence] : 1;
    row.min_p = is_sampled ? law.min_p[sequence] : 0;
    row.has_edits = law.edit_offsets != nullptr;
    if (row.has_edits) {
        const bool is_listed = law.edit_offsets[sequence] < law.edit_offsets[sequence + 1];
        const bool has_penalties = law.repetition[sequence] != 1 || law.presence[sequence] != 0 ||
                                   law.frequency[sequence] != 0;
        row.has_edits = is_listed || (has_penalties && row.num_before > 0);
    }
    i64 position = 0;
    if (rows.positions != nullptr)
        position = rows.positions[number] + rows.position_offset;
    else if (law.first_position != nullptr)
        position = law.first_position[sequence] + row.place;
    row.position = u64(position);
    const bool is_banned = law.ban_before != nullptr && position < law.ban_before[sequence];
    row.num_bans = is_banned ? law.num_bans : 0;
    row.has_edits |= row.num_bans > 0;
    return row;
}

// The ids that a block reads: one of `num_slices` nearly equal parts. Every part but the last
// starts and ends at a whole tile, the ids that the block's threads take at a time.
template <class Ctx>
SSD_DEVICE Range slice_of(Ctx& ctx, int vocab_size, int slice, int num_slices) {
    return part_of(vocab_size, slice, num_slices, kGroup * ctx.num_threads());
}

}  // namespace ssd
