// A block of threads on the host; block.cuh says what each member means and what this can show.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "plugins/cuda/block.cuh"

namespace ssd {

constexpr int kWarp = 32;
constexpr int kLargestBlock = 1024;
constexpr std::size_t kSharedBytes = 48 * 1024;    // what a CUDA block has without asking for more
constexpr std::size_t kScratchBytes = 256 * 1024;  // of the collectives, which need more here

// What a launch returns.
constexpr int kDone = 0;
constexpr int kDiverged = 1;        // the threads of a block synchronised unequally often
constexpr int kTooMuchShared = 2;   // more than kSharedBytes
constexpr int kTooManyThreads = 3;  // more than the entry allows, or none
constexpr int kMisaligned = 4;      // a 16-byte access to another address than a multiple of 16

// Thrown in a thread of a block that cannot go on.
struct BrokenRule {
    int status;
};

// Where the threads of a block meet, phase after phase. Two gates take turns: a thread that is late
// to wake from one phase touches nothing that a fast one has touched in the next. Otherwise it
// would seem ordered behind that one's work, and the sanitizer would not see their race.
// std::barrier hides races in this way, and those between blocks too: all its waiters share some
// counters.
class Barrier {
   public:
    // No thread is in the barrier; expect this many in phase 0.
    void open(int num_threads) {
        std::unique_lock lock(gates_[0].mutex);
        expected_ = gates_[0].missing = num_threads;
    }

    // `phase` counts a thread's earlier meetings here.
    void arrive_and_wait(int phase) {
        Gate& gate = gates_[phase % 2];
        std::unique_lock lock(gate.mutex);
        const int earlier = gate.num_releases;
        if (!arrive(phase)) gate.released.wait(lock, [&] { return gate.num_releases != earlier; });
    }

    // Arrive, and be expected no more.
    void leave(int phase) {
        std::unique_lock lock(gates_[phase % 2].mutex);
        --expected_;
        arrive(phase);
    }

   private:
    struct Gate {
        std::mutex mutex;
        std::condition_variable released;
        int missing = 0;
        int num_releases = 0;
    };

    // Whether all have arrived. Nobody is at the next gate before this one is released.
    bool arrive(int phase) {
        Gate& gate = gates_[phase % 2];
        if (--gate.missing > 0) return false;
        gates_[(phase + 1) % 2].missing = expected_;
        ++gate.num_releases;
        gate.released.notify_all();
        return true;
    }

    Gate gates_[2];
    int expected_ = 0;
};

struct HostBlock {
    alignas(16) u8 shared[kSharedBytes];
    alignas(16) u8 scratch[kScratchBytes];
    Barrier barrier;

    void begin(int num_threads) {
        std::memset(shared, 0xA5, sizeof shared);
        barrier.open(num_threads);
    }
};

// Where a thread finds the variables of its block's memory: one for each type, in order of asking.
class Places {
   public:
    explicit Places(std::size_t num_bytes) : num_bytes_(num_bytes) {}

    template <class T>
    T& place(u8* memory) {
        for (const Place& each : places_)
            if (each.type == &tag<T>) return *reinterpret_cast<T*>(memory + each.offset);
        const std::size_t offset = (used_ + alignof(T) - 1) / alignof(T) * alignof(T);
        if (offset + sizeof(T) > num_bytes_) throw BrokenRule{kTooMuchShared};
        used_ = offset + sizeof(T);
        places_.push_back({&tag<T>, offset});
        return *reinterpret_cast<T*>(memory + offset);
    }

   private:
    struct Place {
        const char* type;
        std::size_t offset;
    };

    template <class T>
    static inline const char tag = 0;

    std::size_t num_bytes_;
    std::size_t used_ = 0;
    std::vector<Place> places_;
};

class HostContext : public Reductions<HostContext> {
   public:
    HostContext(HostBlock& block, int thread, int num_threads, int block_index, int num_blocks)
        : block_(block),
          thread_(thread),
          num_threads_(num_threads),
          block_index_(block_index),
          num_blocks_(num_blocks) {}

    int thread_index() const { return thread_; }
    int num_threads() const { return num_threads_; }
    int block_index() const { return block_index_; }
    int num_blocks() const { return num_blocks_; }

    void sync() {
        block_.barrier.arrive_and_wait(num_syncs_++);
    }

    template <class T>
    T& shared() {
        return shared_.template place<T>(block_.shared);
    }

    template <class T, class Op>
    T reduce(T value, T identity, Op op) {
        auto& scratch = scratch_.template place<Scratch<T>>(block_.scratch);
        scratch.partial[thread_] = value;
        sync();
        if (thread_ == 0) {
            T warps[kWarp];
            for (int warp = 0; warp < kWarp; ++warp) {
                T lanes[kWarp];
                for (int lane = 0; lane < kWarp; ++lane) {
                    const int thread = warp * kWarp + lane;
                    lanes[lane] = thread < num_threads_ ? scratch.partial[thread] : identity;
                }
                const bool is_used = warp * kWarp < num_threads_;
                warps[warp] = is_used ? fold_warp(lanes, op) : identity;
            }
            scratch.result = fold_warp(warps, op);
        }
        sync();
        return scratch.result;
    }

