// The product of a few rows with a matrix, packed or in half precision, in the order of `linear_kernel` of linear.py: each sum
// runs over the columns in ascending steps of 16 in one float32 accumulator. Few rows should take no longer than reading the
// matrix.
//
// A block runs on each multiprocessor and computes tiles of 16 rows of the matrix. Its warps have two kinds of work. Unpackers
// read the matrix, which does not depend on the previous kernel, so they never wait for it; they write the values in half
// precision to a ring of slots in shared memory. A slot has STEP columns of a tile. Multipliers wait for the previous kernel,
// copy x (or its norm) to shared memory, and then each of the first CHAINS adds up one tile at a time.
//
// The pieces of a block are numbered: for each CHAINS tiles, for each STEP columns, for each of these tiles. Piece q is in slot
// q % SLOTS, is added by multiplier q % CHAINS and unpacked by group q % GROUPS, of 2 warps. SLOTS is a multiple of GROUPS, and
// that one of CHAINS, so that a slot always belongs to the same warps. Else a warp could wait for the phase of a barrier that
// comes after the next one, which has the parity of the last one: it would not wait at all.
//
// few_rows.py defines: BITS (16, 8 or 4), MINIMUM, WIDE_SCALES, ZERO, GROUP, GATED, ACTIVATION, BIASED, ADDED, HALF_OUT, MANY
// (more than 8 rows), NORM (0: x is in half precision; else it is float32 and normalized here, 1: by its root mean square, 2:
// around its mean), NORM_VECTORS, EARLY, CHAINS, GROUPS, SLOTS, DEPTH, BLOCKS.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

constexpr int MULTIPLIERS = 4;  // warps; more than CHAINS, to copy x
constexpr int THREADS = 32 * (MULTIPLIERS + 2 * GROUPS);
constexpr int STRIDE = GROUPS / CHAINS;              // pieces of a chain from one of a group to its next
constexpr int STEP = 256;                            // columns of a slot
constexpr int PITCH = STEP * 2;                      // bytes of a row in a slot
constexpr int SLOT_BYTES = 16 * PITCH;
constexpr int PIECES = STEP * BITS / 8 / 128;        // of 16 bytes of a row in a slot, by each lane
constexpr int VALUES = 128 / BITS;                   // of such a piece
constexpr int STEPS_OF_16 = STEP / 16;
constexpr int AHEAD = 4;                             // steps by which operands are read before they are multiplied
constexpr int HALVES = 1 + MANY;                     // of 8 rows of x
constexpr int BARRIER_BYTES = 512;                   // 16 bytes for each slot, and what the norm needs
static_assert(SLOTS % GROUPS == 0 && GROUPS % CHAINS == 0, "a slot has to belong to the same warps");
static_assert(SLOTS >= 2 * CHAINS, "a multiplier waits for its next slot before it releases one");
static_assert(SLOTS * 16 + 64 <= BARRIER_BYTES && CHAINS <= MULTIPLIERS, "there is no room");
static_assert(BITS == 16 || GROUP % VALUES == 0, "a piece has one scale");

__device__ __forceinline__ u32 halves(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Adds the products of 16 columns: of 16 rows of the matrix with 8 rows of x.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const u32 (&w)[4], u32 x0, u32 x1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

// Reads four matrices of 8 rows of 16 bytes; a lane gives the address of one row.
__device__ __forceinline__ void read_four(u32 (&to)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void set_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase with this parity.
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred done;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

// What the previous kernel wrote is read from the L2 cache, where it is. The matrix is read once.
__device__ __forceinline__ float read(const float* place) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(place) : "memory");
    return value;
}

__device__ __forceinline__ float4 read(const float4* place) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(place)
                 : "memory");
    return value;
}

__device__ __forceinline__ void copy_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void store_16(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// As `activated` of pointwise.py, with the instructions that Triton takes for it.
__device__ __forceinline__ float exponential(float x) {
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, 1.4426950408889634f)));
    return power;
}

__device__ __forceinline__ float divided(float x, float y) {
    float quotient;
    asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
}

__device__ __forceinline__ float activated(float x) {
    if (ACTIVATION == 1) {  // gelu_tanh
        float cube = __fmul_rn(__fmul_rn(__fmul_rn(x, 0.044715f), x), x);
        float inner = __fmul_rn(__fadd_rn(x, cube), 0.7978845608028654f);
        float tanh = __fsub_rn(1.0f, divided(2.0f, __fadd_rn(exponential(__fmul_rn(inner, 2.0f)), 1.0f)));
        return __fmul_rn(__fmul_rn(x, 0.5f), __fadd_rn(tanh, 1.0f));
    }
    if (ACTIVATION == 2) return divided(x, __fadd_rn(exponential(-x), 1.0f));  // silu
    return fmaxf(x, 0.0f);                                                     // relu
}


