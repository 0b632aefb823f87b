// The loops of numerics/exact.py on a GPU: the same roundings, so the same bits. NVRTC compiles this file for the card at hand.
//
// Each operation on float64 is written as the intrinsic that rounds to nearest once; the compiler fuses none of them. All else is
// integer maxima and integer sums, which are free of order, so neither the number of blocks nor that of threads shows in a bit.
// No kernel waits for another process.

#ifndef LANE
#define LANE (threadIdx.x & 31)
#define WARP 32
#endif

typedef long long i64;
typedef unsigned long long u64;

static __device__ __forceinline__ double on_grid(float value, double weight, double anchor) {
    return __dsub_rn(__dadd_rn(__dmul_rn((double)value, weight), anchor), anchor);
}

static __device__ __forceinline__ int magnitude(float value) { return __float_as_int(value) & 0x7fffffff; }

// sums[0..4) and sums[at] += what a shard adds to them; fresh: what is there does not count. Sums lie on 16-byte boundaries, since
// slots and pieces begin at multiples of 16 elements.
static __device__ __forceinline__ void add_four(double* sums, float4 v, double weight, double anchor, int fresh) {
    double2 low = {0.0, 0.0}, high = {0.0, 0.0};
    if (!fresh) {
        low = ((double2*)sums)[0];
        high = ((double2*)sums)[1];
    }
    low.x = __dadd_rn(low.x, on_grid(v.x, weight, anchor));
    low.y = __dadd_rn(low.y, on_grid(v.y, weight, anchor));
    high.x = __dadd_rn(high.x, on_grid(v.z, weight, anchor));
    high.y = __dadd_rn(high.y, on_grid(v.w, weight, anchor));
    ((double2*)sums)[0] = low;
    ((double2*)sums)[1] = high;
}

static __device__ __forceinline__ void add_one(double* sum, float value, double weight, double anchor, int fresh) {
    *sum = __dadd_rn(fresh ? 0.0 : *sum, on_grid(value, weight, anchor));
}

// The same in float32, for sums that are not exact: neither is there a grid.
static __device__ __forceinline__ void add_one(float* sum, float value, double weight, double, int fresh) {
    *sum = __fadd_rn(fresh ? 0.0f : *sum, __fmul_rn(value, __double2float_rn(weight)));
}

static __device__ __forceinline__ void add_four(float* sums, float4 v, double weight, double, int fresh) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!fresh) four = ((float4*)sums)[0];
    const float by = __double2float_rn(weight);
    four.x = __fadd_rn(four.x, __fmul_rn(v.x, by));
    four.y = __fadd_rn(four.y, __fmul_rn(v.y, by));
    four.z = __fadd_rn(four.z, __fmul_rn(v.z, by));
    four.w = __fadd_rn(four.w, __fmul_rn(v.w, by));
    ((float4*)sums)[0] = four;
}

template <typename Sum>
static __device__ __forceinline__ void add_piece(const i64* addresses, const i64* places, const int* slots, const double* anchors,
                                                 Sum* total, int* largest, const double* late, double known, int fresh) {
    const i64 piece = blockIdx.x;
    const int slot = slots[piece];
    const i64 start = places[3 * piece], elements = places[3 * piece + 2];
    Sum* sums = total + places[3 * piece + 1];
    const double weight = late ? *late : known;
    if (addresses[slot] == 0 || (late && weight == 0.0)) {
        if (fresh)
            for (i64 i = threadIdx.x; i < elements; i += blockDim.x) sums[i] = 0;
        return;
    }
    const float* x = (const float*)addresses[slot] + start;
    const double anchor = anchors[slot];
    int most = 0;
    const i64 fours = ((i64)x & 15) == 0 ? elements / 4 : 0;  // a gradient may lie anywhere
    for (i64 n = threadIdx.x; n < fours; n += blockDim.x) {
        const float4 v = ((const float4*)x)[n];
        add_four(sums + 4 * n, v, weight, anchor, fresh);
        most = max(most, max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w))));
    }
    for (i64 i = 4 * fours + threadIdx.x; i < elements; i += blockDim.x) {
        add_one(sums + i, x[i], weight, anchor, fresh);
        most = max(most, magnitude(x[i]));
    }
    for (int distance = 16; distance; distance >>= 1) most = max(most, __shfl_xor_sync(~0u, most, distance));
    // A stale read costs one more atomic, and most warps need none.
    if (LANE == 0 && most > *(volatile int*)(largest + slot)) atomicMax(largest + slot, most);
}

// total = weight * x on its slot's grid, or total + that; largest[slot] = the largest bits of |x|. One block adds one piece.
// addresses: of x by slot, 0 where a shard has none. places: start in x, offset in total, elements; by piece. late: where the
// weight lies, or null; with 0 there the shard has nothing.
extern "C" __global__ void add(const i64* addresses, const i64* places, const int* slots, const double* anchors,
                               double* total, int* largest, const double* late, double known, int fresh) {
    add_piece(addresses, places, slots, anchors, total, largest, late, known, fresh);
}

