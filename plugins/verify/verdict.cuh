// What both rules share: the state that a row's last block leaves, and the end of a sequence.

#pragma once

#include "plugins/law/cut.cuh"
#include "plugins/noise/noise.cuh"

namespace ssd {

// As `Status` in plugins/verify/sampled.py.
enum class Status : i32 { kDone = 0, kDamaged = 1, kForeignDraft = 2, kUnscanned = 3 };

// The best id of one slice of a row.
struct Partial {
    Best best;
    u32 is_damaged;
};
static_assert(sizeof(Partial) == 12);  // known to plugins/verify/args.py, as the next

// What is known of a row when all of it has been read.
struct Judged {
    Status status;
    u32 accepts;    // whether its drafted token stands
    i64 token;      // the target's token, where it does not depend on the rows before
    i64 top;        // of the ratio rule: the octave of the largest weight,
    double total;   //     the sum of the weights of what stays, in units of `unit_weight`,
    u64 cut;        //     and the last rank that stays
};
static_assert(sizeof(Judged) == 40);

struct VerifyArgs {
    LawArgs scan;                // its `brackets` null: the caller knows that no row truncates
    const i32* q_ids;            // [B, R-1, M], of the ratio rule; unused entries are -1
    const double* q_probs;       // [B, R-1, M]
    Partial* partials;           // workspace [B * R, S]
    i64* tile_octaves;           // workspace [B * R, tiles], of the ratio rule
    u64* tile_masses;            // workspace [B * R, tiles]
    Judged* judged;              // workspace [B * R]
    u32* sequence_tickets;       // [B], zero before the first launch
    i64* accepted;               // [B]
    i64* next;                   // [B]
    i32* status;                 // [B]
    int support;                 // M
};

// Called by the last block of each live row of a sequence. The last of these finds the first row
// whose draft does not stand, and gives what `token_after(row number)` says of it.
template <class T, class Ctx, class TokenAfter>
SSD_DEVICE void conclude(Ctx& ctx, const VerifyArgs& args, const Row<T>& row, Judged judged,
                         TokenAfter token_after) {
    const i64 first = i64(row.sequence) * args.scan.rows.rows_each;
    if (ctx.thread_index() == 0) args.judged[first + row.place] = judged;
    if (!ctx.arrive_last(args.sequence_tickets + row.sequence, row.num_draft + 1)) return;

    int stop = row.num_draft;
    for (int place = ctx.thread_index(); place < stop; place += ctx.num_threads())
        if (!args.judged[first + place].accepts) stop = place;
    stop = ctx.min(stop);
    const Status status = args.judged[first + stop].status;
    const i64 token = status == Status::kDone ? token_after(int(first) + stop) : 0;
    if (ctx.thread_index() != 0) return;
    args.accepted[row.sequence] = stop;
    args.next[row.sequence] = token;
    args.status[row.sequence] = i32(status);
}

// The best of a row over its slices, for the last block to arrive.
template <class Ctx>
SSD_DEVICE Partial best_of_slices(Ctx& ctx, const VerifyArgs& args, i64 number) {
    Partial best = {no_best(), 0};
    for (int i = ctx.thread_index(); i < args.scan.num_slices; i += ctx.num_threads()) {
        const Partial partial = args.partials[number * args.scan.num_slices + i];
        best.best = better(best.best, partial.best);
        best.is_damaged |= partial.is_damaged;
    }
    return {ctx.arg_max(best.best), ctx.any(best.is_damaged)};
}

SSD_DEVICE bool is_finite(float value) { return fabsf(value) < infinity(); }

// What the row's brackets say, where it truncates. `status` is not kDone where the row has no law.
struct Bracketed {
    Bracket bracket;
    Status status;
};

template <class T>
SSD_DEVICE Bracketed bracketed(const VerifyArgs& args, const Row<T>& row, i64 number) {
    Bracketed found = {};
    if (!row.truncates()) return found;
    if (args.scan.brackets == nullptr) {
        found.status = Status::kUnscanned;
        return found;
    }
    found.bracket = args.scan.brackets[number];
    if (found.bracket.is_damaged) found.status = Status::kDamaged;
    return found;
}

}  // namespace ssd