// ── unpackers ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

// What a lane reads for a slot of a packed matrix.
struct Raw {
    uint4 codes[2 * PIECES];  // of two rows in turn
    u32 scale[2 * PIECES], minimum[2 * PIECES];
};

__device__ __forceinline__ u32 read_scale(const char* scales, u32 place) {
    u32 bits;
    if (WIDE_SCALES) {
        asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(bits) : "l"((const u32*)scales + place));
    } else {
        u16 half;
        asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(half) : "l"((const u16*)scales + place));
        bits = half;
    }
    return bits;
}

__device__ __forceinline__ float scale_of(u32 bits) {
    if (WIDE_SCALES) return __uint_as_float(bits);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}

// Computes two values from the codes in the low bits of a float 2^23 (`base`), which the code makes 2^23 + code.
__device__ __forceinline__ u32 unpack_two(u32 codes, int first, const float (&by)[4], float minimum, u32 base) {
    constexpr float BASE = 8388608.0f;
    float value[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = first + j;
        if (BITS == 4) {
            // The code stays where it is, so it is 16^i times as large. Its product with a scale of at most 20 bits is exact.
            constexpr float TIMES[] = {1.0f, 16.0f, 256.0f, 4096.0f};
            u32 bits;
            asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(bits) : "r"(codes), "r"(15u << (4 * i)), "r"(base));  // and, or
            const float code = __fadd_rn(__uint_as_float(bits), -(BASE + ZERO * TIMES[i]));
            value[j] = MINIMUM ? __fmaf_rn(code, by[i], minimum) : __fmul_rn(code, by[i]);
        } else {
            const u32 bits = __byte_perm(codes, base, 0x7440 + i);
            value[j] = __fmul_rn(__fadd_rn(__uint_as_float(bits), -(BASE + 128.0f)), by[0]);
            if (MINIMUM) value[j] = __fadd_rn(value[j], minimum);
        }
    }
    return halves(value[0], value[1]);
}

// The place of 16 bytes of a row of a slot. Lanes that write together, to one row, and lanes that read together, the same
// columns of 8 rows, find theirs in different banks.
__device__ __forceinline__ u32 place_of(int row, int chunk) {
    return row * PITCH + (chunk >> 3) * 128 + (((chunk & 7) ^ ((chunk >> 3) & 3) ^ (row & 7)) << 4);
}

// ── the norm ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void meet_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(32 * MULTIPLIERS) : "memory"); }

// Returns the largest of all multipliers, and then their sum (modulo 2^64), in parts of 22, 21 and 21 bits.
__device__ __forceinline__ u32 largest(u32 own, u32* room) {
    own = __reduce_max_sync(~0u, own);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = own;
    meet_multipliers();
    own = max(max(room[0], room[1]), max(room[2], room[3]));
    return own;
}

__device__ __forceinline__ u64 total_of(u64 own, u64* room) {
    const u64 low = __reduce_add_sync(~0u, (u32)own & 0x3FFFFFu);
    const u64 middle = __reduce_add_sync(~0u, (u32)(own >> 22) & 0x1FFFFFu);
    const u64 high = __reduce_add_sync(~0u, (u32)(own >> 43));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = low + (middle << 22) + (high << 43);
    meet_multipliers();
    own = room[0] + room[1] + room[2] + room[3];
    meet_multipliers();  // before the room is used again
    return own;
}