    template <class T>
    T exclusive_scan(T value, T* total) {
        auto& scratch = scratch_.template place<Scratch<T>>(block_.scratch);
        scratch.partial[thread_] = value;
        sync();
        if (thread_ == 0) scan_block(scratch);
        sync();
        const T before = scratch.partial[thread_];
        *total = scratch.result;
        sync();
        return before;
    }

    template <class T>
    T atomic_add(T* address, T value) {
        return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
    }

    u32 atomic_or(u32* address, u32 bits) {
        return std::atomic_ref<u32>(*address).fetch_or(bits, std::memory_order_relaxed);
    }

    bool arrive_last(u32* ticket, int num_arrivals) {
        struct Arrival {
            u32 is_last;
        };
        auto& arrival = shared<Arrival>();
        sync();
        if (thread_ == 0) {
            std::atomic_ref<u32> cell(*ticket);
            arrival.is_last =
                cell.fetch_add(1, std::memory_order_acq_rel) == u32(num_arrivals) - 1;
            if (arrival.is_last) cell.store(0, std::memory_order_relaxed);
        }
        sync();
        const bool is_last = arrival.is_last != 0;
        sync();
        return is_last;
    }

    // For the launch: the body has returned in this thread.
    void leave() { block_.barrier.leave(num_syncs_); }
    int num_syncs() const { return num_syncs_; }

   private:
    template <class T>
    struct Scratch {
        T partial[kLargestBlock];
        T result;
    };

    // Trees of the device's shape, so that sums round as they do there.
    template <class T, class Op>
    static T fold_warp(T (&lanes)[kWarp], Op op) {
        for (int distance = kWarp / 2; distance > 0; distance /= 2)
            for (int lane = 0; lane < distance; ++lane)
                lanes[lane] = op(lanes[lane], lanes[lane + distance]);
        return lanes[0];
    }

    template <class T>
    static void scan_warp(T* lanes, int count) {
        for (int distance = 1; distance < kWarp; distance *= 2)
            for (int lane = count - 1; lane >= distance; --lane)
                lanes[lane] = lanes[lane - distance] + lanes[lane];
    }

    // Inclusive sums in each warp and over the warps, then shifted by one to exclusive ones.
    template <class T>
    void scan_block(Scratch<T>& scratch) {
        T warps[kWarp];
        int num_warps = 0;
        for (int first = 0; first < num_threads_; first += kWarp) {
            const int count = num_threads_ - first < kWarp ? num_threads_ - first : kWarp;
            scan_warp(scratch.partial + first, count);
            warps[num_warps++] = scratch.partial[first + count - 1];
        }
        scan_warp(warps, num_warps);
        for (int thread = num_threads_ - 1; thread >= 0; --thread) {
            const int warp = thread / kWarp;
            const T before = warp == 0 ? T(0) : warps[warp - 1];
            const T below = thread % kWarp == 0 ? T(0) : scratch.partial[thread - 1];
            scratch.partial[thread] = before + below;
        }
        scratch.result = warps[num_warps - 1];
    }

    HostBlock& block_;
    int thread_, num_threads_, block_index_, num_blocks_;
    int num_syncs_ = 0;
    Places shared_{kSharedBytes};
    Places scratch_{kScratchBytes};
};

using Body = std::function<void(HostContext&)>;

// Runs a team of threads over its share of the blocks: team, team + num_teams, ...
inline int run_team(int team, int num_teams, int num_blocks, int num_threads, const Body& body) {
    auto block = std::make_unique<HostBlock>();
    std::vector<int> num_syncs(num_threads);
    std::atomic<int> status = kDone;
    Barrier between;
    between.open(num_threads);

    auto work = [&](int thread) {
        int phase = 0;
        for (int index = team; index < num_blocks; index += num_teams) {
            if (thread == 0) block->begin(num_threads);
            between.arrive_and_wait(phase++);
            HostContext ctx(*block, thread, num_threads, index, num_blocks);
            try {
                body(ctx);
            } catch (const BrokenRule& broken) {
                status = broken.status;
            }
            num_syncs[thread] = ctx.num_syncs();
            ctx.leave();
            between.arrive_and_wait(phase++);
            if (num_syncs[thread] != num_syncs[0] && status == kDone) status = kDiverged;
            between.arrive_and_wait(phase++);
        }
    };
    std::vector<std::thread> threads;
    for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(work, thread);
    work(0);
    for (std::thread& thread : threads) thread.join();
    return status;
}

// A launch: body(ctx) in every thread of every block. Returns kDone or what went wrong.
inline int run_blocks(int num_blocks, int num_threads, int num_concurrent, const Body& body) {
    if (num_threads < 1 || num_threads > kLargestBlock) return kTooManyThreads;
    const int num_teams = num_concurrent < num_blocks ? num_concurrent : num_blocks;
    std::atomic<int> status = kDone;
    auto work = [&](int team) {
        const int found = run_team(team, num_teams, num_blocks, num_threads, body);
        if (found != kDone) status = found;
    };
    std::vector<std::thread> teams;
    for (int team = 1; team < num_teams; ++team) teams.emplace_back(work, team);
    if (num_teams > 0) work(0);
    for (std::thread& team : teams) team.join();
    return status;
}

}  // namespace ssd
