// The loops of numerics/exact.py on a GPU: the same roundings, so the same bits. NVRTC compiles this file for the card at hand.
//
// Each operation on float64 is written as the intrinsic that rounds to nearest once; the compiler fuses none of them. All else is
// integer maxima and integer sums, which are free of order, so neither the number of blocks nor that of threads shows in a bit.
// No kernel waits for another process.

#ifndef LANE
#define LANE (threadIdx.x & 31)
#endif

typedef long long i64;
typedef unsigned long long u64;

static __device__ __forceinline__ double on_grid(float value, double weight, double anchor) {
    return __dsub_rn(__dadd_rn(__dmul_rn((double)value, weight), anchor), anchor);
}

static __device__ __forceinline__ int magnitude(float value) { return __float_as_int(value) & 0x7fffffff; }

// total = weight * x on its slot's grid, or total + that; largest[slot] = the largest bits of |x|. One block adds one piece.
// addresses: of x by slot, 0 where a shard has none. places: start in x, offset in total, elements; by piece.
extern "C" __global__ void add(const i64* addresses, const i64* places, const int* slots, const double* anchors,
                               double* total, int* largest, double weight, int fresh) {
    const i64 piece = blockIdx.x;
    const int slot = slots[piece];
    const i64 start = places[3 * piece], elements = places[3 * piece + 2];
    double* sums = total + places[3 * piece + 1];
    if (addresses[slot] == 0) {
        if (fresh)
            for (i64 i = threadIdx.x; i < elements; i += blockDim.x) sums[i] = 0.0;
        return;
    }
    const float* x = (const float*)addresses[slot] + start;
    const double anchor = anchors[slot];
    int most = 0;
    // Sums lie on 16-byte boundaries, since slots and pieces begin at multiples of 16 elements; a gradient may lie anywhere.
    const i64 fours = ((i64)x & 15) == 0 ? elements / 4 : 0;
    for (i64 n = threadIdx.x; n < fours; n += blockDim.x) {
        const float4 v = ((const float4*)x)[n];
        double2 low = {0.0, 0.0}, high = {0.0, 0.0};
        if (!fresh) {
            low = ((double2*)sums)[2 * n];
            high = ((double2*)sums)[2 * n + 1];
        }
        low.x = __dadd_rn(low.x, on_grid(v.x, weight, anchor));
        low.y = __dadd_rn(low.y, on_grid(v.y, weight, anchor));
        high.x = __dadd_rn(high.x, on_grid(v.z, weight, anchor));
        high.y = __dadd_rn(high.y, on_grid(v.w, weight, anchor));
        ((double2*)sums)[2 * n] = low;
        ((double2*)sums)[2 * n + 1] = high;
        most = max(most, max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w))));
    }
    for (i64 i = 4 * fours + threadIdx.x; i < elements; i += blockDim.x) {
        sums[i] = __dadd_rn(fresh ? 0.0 : sums[i], on_grid(x[i], weight, anchor));
        most = max(most, magnitude(x[i]));
    }
    for (int distance = 16; distance; distance >>= 1) most = max(most, __shfl_xor_sync(~0u, most, distance));
    // A stale read costs one more atomic, and most warps need none.
    if (LANE == 0 && most > *(volatile int*)(largest + slot)) atomicMax(largest + slot, most);
}

// result = (total + last) / divisor, cast once; print += the fingerprint of the result. last: null where there is none.
// inverse: of a divisor that is a power of two, whose product has the same bits; 0 for others. blocks: of 4096 elements.
extern "C" __global__ void finish(const double* total, const double* last, float* result, u64* print,
                                  double divisor, double inverse, i64 blocks, i64 first_block) {
    i64 sum = 0;
    for (i64 block = blockIdx.x; block < blocks; block += gridDim.x) {
        i64 bits = 0;
        for (i64 n = block * 2048 + threadIdx.x; n < (block + 1) * 2048; n += blockDim.x) {
            double2 v = ((const double2*)total)[n];
            if (last) {
                const double2 more = ((const double2*)last)[n];
                v.x = __dadd_rn(v.x, more.x);
                v.y = __dadd_rn(v.y, more.y);
            }
            float2 r;
            r.x = __double2float_rn(inverse != 0.0 ? __dmul_rn(v.x, inverse) : __ddiv_rn(v.x, divisor));
            r.y = __double2float_rn(inverse != 0.0 ? __dmul_rn(v.y, inverse) : __ddiv_rn(v.y, divisor));
            ((float2*)result)[n] = r;
            bits += (i64)__float_as_int(r.x) + (i64)__float_as_int(r.y);
        }
        sum = (i64)((u64)sum + (u64)bits * (u64)(first_block + block + 1));
    }
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (LANE == 0) atomicAdd(print, (u64)sum);
}

// update = the integers nearest to (after - before) / divisor * inverse, half to even; 0 where that is not finite or not below
// 2**62, and strange = 1 then. inverse: of a power of two.
extern "C" __global__ void differ(const float* after, const float* before, i64* update, int* strange, double divisor,
                                  double inverse, i64 elements) {
    const double anchor = 6755399441055744.0;  // 1.5 * 2**52: to add it and take it off again rounds, below 2**51
    int wrong = 0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += (i64)gridDim.x * blockDim.x) {
        const double moved = __dsub_rn((double)after[i], (double)before[i]);
        double value = __dmul_rn(__ddiv_rn(moved, divisor), inverse);
        if (fabs(value) < 2251799813685248.0) value = __dsub_rn(__dadd_rn(value, anchor), anchor);
        const int fits = fabs(value) < 4611686018427387904.0;  // no number is not
        update[i] = fits ? (i64)value : 0;
        wrong |= !fits;
    }
    if (wrong) atomicMax(strange, 1);
}

// first, second and third += update, modulo 2**64; print += the fingerprint of the update. third: null where there is none.
extern "C" __global__ void absorb(const i64* update, i64* first, i64* second, i64* third, u64* print, i64 blocks) {
    u64 sum = 0;
    for (i64 block = blockIdx.x; block < blocks; block += gridDim.x) {
        u64 of_block = 0;
        for (i64 i = block * 4096 + threadIdx.x; i < (block + 1) * 4096; i += blockDim.x) {
            const u64 value = (u64)update[i];
            first[i] = (i64)((u64)first[i] + value);
            second[i] = (i64)((u64)second[i] + value);
            if (third) third[i] = (i64)((u64)third[i] + value);
            of_block += value;
        }
        sum += of_block * (u64)(block + 1);
    }
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (LANE == 0) atomicAdd(print, sum);
}