// Computes the norm of a row as `norm_kernel` of pointwise.py: `row_moments` there says how.
__device__ __forceinline__ void normalize(const float* x, const float* weight, const float* bias, double share, float eps,
                                          int columns, u32 to, char* room) {
    float4 value[NORM_VECTORS];
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        const int at = (i * 32 * MULTIPLIERS + threadIdx.x) * 4;
        value[i] = at < columns ? read((const float4*)(x + at)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    auto each = [&](auto&& use) {
#pragma unroll
        for (int i = 0; i < NORM_VECTORS; i++) {
            if ((i * 32 * MULTIPLIERS + (int)threadIdx.x) * 4 >= columns) continue;
            use(value[i].x), use(value[i].y), use(value[i].z), use(value[i].w);
        }
    };
    each([&](float v) { top = max(top, __float_as_uint(v) & 0x7FFFFFFFu); });
    top = largest(top, (u32*)room);
    int exponent = max((int)(top >> 23) - 126, -100);  // all values are less than this power of two
    constexpr int UNIT_BITS = 24;
    auto power = [](int by) { return __int_as_float((by + 127) << 23); };
    float centre = 0.0f;
    if (NORM == 2) {
        u64 sum = 0;
        const float times = power(UNIT_BITS - exponent);
        each([&](float v) { sum += (u64)(long long)__float2int_rz(__fmul_rn(v, times)); });
        const double all = __ll2double_rn((long long)total_of(sum, (u64*)(room + 32)));
        centre = __double2float_rn(__dmul_rn(all, __dmul_rn((double)power(exponent - UNIT_BITS), share)));
        exponent++;
    }
    u64 sum = 0;
    const float times = power(UNIT_BITS - exponent);
    each([&](float v) {
        const u32 units = (u32)__float2int_rz(__fadd_rn(__fmul_rn(fabsf(__fsub_rn(v, centre)), times), 0.5f));
        sum += (u64)units * units;
    });
    const double all = __ll2double_rn((long long)total_of(sum, (u64*)(room + 32)));
    const double unit = (double)power(exponent - UNIT_BITS);
    const float mean = __double2float_rn(__dmul_rn(all, __dmul_rn(__dmul_rn(unit, unit), share)));
    float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
    if (top >= 0x7F800000u) factor = __int_as_float(0x7FC00000);
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        const int at = (i * 32 * MULTIPLIERS + threadIdx.x) * 4;
        if (at >= columns) continue;
        const float4 weights = *(const float4*)(weight + at);
        const float4 biases = NORM == 2 ? *(const float4*)(bias + at) : weights;
        auto scaled = [&](float v, float by, float plus) {
            const float made = __fmul_rn(__fmul_rn(__fsub_rn(v, centre), factor), by);
            return NORM == 2 ? __fadd_rn(made, plus) : made;
        };
        const u32 low = halves(scaled(value[i].x, weights.x, biases.x), scaled(value[i].y, weights.y, biases.y));
        const u32 high = halves(scaled(value[i].z, weights.z, biases.z), scaled(value[i].w, weights.w, biases.w));
        asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to + at * 2), "r"(low), "r"(high) : "memory");
    }
}

