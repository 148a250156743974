// An entry like SSD_KERNEL's for kernels whose last blocks call functions (SSD_CALLED).
//
// They take the struct by reference, so it stays where the launch put it (__grid_constant__): each
// thread would copy it to its own memory otherwise. And an entry takes as many registers as the
// functions that it calls, which a single block does once a row; so the blocks that shall fit on a
// multiprocessor are asked for, and the functions, not the loops, make do with fewer.

#pragma once

#include "plugins/cuda/block.cuh"

#if SSD_ON_DEVICE
#define SSD_KERNEL_WITH_CALLS(name, Args, max_threads, blocks_each, ...)  \
    extern "C" __global__ void __launch_bounds__(max_threads, blocks_each) \
        name(const __grid_constant__ Args args) {                         \
        ssd::DeviceContext ctx;                                           \
        __VA_ARGS__(ctx, args);                                           \
    }
#else
#define SSD_KERNEL_WITH_CALLS(name, Args, max_threads, blocks_each, ...) \
    SSD_KERNEL(name, Args, max_threads, __VA_ARGS__)
#endif
