// The ratio rule: a token drawn from the sparse law q stands with probability min(1, p / q); the
// token after a rejection is drawn from max(0, p - q), by inverse CDF in the order of ids.
//
// One pass leaves the weight of what surely stays in each tile (the ids that a block takes at a
// time), as an integer in units of the tile's own octave. So neither the row's peak nor its sum
// need be known in advance, and the draw reads one tile again.

#pragma once

#include "plugins/verify/verdict.cuh"

namespace ssd {

constexpr int kMaxSupport = 128;
constexpr int kUnitBits = 16;  // below the last place of a significand

// A sum of significands of one octave in units of the tile's: at most 2048 ids make 2**51.
SSD_DEVICE u64 tile_mass_of(Exponent exponent, i64 tile_octave) {
    const i64 below = tile_octave - exponent.octave;
    return below < 64 ? u64(significand_of(exponent.fraction)) << kUnitBits >> below : 0;
}

// A mass in units of the octave `octave`, in those of `top`.
SSD_CALLED double unit_weight(double mass, i64 octave, i64 top) {
    const i64 below = top - octave;
    return below < 1000 ? ldexp(mass, -int(below)) : 0;
}

SSD_DEVICE double weight_of(Exponent exponent, i64 top) {
    const u64 mass = u64(significand_of(exponent.fraction)) << kUnitBits;
    return unit_weight(double(mass), exponent.octave, top);
}

template <class Ctx>
SSD_DEVICE int tile_size(Ctx& ctx) {
    return kGroup * ctx.num_threads();
}

template <class Ctx>
SSD_DEVICE int num_tiles(Ctx& ctx, int vocab_size) {
    return (vocab_size + tile_size(ctx) - 1) / tile_size(ctx);
}

// Weighs a slice's tiles, or finds the best id of a greedy row's slice. Open ids count for a tile's
// octave and are collected; their masses are added when their fate is known.
template <class T, class Ctx>
SSD_DEVICE Partial weigh_slice(Ctx& ctx, const VerifyArgs& args, const Row<T>& row, i64 number,
                               const Cutter& cutter, Range slice, const OpenIds& open) {
    auto& edits = ctx.template shared<EditMap>();
    const Scale scale = scale_of(row.temperature);
    const i64 tiles = number * num_tiles(ctx, row.vocab_size);
    row.mark_edits(ctx, edits, slice);

    Best best = no_best();
    bool is_damaged = false;
    for (int begin = slice.begin; begin < slice.end; begin += tile_size(ctx)) {
        const int first = begin + kGroup * ctx.thread_index();
        float values[kGroup];
        float largest = -infinity();
        if (first < slice.end) {
            row.load_group(edits, slice, first, values);
            for (int i = 0; i < kGroup; ++i) {
                is_damaged |= values[i] != values[i];
                const Fate fate = cutter.fate_of(values[i]);
                if (fate == Fate::kOpen) open.collect(ctx, values[i], first + i);
                if (fate == Fate::kGone) continue;
                largest = values[i] > largest ? values[i] : largest;
                best = better(best, {values[i], first + i});
            }
        }
        if (row.is_greedy()) continue;

        const i64 octave = ctx.max(exponent_of(largest, scale).octave);
        u64 mass = 0;
        if (largest > -infinity())
            for (int i = 0; i < kGroup; ++i)
                if (cutter.fate_of(values[i]) == Fate::kStays)
                    mass += tile_mass_of(exponent_of(values[i], scale), octave);
        mass = ctx.sum(mass);
        if (ctx.thread_index() == 0) {
            args.tile_octaves[tiles + begin / tile_size(ctx)] = octave;
            args.tile_masses[tiles + begin / tile_size(ctx)] = mass;
        }
    }
    return {ctx.arg_max(best), ctx.any(is_damaged)};
}

// Adds up a row's tiles when all are weighed, those whose fate was open with them.
template <class T, class Ctx>
SSD_DEVICE void total_row(Ctx& ctx, const VerifyArgs& args, const Row<T>& row, i64 number,
                          const Bracketed& known, Judged& judged) {
    const OpenIds open = open_ids(scanned_of(args.scan), number, known.bracket);
    const Scale scale = scale_of(row.temperature);
    const int count = num_tiles(ctx, row.vocab_size);
    const i64* const octaves = args.tile_octaves + number * count;
    u64* const masses = args.tile_masses + number * count;

    judged.cut = kKeepsAll;
    if (row.truncates()) {
        judged.cut = settle_cut(ctx, row, known.bracket, open);
        const u64 cut = judged.cut;
        if (known.bracket.num_between > 0)
            open.for_each(ctx, row, cutter_of(row, &known.bracket), [&](u64 rank) {
                if (rank > cut) return;
                const int tile = id_of_rank(rank) / tile_size(ctx);
                const Exponent exponent = exponent_of(logit_of_rank(rank), scale);
                ctx.atomic_add(&masses[tile], tile_mass_of(exponent, octaves[tile]));
            });
        ctx.sync();
    }
    i64 top = kNoOctave;
    for (int tile = ctx.thread_index(); tile < count; tile += ctx.num_threads())
        top = octaves[tile] > top ? octaves[tile] : top;
    judged.top = ctx.max(top);
    double total = 0;
    for (int tile = ctx.thread_index(); tile < count; tile += ctx.num_threads())
        total += unit_weight(double(masses[tile]), octaves[tile], judged.top);
    judged.total = ctx.sum(total);
}

// The weight of an id in a row whose total is known.
template <class T>
SSD_DEVICE double weight_in(const Row<T>& row, const Judged& judged, float logit, int id) {
    if (rank_of(logit, id) > judged.cut) return 0;
    return weight_of(exponent_of(logit, scale_of(row.temperature)), judged.top);
}

SSD_DEVICE i64 law_of_draft(const VerifyArgs& args, int sequence, int place) {
    return (i64(sequence) * (args.scan.rows.rows_each - 1) + place) * args.support;
}

// Whether the row's drafted token stands; its status where the draft law cannot have drawn it.
template <class T, class Ctx>
SSD_DEVICE void judge_draft(Ctx& ctx, const VerifyArgs& args, const Row<T>& row, Judged& judged) {
    const i64 token = row.drafts[row.place];
    const i64 law = law_of_draft(args, row.sequence, row.place);
    double q = 0;
    for (int i = ctx.thread_index(); i < args.support; i += ctx.num_threads())
        if (args.q_ids[law + i] == token) q += args.q_probs[law + i];
    q = ctx.sum(q);
    if (token < 0 || token >= row.vocab_size || !(q > 0)) {
        judged.status = Status::kForeignDraft;
        return;
    }
    const double p =
        weight_in(row, judged, row.value(int(token)), int(token)) / judged.total;
    const double u = uniform53(row.law->seed[row.sequence], row.position, Purpose::kAccept);
    judged.accepts = u * q < p;
}

// What the draft law takes from p: min(p, q) of its ids, in the row's units.
struct Taken {
    i32 id[kMaxSupport];
    double weight[kMaxSupport];
};

// Draws the token of a row: from p, or from what the draft law leaves of it. -1 where it leaves
// nothing. Called by all threads.
template <class T, class Ctx>
SSD_CALLED i64 draw_from(Ctx& ctx, const VerifyArgs& args, const Row<T>& row, i64 number,
                         const Judged& judged, const Taken& taken, int num_taken) {
    const int count = num_tiles(ctx, row.vocab_size), size = tile_size(ctx);
    const i64* const octaves = args.tile_octaves + number * count;
    const u64* const masses = args.tile_masses + number * count;

    auto left_in_tile = [&](int tile) {
        double left = unit_weight(double(masses[tile]), octaves[tile], judged.top);
        for (int i = 0; i < num_taken; ++i)
            if (taken.id[i] / size == tile) left -= taken.weight[i];
        return left > 0 ? left : 0;
    };
    const int each = (count + ctx.num_threads() - 1) / ctx.num_threads();
    const int begin = ctx.thread_index() * each;
    const int end = begin + each < count ? begin + each : count;
    double own = 0, total;
    for (int tile = begin; tile < end; ++tile) own += left_in_tile(tile);
    double before = ctx.exclusive_scan(own, &total);
    if (!(total > 0)) return -1;
    const double u =
        uniform53(row.law->seed[row.sequence], row.position, Purpose::kResidual);
    const double target = u * total;

    // The last tile that has something left and starts at or below the target. Rounding may move a
    // boundary by a last place, but never to where nothing is left.
    int chosen = -1;
    double chosen_before = 0;
    for (int tile = begin; tile < end; ++tile) {
        const double left = left_in_tile(tile);
        if (left > 0 && before <= target) {
            chosen = tile;
            chosen_before = before;
        }
        before += left;
    }
    const int last = ctx.max(chosen);
    const double start = ctx.sum(chosen == last ? chosen_before : 0.0);

    const Range tile = {last * size, (last + 1) * size < row.vocab_size ? (last + 1) * size
                                                                        : row.vocab_size};
    auto left_of_id = [&](int id) {
        double left = weight_in(row, judged, row.value(id), id);
        for (int i = 0; i < num_taken; ++i)
            if (taken.id[i] == id) left -= taken.weight[i];
        return left > 0 ? left : 0;
    };
    const int first = tile.begin + kGroup * ctx.thread_index();
    const int behind = first + kGroup < tile.end ? first + kGroup : tile.end;
    own = 0;
    for (int id = first; id < behind; ++id) own += left_of_id(id);
    before = start + ctx.exclusive_scan(own, &total);
    int token = -1;
    for (int id = first; id < behind; ++id) {
        const double left = left_of_id(id);
        if (left > 0 && before <= target) token = id;
        before += left;
    }
    return ctx.max(token);
}

// The token after the last one that stands: row `number` is that of a rejection, or the bonus row.
template <class T, class Ctx>
SSD_DEVICE i64 draw_token(Ctx& ctx, const VerifyArgs& args, int number) {
    auto& taken = ctx.template shared<Taken>();
    const Judged judged = args.judged[number];
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    if (row.is_greedy()) return judged.token;
    if (row.place < row.num_draft) {
        const i64 law = law_of_draft(args, row.sequence, row.place);
        const int support = args.support < kMaxSupport ? args.support : kMaxSupport;
        for (int i = ctx.thread_index(); i < support; i += ctx.num_threads()) {
            const int id = args.q_ids[law + i];
            const bool is_id = id >= 0 && id < row.vocab_size;
            const double p = is_id ? weight_in(row, judged, row.value(id), id) : 0;
            const double q = args.q_probs[law + i] * judged.total;
            taken.id[i] = is_id ? id : -1;
            taken.weight[i] = p < q ? p : q;
        }
        ctx.sync();
        const i64 token = draw_from(ctx, args, row, number, judged, taken, support);
        if (token >= 0) return token;
    }
    // Where nothing is left p equals q but for rounding, and so does the rejection.
    return draw_from(ctx, args, row, number, judged, taken, 0);
}

// The row's judgement from what its blocks left, and the end of its sequence.
template <class T, class Ctx>
SSD_CALLED void finish_ratio(Ctx& ctx, const VerifyArgs& args, int number) {
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    const Bracketed known = bracketed(args, row, number);
    Judged judged = {};
    judged.status = known.status;
    if (judged.status == Status::kDone) {
        const Partial partial = best_of_slices(ctx, args, number);
        judged.token = partial.best.id;
        if (partial.is_damaged || !is_finite(partial.best.score)) judged.status = Status::kDamaged;
    }
    const bool is_drafted = row.place < row.num_draft;
    if (judged.status == Status::kDone && row.is_greedy()) {
        judged.accepts = is_drafted && row.drafts[row.place] == judged.token;
    } else if (judged.status == Status::kDone) {
        total_row(ctx, args, row, number, known, judged);
        if (is_drafted) judge_draft(ctx, args, row, judged);
    }
    conclude(ctx, args, row, judged, [&](int stop) { return draw_token<T>(ctx, args, stop); });
}

template <class T, class Ctx>
SSD_DEVICE void verify_ratio(Ctx& ctx, const VerifyArgs& args) {
    const int number = ctx.block_index() / args.scan.num_slices;
    const int part = ctx.block_index() % args.scan.num_slices;
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, number);
    if (!row.is_live()) return;

    const Bracketed known = bracketed(args, row, number);
    Partial partial = {no_best(), 0};
    if (known.status == Status::kDone)
        partial = weigh_slice(ctx, args, row, number, cutter_of(row, &known.bracket),
                              slice_of(ctx, row.vocab_size, part, args.scan.num_slices),
                              open_ids(scanned_of(args.scan), number, known.bracket));
    if (ctx.thread_index() == 0) args.partials[i64(number) * args.scan.num_slices + part] = partial;
    if (ctx.arrive_last(args.scan.tickets + number, args.scan.num_slices))
        finish_ratio<T>(ctx, args, number);
}

}  // namespace ssd