// ── the kernel ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
few_rows(const void* __restrict__ x, const char* __restrict__ weight, const char* __restrict__ scales,
         const char* __restrict__ minimums, const float* __restrict__ bias, const float* residual, void* out,
         const float* __restrict__ norm_weight, const float* __restrict__ norm_bias, int rows, int width, int columns,
         int x_stride, int residual_stride, int out_stride, float eps) {
    // Barriers, the slots, x. A slot is aligned to its rows, so that places in it can be combined by "xor".
    extern __shared__ __align__(1024) char shared[];
    if (EARLY) asm volatile("griddepcontrol.launch_dependents;");
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that it is uniform
    const u32 ring = (u32)__cvta_generic_to_shared(shared);
    const u32 x_place = ring + SLOTS * SLOT_BYTES;
    const int x_pitch = columns * 2 + 16;  // bytes of a row of x, so that rows begin in different banks
    char* const room = shared + SLOTS * SLOT_BYTES + rows * x_pitch;
    const u32 barriers = (u32)__cvta_generic_to_shared(room);
    auto full = [&](int slot) { return barriers + slot * 16; };
    auto empty = [&](int slot) { return barriers + slot * 16 + 8; };
    const int weight_rows = GATED ? 2 * width : width;
    const int tiles = (weight_rows + 15) / 16, steps = columns / STEP;
    // Tiles of this block: its number, and so on in steps of the number of blocks.
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    if (own_tiles <= 0) return;
    auto tile_at = [&](int number) { return number * (int)gridDim.x + (int)blockIdx.x; };
    if (threadIdx.x < SLOTS) {
        set_barrier(full(threadIdx.x), BITS == 16 ? 64 : 2);
        set_barrier(empty(threadIdx.x), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    if (warp >= MULTIPLIERS) {
        const int group = (warp - MULTIPLIERS) / 2, chain = group % CHAINS;
        const int row = warp % 2 * 8 + lane / 8, part = lane % 8;  // of a slot: 8 lanes for a row, and for the one 4 further on
        // Pieces of this group: every STRIDE-th of a chain.
        int piece = group / CHAINS, tile = chain;
        int left = ((own_tiles - chain + CHAINS - 1) / CHAINS * steps - piece + STRIDE - 1) / STRIDE;
        // What to read next: a place in the matrix, in pieces of 16 bytes, and one of the scales, for both rows.
        u32 at[2], scale_at[2];
        auto find_tile = [&]() {
            while (piece >= steps) piece -= steps, tile += CHAINS;
#pragma unroll
            for (int i = 0; i < 2; i++) {  // a row that does not exist is any row: its sums are not used
                const u32 from = min(tile_at(tile) * 16 + row + i * 4, weight_rows - 1);
                at[i] = from * (columns / VALUES) + piece * (STEP / VALUES) + part;
                scale_at[i] = from * (columns / GROUP) + piece * (STEP / GROUP) + part * VALUES / GROUP;
            }
        };
        auto pass = [&]() {
            piece += STRIDE;
#pragma unroll
            for (int i = 0; i < 2; i++) at[i] += STRIDE * (STEP / VALUES), scale_at[i] += STRIDE * (STEP / GROUP);
            if (piece >= steps) find_tile();
        };
        int slot = group;
        u32 phase = 1;  // of the last time that the slot was emptied; a new barrier has the parity of such a phase
        auto pass_slot = [&]() {
            slot += GROUPS;
            if (slot >= SLOTS) slot -= SLOTS, phase ^= 1;
        };
        find_tile();
        if (BITS == 16) {
            asm volatile("bar.sync 0;" ::: "memory");
            for (; left > 0; left--) {
                wait(empty(slot), phase);
                const u32 to = ring + slot * SLOT_BYTES;
#pragma unroll
                for (int i = 0; i < 2 * PIECES; i++)
                    copy_16(to + place_of(row + i % 2 * 4, i / 2 * 8 + part), (const uint4*)weight + at[i % 2] + i / 2 * 8);
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full(slot)) : "memory");
                pass();
                pass_slot();
            }
            asm volatile("cp.async.wait_all;" ::: "memory");
            return;
        }
        Raw raw[DEPTH];
        int unread = left;
        auto load = [&](Raw& to) {
            if (unread-- <= 0) return;
#pragma unroll
            for (int i = 0; i < 2 * PIECES; i++) {
                asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(to.codes[i].x), "=r"(to.codes[i].y), "=r"(to.codes[i].z), "=r"(to.codes[i].w)
                             : "l"((const uint4*)weight + at[i % 2] + i / 2 * 8));
                const u32 place = scale_at[i % 2] + i / 2 * (8 * VALUES / GROUP);
                to.scale[i] = read_scale(scales, place);
                if (MINIMUM) to.minimum[i] = read_scale(minimums, place);
            }
            pass();
        };
#pragma unroll
        for (int i = 0; i < DEPTH; i++) load(raw[i]);
        asm volatile("bar.sync 0;" ::: "memory");
        u32 base = 0x4B000000u;
        asm volatile("" : "+r"(base));  // stays in a register
        constexpr int CHUNKS = VALUES / 8;  // of 16 bytes of values, from a piece
        const u32 own_place = place_of(row, part * CHUNKS);
        while (left > 0) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                if (left-- <= 0) continue;
                wait(empty(slot), phase);
                const u32 slot_place = ring + slot * SLOT_BYTES + own_place;
#pragma unroll
                for (int i = 0; i < 2 * PIECES; i++) {
                    const float scale = scale_of(raw[d].scale[i]), minimum = MINIMUM ? scale_of(raw[d].minimum[i]) : 0.0f;
                    const float by[4] = {scale, __fmul_rn(scale, 0.0625f), __fmul_rn(scale, 0.00390625f),
                                         __fmul_rn(scale, 0.000244140625f)};
                    const u32 words[4] = {raw[d].codes[i].x, raw[d].codes[i].y, raw[d].codes[i].z, raw[d].codes[i].w};
#pragma unroll
                    for (int j = 0; j < CHUNKS; j++) {
                        u32 made[4];
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            const u32 four = BITS == 4 ? words[j] >> (k / 2 * 16) : words[(2 * j + k / 2) % 4] ^ 0x80808080u;
                            made[k] = unpack_two(four, k % 2 * 2, by, minimum, base);
                        }
                        // As `place_of` of the row i % 2 * 4 further on and the chunk i / 2 * 16 + j further on.
                        const u32 other = (i % 2 * 4 ^ i / 2 * 2 ^ j) << 4;
                        store_16((slot_place ^ other) + i % 2 * 4 * PITCH + i / 2 * 256, made[0], made[1], made[2], made[3]);
                    }
                }
                __syncwarp();
                if (lane == 0) arrive(full(slot));
                pass_slot();
                load(raw[d]);
            }
        }
        return;
    }

    asm volatile("bar.sync 0;" ::: "memory");
    const double share = __ddiv_rn(1.0, (double)columns);
    if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (NORM) {
        for (int row = 0; row < rows; row++)
            normalize((const float*)x + (long long)row * x_stride, norm_weight, norm_bias, share, eps, columns,
                      x_place + row * x_pitch, room + SLOTS * 16);
    } else {
        const int chunks = columns / 8;
        for (int row = 0; row < rows; row++)
            for (int i = threadIdx.x; i < chunks; i += 32 * MULTIPLIERS)
                copy_16(x_place + row * x_pitch + i * 16, (const u16*)x + (long long)row * x_stride + i * 8);
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    meet_multipliers();
    if (warp >= CHAINS) return;

    // A lane's part of a tensor core instruction: two outputs (`own` and 8 further on), each of two rows of x (from `pair` on).
    const int own = lane / 4, pair = lane % 4 * 2;
    const u32 reading = lane % 16 * PITCH + (((lane >> 4) ^ (lane & 7)) << 4);  // a lane's row of the four in `read_four`
    u32 x_reading[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++)  // rows that do not exist are any rows: their sums are not used
        x_reading[half] = x_place + min(half * 8 + lane % 8, rows - 1) * x_pitch + lane / 8 * 16;
    int slot = warp, step = 0;
    u32 phase = 0;
    int left = (own_tiles - warp + CHAINS - 1) / CHAINS * steps;  // pieces of this chain
    if (left <= 0) return;
    u32 w[AHEAD][4], xs[AHEAD / 2][HALVES][4];
    u32 slot_place = ring + slot * SLOT_BYTES + reading;
    auto read_w = [&](int s) { read_four(w[s % AHEAD], (slot_place ^ ((s % 4 * 2 ^ s / 4) << 4)) + s / 4 * 128); };
    auto read_x = [&](int s) {  // for the steps s and s + 1
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            read_four(xs[s / 2 % (AHEAD / 2)][half], x_reading[half] + step * PITCH + s * 32);
    };
    wait(full(slot), phase);
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        read_w(s);
        if (s % 2) read_x(s - 1);
    }
    for (int number = warp; number < own_tiles; number += CHAINS) {
        const int tile = tile_at(number);
        float sum[HALVES][4] = {};
        float added[HALVES][4];  // the residual, read before it is needed
        auto row_at = [&](int half, int i) { return half * 8 + pair + i % 2; };
        auto weight_row_at = [&](int i) { return tile * 16 + own + i / 2 * 8; };
        auto output_at = [&](int i) { return GATED ? weight_row_at(i) / 2 : weight_row_at(i); };
        auto is_used = [&](int half, int i) {
            return row_at(half, i) < rows && weight_row_at(i) < weight_rows && !(GATED && own % 2);
        };
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++) {
            added[i / 4][i % 4] = 0.0f;
            if (ADDED && is_used(i / 4, i % 4))
                added[i / 4][i % 4] = read(residual + (long long)row_at(i / 4, i % 4) * residual_stride + output_at(i % 4));
        }
