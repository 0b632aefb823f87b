// `sums.cu` on a processor, built twice. Members of a run are threads, and each has its own indices.
//
// - Without LANES, one thread after the other: a warp has one thread, its exchange gives the neutral element, and each adds its own share.
// - With LANES, warps of 32 that exchange as on a card: each thread is a coroutine, which waits at an exchange until the others of its
//   warp have come to it. Threads that exchange otherwise, or have ended, end the process: a card would do anything.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
#define __device__
#define __forceinline__ inline
#define __global__
#ifndef LANES
#define LANE 0
#define WARP 1
#endif
struct Index { unsigned x; };
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;
// A card reads them at such addresses alone.
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
using std::max;
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __double2float_rn(double a) { return (float)a; }
static inline int __float_as_int(float a) { int bits; memcpy(&bits, &a, 4); return bits; }
static inline long long __double_as_longlong(double a) { long long bits; memcpy(&bits, &a, 8); return bits; }
static inline double __longlong_as_double(long long a) { double value; memcpy(&value, &a, 8); return value; }
static inline int __ffsll(long long a) { return __builtin_ffsll(a); }
static inline int __clzll(long long a) { return a ? __builtin_clzll(a) : 64; }
#ifndef LANES
template <typename T> static inline T __shfl_xor_sync(unsigned, T, int) { return 0; }
template <typename T> static inline T __shfl_up_sync(unsigned, T own, int) { return own; }
template <typename T> static inline T __shfl_sync(unsigned, T own, int) { return own; }
#else
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ucontext.h>
enum Exchange { NONE, XOR, UP, FROM };
struct Warp {
    ucontext_t here, lanes[32];
    std::unique_ptr<char[]> stacks{new char[32 * STACK]};
    char values[2][32][8];
    Exchange waits_for[32];
    int distances[32];
    int round;
    const std::function<void()>* kernel;
    static constexpr size_t STACK = 1 << 16;
};
static thread_local Warp warp;
static void one_lane() { (*warp.kernel)(); }
static void run_warp(int first) {
    warp.round = 0;
    for (int i = 0; i < 32; i++) {
        getcontext(&warp.lanes[i]);
        warp.lanes[i].uc_stack.ss_sp = warp.stacks.get() + i * Warp::STACK;
        warp.lanes[i].uc_stack.ss_size = Warp::STACK;
        warp.lanes[i].uc_link = &warp.here;
        makecontext(&warp.lanes[i], one_lane, 0);
    }
    do {
        for (int i = 0; i < 32; i++) {
            threadIdx.x = first + i;
            warp.waits_for[i] = NONE;
            swapcontext(&warp.here, &warp.lanes[i]);
            if (warp.waits_for[i] != warp.waits_for[0] || warp.distances[i] != warp.distances[0]) {
                fprintf(stderr, "thread %d of a warp exchanges otherwise than its first\n", i);
                abort();
            }
        }
        warp.round ^= 1;
    } while (warp.waits_for[0] != NONE);
}
template <typename T> static T exchanged(Exchange kind, T own, int distance, int from) {
    const int lane = threadIdx.x & 31, round = warp.round;
    memcpy(warp.values[round][lane], &own, sizeof(T));
    warp.waits_for[lane] = kind, warp.distances[lane] = distance;
    swapcontext(&warp.lanes[lane], &warp.here);
    memcpy(&own, warp.values[round][from], sizeof(T));
    return own;
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T own, int distance) {
    return exchanged(XOR, own, distance, (threadIdx.x & 31) ^ distance);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T own, int distance) {
    const int lane = threadIdx.x & 31;
    return exchanged(UP, own, distance, lane < distance ? lane : lane - distance);
}
template <typename T> static inline T __shfl_sync(unsigned, T own, int from) { return exchanged(FROM, own, from, from); }
#endif
static inline void atomicMax(int* at, int value) { *at = max(*at, value); }
static inline void atomicAdd(unsigned long long* at, unsigned long long value) { *at += value; }
#include "sums.cu"

template <typename Kernel> static void run(int blocks, int threads, Kernel kernel) {
    gridDim.x = blocks, blockDim.x = threads;
#ifdef LANES
    const std::function<void()> lane = kernel;
    warp.kernel = &lane;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (int first = 0; first < threads; first += 32) run_warp(first);
#else
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel();
#endif
}
extern "C" void run_add(int blocks, int threads, const i64* addresses, const i64* places, const int* slots, const double* anchors,
                        double* total, int* largest, const double* late, double known, int fresh) {
    run(blocks, threads, [=] { add(addresses, places, slots, anchors, total, largest, late, known, fresh); });
}
extern "C" void run_add_plain(int blocks, int threads, const i64* addresses, const i64* places, const int* slots,
                              const double* anchors, float* total, int* largest, const double* late, double known, int fresh) {
    run(blocks, threads, [=] { add_plain(addresses, places, slots, anchors, total, largest, late, known, fresh); });
}
extern "C" void run_join(int blocks, int threads, const double* a, const double* b, const double* c, const double* d, const double* e,
                         const double* f, const double* g, const double* h, int count, double* into, i64 elements) {
    run(blocks, threads, [=] { join(a, b, c, d, e, f, g, h, count, into, elements); });
}
extern "C" void run_finish(int blocks, int threads, const double* a, const double* b, const double* c, const double* d, const double* e,
                           const double* f, const double* g, const double* h, int count, float* result, unsigned long long* print,
                           double divisor, double inverse, i64 blocks_of, i64 first_block) {
    run(blocks, threads, [=] { finish(a, b, c, d, e, f, g, h, count, result, print, divisor, inverse, blocks_of, first_block); });
}
extern "C" void run_differ(int blocks, int threads, const float* after, const float* before, i64* update, int* strange,
                           double divisor, double inverse, i64 elements) {
    run(blocks, threads, [=] { differ(after, before, update, strange, divisor, inverse, elements); });
}
extern "C" void run_absorb(int blocks, int threads, const i64* update, i64* first, i64* second, i64* third, u64* print,
                           i64 blocks_of) {
    run(blocks, threads, [=] { absorb(update, first, second, third, print, blocks_of); });
}
extern "C" void run_quantize(int blocks, int threads, const i64* table, int tensors, double levels, int bits, int keeps) {
    run(blocks, threads, [=] { quantize(table, tensors, levels, bits, keeps); });
}
extern "C" void run_measure(int blocks, int threads, const i64* values, i64 elements, int integers, i64* heads) {
    run(blocks, threads, [=] { measure(values, elements, integers, heads); });
}
extern "C" void run_place(int blocks, int threads, const i64* heads, i64 elements, i64* places, i64* size) {
    run(blocks, threads, [=] { place(heads, elements, places, size); });
}
extern "C" void run_pack(int blocks, int threads, const i64* values, i64 elements, int integers, const i64* heads,
                         const i64* places, byte* into) {
    run(blocks, threads, [=] { pack(values, elements, integers, heads, places, into); });
}
extern "C" void run_unpack(int blocks, int threads, const byte* packed, const i64* places, i64 elements, int integers,
                           const i64* base, i64* into) {
    run(blocks, threads, [=] { unpack(packed, places, elements, integers, base, into); });
}