// total = weight * x in float32, or total + that; the rest as above.
extern "C" __global__ void add_plain(const i64* addresses, const i64* places, const int* slots, const double* anchors,
                                     float* total, int* largest, const double* late, double known, int fresh) {
    add_piece(addresses, places, slots, anchors, total, largest, late, known, fresh);
}

#define PARTS 8  // of a sum, that are added up in one pass

// Elements 2n and 2n + 1 of the sum of so many parts, from left to right. All are asked of the memory before any is added.
template <int COUNT> static __device__ __forceinline__ double2 summed(const double* const* parts, i64 n) {
    double2 v[COUNT];
#pragma unroll
    for (int part = 0; part < COUNT; part++) v[part] = ((const double2*)parts[part])[n];
#pragma unroll
    for (int part = 1; part < COUNT; part++) {
        v[0].x = __dadd_rn(v[0].x, v[part].x);
        v[0].y = __dadd_rn(v[0].y, v[part].y);
    }
    return v[0];
}

#define LISTED {first, second, third, fourth, fifth, sixth, seventh, eighth}
#define FOR_EACH_COUNT(call) \
    switch (count) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        case 5: call(5); break; \
        case 6: call(6); break; \
        case 7: call(7); break; \
        case 8: call(8); break; \
    }

template <int COUNT>
static __device__ __forceinline__ void join_parts(const double* const* parts, double* into, i64 elements) {
    for (i64 n = (i64)blockIdx.x * blockDim.x + threadIdx.x; n < elements / 2; n += (i64)gridDim.x * blockDim.x)
        ((double2*)into)[n] = summed<COUNT>(parts, n);
}

// into = the sum of the first `count` parts; the first one may be `into`. elements: an even number.
extern "C" __global__ void join(const double* first, const double* second, const double* third, const double* fourth,
                                const double* fifth, const double* sixth, const double* seventh, const double* eighth,
                                int count, double* into, i64 elements) {
    const double* const parts[PARTS] = LISTED;
#define JOIN(COUNT) join_parts<COUNT>(parts, into, elements)
    FOR_EACH_COUNT(JOIN)
}