#pragma unroll 1
        for (int count = 0; count < steps; count++) {
            const int released = slot;
#pragma unroll
            for (int s = 0; s < STEPS_OF_16; s++) {
#pragma unroll
                for (int half = 0; half < HALVES; half++)
                    multiply_add(sum[half], w[s % AHEAD], xs[s / 2 % (AHEAD / 2)][half][s % 2 * 2],
                                 xs[s / 2 % (AHEAD / 2)][half][s % 2 * 2 + 1]);
                if (s == STEPS_OF_16 - AHEAD && --left > 0) {  // on to the next slot
                    if (++step == steps) step = 0;
                    slot += CHAINS;
                    if (slot >= SLOTS) slot -= SLOTS, phase ^= 1;
                    slot_place = ring + slot * SLOT_BYTES + reading;
                    wait(full(slot), phase);
                }
                // After the last slot, it is read again, and not used.
                read_w((s + AHEAD) % STEPS_OF_16);
                if (s % 2) read_x((s + AHEAD - 1) % STEPS_OF_16);
            }
            if (lane == 0) arrive(empty(released));
        }
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++) {
            const int half = i / 4, at = i % 4;
            float total = sum[half][at];
            if (BIASED) total = __fadd_rn(total, bias[min(weight_row_at(at), weight_rows - 1)]);
            if (GATED) {  // the rows of gate and up are those of neighbouring lanes
                const float up = __shfl_xor_sync(~0u, total, 4);
                total = __fmul_rn(activated(total), up);
            }
            if (!is_used(half, at)) continue;
            if (ADDED) total = __fadd_rn(added[half][at], total);
            const long long place = (long long)row_at(half, at) * out_stride + output_at(at);
            if (HALF_OUT) ((u16*)out)[place] = (u16)halves(total, 0.0f);
            else ((float*)out)[place] = total;
        }
    }
}
