// ssd::GroupedAttention on a CPU with AVX-512.
//
// A row is one token of one query head. It meets its keys sixteen at a time, and its values one
// after another, so what it comes to hangs on no other row, on no number of rows and on no thread:
// rows are gathered only to load a value once for several of them. Sixteen keys that none of the
// rows at hand may see are passed over; a key that one of them may not see has the weight 0 there,
// which adds nothing of a finite value. A row that sees nothing is zeros.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ssd {

constexpr int64_t kLanes = 16;
constexpr int64_t kMostRows = 8;       // of one group that are computed together
constexpr int kValueRows = 4;          // of those, that share a load of a value
constexpr float kUnseen = -1e30f;      // a bias below it hides a key
constexpr float kLeastPower = -87.0f;  // e to the power of less is 0 here

struct AttentionShape {
    int64_t batch, heads, groups, tokens, rows, size;  // groups: heads of keys; rows: keys

    int64_t heads_each() const { return heads / groups; }
    int64_t rows_each() const { return heads_each() * tokens; }
    int64_t parts_each() const { return (rows_each() + kMostRows - 1) / kMostRows; }
    int64_t num_parts() const { return batch * groups * parts_each(); }
};

struct AttentionCall {
    AttentionShape shape;
    const float* queries;  // [batch, heads, tokens, size]
    const float* keys;     // [batch, groups, rows, size]
    const float* values;   // the same
    const float* bias;     // [batch, 1, bias_tokens, rows], the first `tokens` are read
    int64_t bias_tokens;
    float scale;
    float* context;  // [batch, tokens, heads * size]
};

// The sums of sixteen vectors, each in its lane.
inline __m512 sums_of(const __m512 (&v)[kLanes]) {
    __m512 fours[4];
    for (int i = 0; i < 4; ++i) {
        const __m512* at = v + 4 * i;
        const __m512 a =
            _mm512_add_ps(_mm512_unpacklo_ps(at[0], at[1]), _mm512_unpackhi_ps(at[0], at[1]));
        const __m512 b =
            _mm512_add_ps(_mm512_unpacklo_ps(at[2], at[3]), _mm512_unpackhi_ps(at[2], at[3]));
        const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    }
    __m512 halves[2];
    for (int i = 0; i < 2; ++i) {
        const __m512 a = fours[2 * i], b = fours[2 * i + 1];
        halves[i] =
            _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                         _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// The lanes of a vector that hold something, where `left` numbers are left.
inline __mmask16 lanes(int64_t left) { return left >= kLanes ? 0xffff : (1u << left) - 1u; }

// A query times sixteen keys; beyond the last one, the last again.
inline __m512 scores_of(const float* query, const float* keys, int64_t left, int64_t size) {
    __m512 sums[kLanes];
    const float* at[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
        at[i] = keys + std::min(i, left - 1) * size;
        sums[i] = _mm512_setzero_ps();
    }
    int64_t d = 0;
    for (; d + kLanes <= size; d += kLanes) {
        const __m512 q = _mm512_loadu_ps(query + d);
        for (int64_t i = 0; i < kLanes; ++i) {
            sums[i] = _mm512_fmadd_ps(q, _mm512_loadu_ps(at[i] + d), sums[i]);
        }
    }
    if (d < size) {
        const __mmask16 there = lanes(size - d);
        const __m512 q = _mm512_maskz_loadu_ps(there, query + d);
        for (int64_t i = 0; i < kLanes; ++i) {
            sums[i] = _mm512_fmadd_ps(q, _mm512_maskz_loadu_ps(there, at[i] + d), sums[i]);
        }
    }
    return sums_of(sums);
}

// e to the power of x, for x of 0 and less: within 2 units in the last place.
inline __m512 power_of_e(__m512 x) {
    const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kLeastPower), _CMP_NLT_UQ);
    const __m512 twos = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts, the first with few enough bits that its products are exact.
    __m512 rest = _mm512_fnmadd_ps(twos, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(twos, _mm512_set1_ps(-2.12194440e-4f), rest);
    // 1 + x + x^2 / 2 + ... up to x^7 / 7!, which is exact to float32 for half of ln 2.
    __m512 sum = _mm512_set1_ps(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    }
    return _mm512_maskz_scalef_ps(counts, sum, twos);
}

inline __m512 bias_of(const float* bias, int64_t left) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(2 * kUnseen), lanes(left), bias);
}

inline bool sees_any(__m512 bias) {
    return _mm512_cmp_ps_mask(bias, _mm512_set1_ps(kUnseen), _CMP_GT_OQ) != 0;
}

// What rows come to from their values: up to `kValueRows` rows, and `kWidth` vectors of each value,
// of which the last has the lanes `there`.
struct Weighing {
    const float* weights[kValueRows];  // [keys]
    float* context[kValueRows];
    float factors[kValueRows];
    const float* values;  // [keys][size]
    int64_t size, num_keys;
    const std::vector<int64_t>& seen;  // the first of each sixteen keys that some row sees
    __mmask16 there;

