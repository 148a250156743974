// ssd::CodedProduct on a CPU with AVX-512 VNNI; the bits of reference.py.
//
// VNNI multiplies four unsigned bytes by four signed ones and adds them to 32 bits, in 16 lanes. A
// lane is a column, so no sum runs across lanes. The matrix is laid out anew for that, once: in
// panels of 32 columns, a panel in blocks as they come along the input, and a block as
//
//     [block / 4][32 columns][4 inputs]  codes + 128, which makes them unsigned
//     [32 columns]                       float32 scales
//
// which is the order it is read in. A row's codes are signed; 128 times their sum is taken off
// where a block's sum begins.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace ssd {

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kMostTileRows = 6;  // 12 sums of a block, 12 of the row: 24 of 32 registers
constexpr int64_t kPrefetchBytes = 4096;
constexpr float kLargestCode = 127.0f;
constexpr float kSmallest = 1e-30f;

struct Shape {
    int64_t inputs, outputs, block;

    int64_t num_blocks() const { return inputs / block; }
    int64_t num_panels() const { return (outputs + kPanelColumns - 1) / kPanelColumns; }
    int64_t block_bytes() const { return kPanelColumns * (block + int64_t{sizeof(float)}); }
    int64_t panel_bytes() const { return num_blocks() * block_bytes(); }
    // Loads are of 64 bytes; sums of larger blocks would not fit float32.
    bool is_supported() const {
        return inputs > 0 && outputs > 0 && block >= 16 && block <= 1024 && block % 16 == 0 &&
               inputs % block == 0;
    }
};

// The matrix as it is multiplied. Columns beyond the last are zeros.
class Panels {
public:
    Panels(const Shape& shape, const int8_t* codes, const float* scales)
        : shape_(shape),
          bytes_(static_cast<uint8_t*>(
              std::aligned_alloc(64, shape.num_panels() * shape.panel_bytes()))) {
        if (bytes_ == nullptr) return;
        for (int64_t panel = 0; panel < shape.num_panels(); ++panel) {
            for (int64_t block = 0; block < shape.num_blocks(); ++block)
                fill(panel, block, codes, scales);
        }
    }

    bool is_valid() const { return bytes_ != nullptr; }
    const Shape& shape() const { return shape_; }
    const uint8_t* panel(int64_t index) const {
        return bytes_.get() + index * shape_.panel_bytes();
    }

private:
    void fill(int64_t panel, int64_t block, const int8_t* codes, const float* scales) {
        uint8_t* to = bytes_.get() + panel * shape_.panel_bytes() + block * shape_.block_bytes();
        const int64_t first = panel * kPanelColumns;
        const int64_t columns = std::min(kPanelColumns, shape_.outputs - first);
        std::memset(to, 128, kPanelColumns * shape_.block);
        for (int64_t i = 0; i < shape_.block; ++i) {
            const int8_t* from = codes + (block * shape_.block + i) * shape_.outputs + first;
            uint8_t* quads = to + i / 4 * kPanelColumns * 4 + i % 4;
            for (int64_t c = 0; c < columns; ++c)
                quads[c * 4] = static_cast<uint8_t>(from[c] + 128);
        }
        float of_panel[kPanelColumns] = {};
        std::memcpy(of_panel, scales + block * shape_.outputs + first, columns * sizeof(float));
        std::memcpy(to + kPanelColumns * shape_.block, of_panel, sizeof of_panel);
    }

    struct Free {
        void operator()(uint8_t* bytes) const { std::free(bytes); }
    };
    Shape shape_;
    std::unique_ptr<uint8_t, Free> bytes_;
};

// Rows rounded to 8 bits. `starts` is -128 times the sum of a block's codes.
struct Rows {
    std::vector<int8_t> codes;    // [rows][inputs]
    std::vector<float> scales;    // [rows][num_blocks]
    std::vector<int32_t> starts;  // [rows][num_blocks]

    void resize(int64_t rows, const Shape& shape) {
        codes.resize(rows * shape.inputs);
        scales.resize(rows * shape.num_blocks());
        starts.resize(rows * shape.num_blocks());
    }
};