template <int COUNT>
static __device__ __forceinline__ void finish_parts(const double* const* parts, float* result, u64* print, double divisor,
                                                    double inverse, i64 blocks, i64 first_block) {
    i64 sum = 0;
    for (i64 block = blockIdx.x; block < blocks; block += gridDim.x) {
        i64 bits = 0;
        for (i64 n = block * 2048 + threadIdx.x; n < (block + 1) * 2048; n += blockDim.x) {
            const double2 v = summed<COUNT>(parts, n);
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

// result = the sum of the first `count` parts / divisor, cast once; print += the fingerprint of the result. inverse: of a divisor
// that is a power of two, whose product has the same bits; 0 for others. blocks: of 4096 elements.
extern "C" __global__ void finish(const double* first, const double* second, const double* third, const double* fourth,
                                  const double* fifth, const double* sixth, const double* seventh, const double* eighth,
                                  int count, float* result, u64* print, double divisor, double inverse, i64 blocks,
                                  i64 first_block) {
    const double* const parts[PARTS] = LISTED;
#define FINISH(COUNT) finish_parts<COUNT>(parts, result, print, divisor, inverse, blocks, first_block)
    FOR_EACH_COUNT(FINISH)
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
            if (second) second[i] = (i64)((u64)second[i] + value);
            if (third) third[i] = (i64)((u64)third[i] + value);
            of_block += value;
        }
        sum += of_block * (u64)(block + 1);
    }
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (LANE == 0) atomicAdd(print, sum);
}

// --- Sums of few levels, as numerics/levels.py defines them.

template <typename Level>
static __device__ __forceinline__ void add_levels(float* values, i64 elements, double factor, double back, double levels,
                                                  Level* total, int keeps) {
    const double anchor = 6755399441055744.0;  // 1.5 * 2**52
    for (i64 i = threadIdx.x; i < elements; i += blockDim.x) {
        const double value = (double)values[i], whole = __dsub_rn(__dadd_rn(__dmul_rn(value, factor), anchor), anchor);
        const double level = fmin(fmax(whole, -levels), levels);
        total[i] = (Level)(total[i] + (i64)level);
        if (keeps) values[i] = __double2float_rn(__dsub_rn(value, __dmul_rn(level, back)));
    }
}

// total += values * factor of each tensor, rounded half to even and held within the levels. keeps: what rounding dropped takes the
// values' place; back: what a level is worth. bits: of an element of a total, 8 or 16. table: by tensor where its values and its
// total lie, its elements, the number of the first block that takes a piece of it, and the bits of factor and back.
extern "C" __global__ void quantize(const i64* table, int tensors, double levels, int bits, int keeps) {
    int nth = 0;
    for (int end = tensors; end - nth > 1;) {
        const int middle = (nth + end) / 2;
        if (table[6 * middle + 3] <= blockIdx.x)
            nth = middle;
        else
            end = middle;
    }
    const i64* own = table + 6 * nth;
    const i64 start = (blockIdx.x - own[3]) * 4096, left = own[2] - start, elements = left < 4096 ? left : 4096;
    float* values = (float*)own[0] + start;
    const double factor = __longlong_as_double(own[4]), back = __longlong_as_double(own[5]);
    if (bits == 8)
        add_levels(values, elements, factor, back, levels, (signed char*)own[1] + start, keeps);
    else
        add_levels(values, elements, factor, back, levels, (short*)own[1] + start, keeps);
}

// --- The packed form of elements of 8 bytes, for wires: that of numerics/loops.py, to the byte. A warp takes a whole block of it.

#define PACKED 512  // elements of a block
#define HEAD 8      // bytes before them
#define WHOLES 8    // a form: elements as they are
#define FLOATS 9    // a form: float32

typedef unsigned char byte;

static __device__ __forceinline__ i64 least(i64 a, i64 b) { return a < b ? a : b; }

static __device__ __forceinline__ u64 any_of_warp(u64 bits) {
    for (int distance = WARP / 2; distance; distance >>= 1) bits |= __shfl_xor_sync(~0u, bits, distance);
    return bits;
}

static __device__ __forceinline__ u64 most_of_warp(u64 value) {
    for (int distance = WARP / 2; distance; distance >>= 1) value = max(value, __shfl_xor_sync(~0u, value, distance));
    return value;
}

static __device__ __forceinline__ double power_of_two(i64 exponent) { return __longlong_as_double((1023 + exponent) << 52); }

static __device__ __forceinline__ i64 bytes_of(i64 head, i64 elements) {
    const i64 form = head & 0xff;
    return HEAD + (form == FLOATS ? 4 : form) * elements;
}

// The head of a block: its form, and above that the exponent of its integers.
static __device__ i64 head_of_doubles(const double* values, i64 elements) {
    u64 largest = 0, bits = 0;
    unsigned flags = 0;  // 1: no float32 holds one of them; 2: one of the first 16, which tell of a sum, is not zero
    for (i64 i = LANE; i < elements; i += WARP) {
        const u64 found = (u64)__double_as_longlong(values[i]), large = found & 0x7fffffffffffffffull;
        const int denormal = large != 0 && large < ((u64)(1023 - 126) << 52);
        flags |= (double)__double2float_rn(values[i]) != values[i] || denormal ? 1 : 0;
        flags |= i < 16 && large != 0 ? 2 : 0;
        largest = max(largest, large);
        bits |= found;
    }
    if (any_of_warp(flags) == 2) return FLOATS;
    if (any_of_warp(bits) == 0) return 0;
    const i64 exponent = (i64)(most_of_warp(largest) >> 52) - 1023;
    if (exponent <= -900 || exponent >= 900) return WHOLES;
    const double scale = power_of_two(50 - exponent), inverse = power_of_two(exponent - 50);
    const double anchor = 6755399441055744.0;  // 1.5 * 2**52
    u64 found = 0;
    unsigned strange = 0;
    for (i64 i = LANE; i < elements; i += WARP) {
        const u64 own = (u64)__double_as_longlong(values[i]);
        const double shifted = __dadd_rn(__dmul_rn(values[i], scale), anchor);
        strange |= __dmul_rn(__dsub_rn(shifted, anchor), inverse) != values[i];
        strange |= (own & 0x7fffffffffffffffull) < (1ull << 52) && own != 0;  // -0.0 too
        found |= (u64)__double_as_longlong(shifted) - 0x4338000000000000ull;
    }
    if (any_of_warp(strange)) return WHOLES;
    const i64 shift = __ffsll((i64)any_of_warp(found)) - 1;
    return ((52 - shift + 7) / 8) | (i64)((u64)(exponent - 50 + shift) << 8);
}

static __device__ i64 head_of_longs(const i64* values, i64 elements) {
    u64 found = 0, span = 0;
    for (i64 i = LANE; i < elements; i += WARP) {
        found |= (u64)values[i];
        span |= (u64)(values[i] ^ (values[i] >> 63));
    }
    found = any_of_warp(found);
    span = any_of_warp(span);
    if (!found) return 0;
    const i64 shift = __ffsll((i64)found) - 1;
    const i64 width = (64 - __clzll((i64)(span >> shift)) + 1 + 7) / 8;
    return width == 8 ? WHOLES : width | (shift << 8);
}

// heads: of each block of the values. integers: int64, else float64.
extern "C" __global__ void measure(const i64* values, i64 elements, int integers, i64* heads) {
    const i64 warps = (i64)gridDim.x * blockDim.x / WARP, blocks = (elements + PACKED - 1) / PACKED;
    for (i64 block = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; block < blocks; block += warps) {
        const i64* own = values + PACKED * block;
        const i64 count = least(PACKED, elements - PACKED * block);
        const i64 head = integers ? head_of_longs(own, count) : head_of_doubles((const double*)own, count);
        if (LANE == 0) heads[block] = head;
    }
}

// places: where each block begins, in bytes; size: of all. For one warp.
extern "C" __global__ void place(const i64* heads, i64 elements, i64* places, i64* size) {
    const i64 blocks = (elements + PACKED - 1) / PACKED;
    if (threadIdx.x >= WARP) return;
    i64 at = 0;
    for (i64 first = 0; first < blocks; first += WARP) {
        const i64 block = first + LANE;
        const i64 own = block < blocks ? bytes_of(heads[block], least(PACKED, elements - PACKED * block)) : 0;
        i64 end = own;
        for (int distance = 1; distance < WARP; distance <<= 1) {
            const i64 before = __shfl_up_sync(~0u, end, distance);
            if (LANE >= distance) end += before;
        }
        if (block < blocks) places[block] = at + end - own;
        at += __shfl_sync(~0u, end, WARP - 1);
    }
    if (LANE == 0) *size = at;
}

// into = the values in packed form, their heads and places being known.
extern "C" __global__ void pack(const i64* values, i64 elements, int integers, const i64* heads, const i64* places, byte* into) {
    const i64 warps = (i64)gridDim.x * blockDim.x / WARP, blocks = (elements + PACKED - 1) / PACKED;
    for (i64 block = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; block < blocks; block += warps) {
        const i64* own = values + PACKED * block;
        const i64 count = least(PACKED, elements - PACKED * block), head = heads[block], exponent = head >> 8;
        const int form = (int)(head & 0xff);
        byte* body = into + places[block] + HEAD;
        if (LANE == 0) *(i64*)(body - HEAD) = head;
        const double scale = integers || form >= WHOLES ? 0.0 : power_of_two(-exponent);
        for (i64 i = LANE; i < count; i += WARP) {
            if (form == FLOATS) {
                ((float*)body)[i] = __double2float_rn(((const double*)own)[i]);
            } else if (form == WHOLES) {
                ((i64*)body)[i] = own[i];
            } else {
                // The product is an integer, since the form holds the value.
                const i64 value = integers ? own[i] >> exponent : (i64)__dmul_rn(((const double*)own)[i], scale);
                if (form >= 4) ((int*)body)[i] = (int)value;
                for (int plane = form >= 4 ? 4 : 0; plane < form; plane++)
                    body[plane * count + i] = (byte)(value >> 8 * plane);
            }
        }
    }
}

// into = what was packed, or base + that. base: null where there is none. places: where each block begins; all were checked.
extern "C" __global__ void unpack(const byte* packed, const i64* places, i64 elements, int integers, const i64* base, i64* into) {
    const i64 warps = (i64)gridDim.x * blockDim.x / WARP, blocks = (elements + PACKED - 1) / PACKED;
    for (i64 block = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; block < blocks; block += warps) {
        const byte* body = packed + places[block] + HEAD;
        const i64 count = least(PACKED, elements - PACKED * block), head = *(const i64*)(body - HEAD), exponent = head >> 8;
        const int form = (int)(head & 0xff);
        const double scale = integers || form >= WHOLES ? 0.0 : power_of_two(exponent);
        for (i64 i = LANE; i < count; i += WARP) {
            i64 value = 0;
            if (form == WHOLES) {
                value = ((const i64*)body)[i];
            } else if (form == FLOATS) {
                value = __double_as_longlong((double)((const float*)body)[i]);
            } else if (form) {
                u64 bits = form >= 4 ? (u64)((const unsigned*)body)[i] : 0;
                for (int plane = form >= 4 ? 4 : 0; plane < form; plane++)
                    bits |= (u64)body[plane * count + i] << 8 * plane;
                const int above = 64 - 8 * form;
                value = (i64)(bits << above) >> above;  // with its sign
                value = integers ? (i64)((u64)value << exponent) : __double_as_longlong(__dmul_rn((double)value, scale));
            }
            const i64 at = PACKED * block + i;
            if (base && integers)
                value = (i64)((u64)base[at] + (u64)value);
            else if (base)
                value = __double_as_longlong(__dadd_rn(((const double*)base)[at], __longlong_as_double(value)));
            into[at] = value;
        }
    }
}