    template <int kRows, int kWidth>
    void run() const {
        __m512 sums[kRows][kWidth];
        for (auto& row : sums) {
            for (auto& sum : row) sum = _mm512_setzero_ps();
        }
        for (const int64_t first : seen) {
            const int64_t end = std::min(first + kLanes, num_keys);
            for (int64_t key = first; key < end; ++key) {
                __m512 value[kWidth];
                for (int w = 0; w < kWidth; ++w) {
                    const float* from = values + key * size + w * kLanes;
                    value[w] =
                        w + 1 < kWidth ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(there, from);
                }
                for (int row = 0; row < kRows; ++row) {
                    const __m512 weight = _mm512_set1_ps(weights[row][key]);
                    for (int w = 0; w < kWidth; ++w) {
                        sums[row][w] = _mm512_fmadd_ps(weight, value[w], sums[row][w]);
                    }
                }
            }
        }
        for (int row = 0; row < kRows; ++row) {
            const __m512 factor = _mm512_set1_ps(factors[row]);
            for (int w = 0; w < kWidth; ++w) {
                _mm512_mask_storeu_ps(context[row] + w * kLanes, w + 1 < kWidth ? 0xffff : there,
                                      _mm512_mul_ps(sums[row][w], factor));
            }
        }
    }

    template <int kWidth>
    void run(int64_t num_rows) const {
        switch (num_rows) {
            case 4:
                return run<4, kWidth>();
            case 3:
                return run<3, kWidth>();
            case 2:
                return run<2, kWidth>();
            case 1:
                return run<1, kWidth>();
        }
    }
};

// Up to `kMostRows` rows that share keys: parts are numbered through the batch.
inline void attend_part(const AttentionCall& call, int64_t part) {
    const AttentionShape& shape = call.shape;
    const int64_t group = part / shape.parts_each();  // of the batch
    const int64_t text = group / shape.groups;
    const int64_t first = part % shape.parts_each() * kMostRows;
    const int64_t num_rows = std::min(kMostRows, shape.rows_each() - first);
    const float* keys = call.keys + group * shape.rows * shape.size;
    const float* values = call.values + group * shape.rows * shape.size;
    const float* queries = call.queries + (group * shape.rows_each() + first) * shape.size;
    const float* bias[kMostRows];
    float* context[kMostRows];
    for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t head =
            group % shape.groups * shape.heads_each() + (first + row) / shape.tokens;
        const int64_t token = (first + row) % shape.tokens;
        bias[row] = call.bias + (text * call.bias_tokens + token) * shape.rows;
        context[row] =
            call.context + ((text * shape.tokens + token) * shape.heads + head) * shape.size;
    }

    thread_local std::vector<float> weights;
    thread_local std::vector<int64_t> seen;
    const int64_t stride = (shape.rows + kLanes - 1) / kLanes * kLanes;
    weights.resize(kMostRows * stride);
    seen.clear();
    __m512 most[kMostRows];
    std::fill_n(most, kMostRows, _mm512_set1_ps(-__builtin_inff()));
    for (int64_t key = 0; key < shape.rows; key += kLanes) {
        const int64_t left = shape.rows - key;
        bool is_seen = false;
        for (int64_t row = 0; row < num_rows; ++row) {
            is_seen |= sees_any(bias_of(bias[row] + key, left));
        }
        if (!is_seen) continue;
        seen.push_back(key);
        for (int64_t row = 0; row < num_rows; ++row) {
            const __m512 hidden = bias_of(bias[row] + key, left);
            const __m512 scores =
                scores_of(queries + row * shape.size, keys + key * shape.size, left, shape.size);
            const __m512 score = _mm512_fmadd_ps(scores, _mm512_set1_ps(call.scale), hidden);
            most[row] = _mm512_max_ps(most[row], score);
            _mm512_storeu_ps(weights.data() + row * stride + key, score);
        }
    }
    float factors[kMostRows];
    for (int64_t row = 0; row < num_rows; ++row) {
        const float largest = _mm512_reduce_max_ps(most[row]);
        const bool sees_nothing = largest <= kUnseen;  // not so if it is NaN, which shall be seen
        __m512 sum = _mm512_setzero_ps();
        for (const int64_t key : seen) {
            float* at = weights.data() + row * stride + key;
            const __m512 score = _mm512_sub_ps(_mm512_loadu_ps(at), _mm512_set1_ps(largest));
            const __m512 weight = sees_nothing ? _mm512_setzero_ps() : power_of_e(score);
            sum = _mm512_add_ps(sum, weight);
            _mm512_storeu_ps(at, weight);
        }
        factors[row] = sees_nothing ? 0.0f : 1.0f / _mm512_reduce_add_ps(sum);
    }
    for (int64_t row = 0; row < num_rows; row += kValueRows) {
        const int64_t together = std::min<int64_t>(kValueRows, num_rows - row);
        for (int64_t d = 0; d < shape.size;) {
            const bool is_wide = shape.size - d >= 4 * kLanes;
            Weighing weighing{.weights = {},
                              .context = {},
                              .factors = {},
                              .values = values + d,
                              .size = shape.size,
                              .num_keys = shape.rows,
                              .seen = seen,
                              .there = is_wide ? lanes(kLanes) : lanes(shape.size - d)};
            for (int64_t i = 0; i < together; ++i) {
                weighing.weights[i] = weights.data() + (row + i) * stride;
                weighing.context[i] = context[row + i] + d;
                weighing.factors[i] = factors[row + i];
            }
            is_wide ? weighing.run<4>(together) : weighing.run<1>(together);
            d += is_wide ? 4 * kLanes : kLanes;
        }
    }
}

}  // namespace ssd
