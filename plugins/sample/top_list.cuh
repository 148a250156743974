// The best few of many keys, without sorting the many.

#pragma once

#include "plugins/cuda/block.cuh"

namespace ssd {

constexpr u64 kNoKey = ~0ull;
constexpr int kOfferedAtOnce = 8;

// Sorts `count` keys in shared memory, ascending, by a bitonic network: there is room for the next
// power of two, which is filled with kNoKey. Called by all threads, after and before a sync.
template <class Ctx>
SSD_CALLED void sort_keys(Ctx& ctx, u64* keys, int count) {
    const int thread = ctx.thread_index(), num_threads = ctx.num_threads();
    int padded = 1;
    while (padded < count) padded *= 2;
    for (int i = count + thread; i < padded; i += num_threads) keys[i] = kNoKey;
    ctx.sync();
    for (int run = 2; run <= padded; run *= 2) {
        for (int distance = run / 2; distance > 0; distance /= 2) {
            for (int pair = thread; pair < padded / 2; pair += num_threads) {
                const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
                const u64 first = keys[low], second = keys[high];
                const bool is_ascending = (low & run) == 0;
                if ((first > second) == is_ascending) {
                    keys[low] = second;
                    keys[high] = first;
                }
            }
            ctx.sync();
        }
    }
}

// Of all keys that a block's threads offer, no key twice, the `size` smallest.
//
// Keys below a bound go to shared memory, in no order. When they are many they are sorted, all but
// the first `size` are dropped, and the last of these is the new bound. Few of many keys in no
// particular order get there, so sorting is rare; in the worst order, each better than all before,
// it is slow and still right. The list does not depend on the number of threads or on the order of
// their offers.
//
// A block has one list at a time. All members but `bound` are called by all its threads together.
template <class Ctx>
class TopList {
   public:
    static constexpr int kMaxThreads = 128;
    static constexpr int kMaxSize = 128;

    SSD_DEVICE TopList(Ctx& ctx, int size) : ctx_(ctx), memory_(ctx.template shared<Memory>()) {
        size_ = size;
        clear();
    }

    SSD_DEVICE void clear() {
        ctx_.sync();  // others may still read the list
        if (ctx_.thread_index() == 0) memory_.count = 0;
        bound_ = kNoKey;
        ctx_.sync();
    }

    // A key that is not below it will not be on the list.
    SSD_DEVICE u64 bound() const { return bound_; }

    // Before the first offer: this thread will offer a key that is at most `promised`, and no other
    // thread the same one. Of so many promises the `size`-th best is a bound.
    SSD_DEVICE void promise(u64 promised) {
        if (ctx_.num_threads() < size_) return;
        memory_.keys[ctx_.thread_index()] = promised;
        ctx_.sync();
        sort_keys(ctx_, memory_.keys, ctx_.num_threads());
        const u64 last = memory_.keys[size_ - 1];
        if (last != kNoKey) bound_ = last + 1;
        ctx_.sync();
    }

    // Up to kOfferedAtOnce keys of this thread: key_of(i) for each bit i that is set. `is_first`
    // brings the bound up to them at once.
    template <class KeyOf>
    SSD_DEVICE void offer(u32 offered, KeyOf key_of, bool is_first = false) {
        SSD_UNROLL
        for (int i = 0; i < kOfferedAtOnce; ++i) {
            if (!(offered >> i & 1u)) continue;
            const u64 key = key_of(i);
            if (key < bound_) memory_.keys[ctx_.atomic_add(&memory_.count, 1)] = key;
        }
        ctx_.sync();
        const int count = memory_.count;
        ctx_.sync();  // all have read it before the next offers change it
        if (is_first || count > kMany) settle();
    }

    // Sorts what was offered so far, and returns how many keys the list has.
    SSD_DEVICE int settle() {
        const int count = memory_.count;
        sort_keys(ctx_, memory_.keys, count);
        const int kept = count < size_ ? count : size_;
        if (ctx_.thread_index() == 0) memory_.count = kept;
        if (kept == size_) bound_ = memory_.keys[size_ - 1];
        ctx_.sync();
        return kept;
    }

    // The i-th key, after `settle`.
    SSD_DEVICE u64 operator[](int i) const { return memory_.keys[i]; }

   private:
    static constexpr int kMany = 512;
    static constexpr int kRoom = 2048;
    static_assert(kMaxSize <= kMany && kMany + kOfferedAtOnce * kMaxThreads <= kRoom);

    struct Memory {
        u64 keys[kRoom];
        i32 count;
    };

    Ctx& ctx_;
    Memory& memory_;
    int size_;
    u64 bound_;
};

}  // namespace ssd