inline void round_block(const float* x, int64_t size, int8_t* codes, float* scale, int32_t* start) {
    // As whole numbers, absolute values are in the same order, with NaN above infinity.
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 absolute = _mm512_abs_ps(_mm512_loadu_ps(x + i));
        most = _mm512_max_epu32(most, _mm512_castps_si512(absolute));
    }
    const uint32_t bits = _mm512_reduce_max_epu32(most);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    if (!(largest > kSmallest) || bits >= 0x7f800000u) {
        std::memset(codes, 0, size);
        *scale = bits >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
        *start = 0;
        return;
    }
    const __m512 reciprocal = _mm512_set1_ps(kLargestCode / largest);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < size; i += 16) {
        const __m512i rounded =
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), reciprocal));
        sum = _mm512_add_epi32(sum, rounded);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(rounded));
    }
    *scale = largest / kLargestCode;
    *start = -128 * _mm512_reduce_add_epi32(sum);
}

inline void round_row(const float* x, const Shape& shape, Rows& rows, int64_t row) {
    for (int64_t block = 0; block < shape.num_blocks(); ++block) {
        const int64_t at = row * shape.num_blocks() + block;
        const int64_t first = block * shape.block;
        round_block(x + first, shape.block, rows.codes.data() + row * shape.inputs + first,
                    rows.scales.data() + at, rows.starts.data() + at);
    }
}

// `kRows` rows from `first` on, times one panel, into `y` [rows][outputs].
template <int kRows>
void multiply_tile(const Panels& matrix, int64_t panel, const Rows& rows, int64_t first, float* y) {
    const Shape& shape = matrix.shape();
    const int64_t num_blocks = shape.num_blocks();
    const uint8_t* from = matrix.panel(panel);
    const int8_t* codes = rows.codes.data() + first * shape.inputs;
    const float* scales = rows.scales.data() + first * num_blocks;
    const int32_t* starts = rows.starts.data() + first * num_blocks;

    __m512 totals[kRows][2];
    for (auto& total : totals) total[0] = total[1] = _mm512_setzero_ps();
    for (int64_t block = 0; block < num_blocks; ++block) {
        __m512i sums[kRows][2];
        for (int row = 0; row < kRows; ++row) {
            sums[row][0] = sums[row][1] = _mm512_set1_epi32(starts[row * num_blocks + block]);
        }
        for (int64_t quad = 0; quad < shape.block / 4; ++quad) {
            const __m512i left = _mm512_load_si512(from), right = _mm512_load_si512(from + 64);
            _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes, _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes + 64, _MM_HINT_T0);
            from += 128;
            for (int row = 0; row < kRows; ++row) {
                int32_t four;
                std::memcpy(&four, codes + row * shape.inputs, sizeof four);
                const __m512i spread = _mm512_set1_epi32(four);
                sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], left, spread);
                sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], right, spread);
            }
            codes += 4;
        }
        const __m512 left = _mm512_load_ps(from), right = _mm512_load_ps(from + 64);
        from += 128;
        for (int row = 0; row < kRows; ++row) {
            const __m512 scale = _mm512_set1_ps(scales[row * num_blocks + block]);
            totals[row][0] = _mm512_add_ps(
                totals[row][0],
                _mm512_mul_ps(_mm512_cvtepi32_ps(sums[row][0]), _mm512_mul_ps(left, scale)));
            totals[row][1] = _mm512_add_ps(
                totals[row][1],
                _mm512_mul_ps(_mm512_cvtepi32_ps(sums[row][1]), _mm512_mul_ps(right, scale)));
        }
    }
    const int64_t column = panel * kPanelColumns;
    const uint32_t there =
        shape.outputs - column >= kPanelColumns ? ~0u : (1u << (shape.outputs - column)) - 1u;
    for (int row = 0; row < kRows; ++row) {
        float* to = y + (first + row) * shape.outputs + column;
        _mm512_mask_storeu_ps(to, there & 0xffff, totals[row][0]);
        _mm512_mask_storeu_ps(to + 16, there >> 16, totals[row][1]);
    }
}

inline void multiply_panel(const Panels& matrix, int64_t panel, const Rows& rows, int64_t num_rows,
                           float* y) {
    int64_t row = 0;
    for (; num_rows - row >= kMostTileRows; row += kMostTileRows) {
        multiply_tile<kMostTileRows>(matrix, panel, rows, row, y);
    }
    switch (num_rows - row) {
        case 5:
            return multiply_tile<5>(matrix, panel, rows, row, y);
        case 4:
            return multiply_tile<4>(matrix, panel, rows, row, y);
        case 3:
            return multiply_tile<3>(matrix, panel, rows, row, y);
        case 2:
            return multiply_tile<2>(matrix, panel, rows, row, y);
        case 1:
            return multiply_tile<1>(matrix, panel, rows, row, y);
    }
}

}  // namespace ssd
