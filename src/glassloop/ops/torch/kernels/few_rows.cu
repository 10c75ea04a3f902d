// The product of a few rows with a packed matrix, in the order of `linear_kernel` of linear.py: each sum runs over the columns
// in ascending steps of 16 in one float32 accumulator. Few rows should take no longer than reading the matrix.
//
// A block runs on each multiprocessor. A warp computes a tile at a time: 8 outputs, in one chain of sums or, if GATED, in two
// (gate and up). It copies its rows of the matrix into a ring of STAGES stages in shared memory, and that already while the
// previous kernel still runs: only x has to wait for it. No warp waits for another one.
//
// few_rows.py defines: BITS (8 or 4, of a code), GATED, ACTIVATION, BIASED, ADDED, HALF_OUT, MINIMUM, WIDE_SCALES, ZERO, GROUP,
// MANY (more than 8 rows), X_ROWS (their number, or the next power of two, up to 8), CELL, EARLY, WARPS, STAGES.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

constexpr int THREADS = 512;                       // more than WARPS need, to copy x
constexpr int ROW_BYTES = 128;                     // of a row of the matrix in a stage
constexpr int STEP = ROW_BYTES * 8 / BITS;         // columns of a stage
constexpr int STEPS_OF_16 = STEP / 16;
constexpr int CODES = 8 * ROW_BYTES;               // bytes of the rows of one chain in a stage
constexpr int PIECES = ROW_BYTES / 16;             // of 16 bytes in such a row
constexpr int COPIES = CODES / (32 * 16);          // by each lane for one chain
constexpr int SCALE_SIZE = WIDE_SCALES ? 4 : 2;
constexpr int SCALE_BYTES = STEP / GROUP * SCALE_SIZE;  // of a row in a stage
constexpr int CHAIN_BYTES = CODES + 8 * SCALE_BYTES * (1 + MINIMUM);
constexpr int CHAINS = GATED ? 2 : 1;
constexpr int STAGE_BYTES = CHAINS * CHAIN_BYTES;

__device__ __forceinline__ u32 halves(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Adds the products of 16 columns: of 16 rows of x with 8 rows of the matrix.
__device__ __forceinline__ void multiply_add(float (&sum)[4], uint4 x, u32 w0, u32 w1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(w0), "r"(w1));
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

__device__ __forceinline__ float scale_at(const char* place) {
    if (WIDE_SCALES) return *(const float*)place;
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*(const u16*)place));
    return value;
}

// Computes 4 values of a packed matrix in half precision. A code in the lowest bits of the float 2^23 (`base`) makes it
// 2^23 + code.
__device__ __forceinline__ void unpack(u32& low, u32& high, u32 codes, float scale, float minimum, u32 base) {
    constexpr float BASE = 8388608.0f;
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (BITS == 4) {
            // The code stays where it is, so it is 16^i times as large. Its product with a scale of at most 20 bits is exact.
            constexpr float TIMES[] = {1.0f, 16.0f, 256.0f, 4096.0f};
            u32 bits;
            asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(bits) : "r"(codes), "r"(15u << (4 * i)), "r"(base));  // and, or
            float code = __fadd_rn(__uint_as_float(bits), -(BASE + ZERO * TIMES[i]));
            float by = i ? __fmul_rn(scale, 1.0f / TIMES[i]) : scale;
            value[i] = MINIMUM ? __fmaf_rn(code, by, minimum) : __fmul_rn(code, by);
        } else {
            u32 bits = __byte_perm(codes ^ 0x80808080u, base, 0x7440 + i);
            value[i] = __fmul_rn(__fadd_rn(__uint_as_float(bits), -(BASE + 128.0f)), scale);
            if (MINIMUM) value[i] = __fadd_rn(value[i], minimum);
        }
    }
    low = halves(value[0], value[1]);
    high = halves(value[2], value[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
few_rows(const u16* __restrict__ x, const char* __restrict__ weight, const char* __restrict__ scales,
         const char* __restrict__ minimums, const float* __restrict__ bias, const float* __restrict__ residual,
         void* __restrict__ out, int rows, int width, int columns, int x_stride, int residual_stride, int out_stride) {
    extern __shared__ __align__(128) char shared[];
    if (EARLY) asm volatile("griddepcontrol.launch_dependents;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // This lane's part of a tensor core instruction: a row of x and of the matrix, and 4 of 16 columns.
    const int own = lane / 4, part = lane % 4;
    const int steps = columns / STEP, tiles = (width + 7) / 8;
    const long long row_bytes = (long long)columns * BITS / 8, scale_row_bytes = (long long)(columns / GROUP) * SCALE_SIZE;
    // The rows of the matrix: if GATED, those of gate and of up in turn.
    const int last_row = (GATED ? 2 * width : width) - 1;
    auto row_of = [&](int tile, int chain, int i) { return (tile * 8 + i) * CHAINS + chain; };
    auto tile_at = [&](int turn) { return warp < WARPS ? (turn * WARPS + warp) * (int)gridDim.x + (int)blockIdx.x : tiles; };
    char* const ring = shared + warp * (STAGES * STAGE_BYTES);
    const u32 ring_address = (u32)__cvta_generic_to_shared(ring);

    // What is copied next: a stage of a tile.
    int copy_turn = 0, copy_step = 0, copy_slot = 0;
    bool copying = false;
    const char* from[CHAINS][COPIES];
    const char* scale_from[CHAINS];
    u32 to[COPIES];  // in a stage
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int row = (i * 32 + lane) / PIECES, piece = lane % PIECES;
        // Pieces are exchanged so that the lanes which read together find theirs in different banks.
        to[i] = row * ROW_BYTES + (piece ^ row) * 16;
    }
    constexpr int SCALE_PIECE = SCALE_BYTES >= 16 ? 16 : 8;  // bytes of scales that are copied at a time
    constexpr int SCALE_PIECES = 8 * SCALE_BYTES / SCALE_PIECE;  // by lanes from 0 on; minimums by those from 16 on
    static_assert(SCALE_PIECES <= 16, "a stage has too many scales");
    const int scale_place = lane % 16 * SCALE_PIECE;
    const bool copies_scales = lane % 16 < SCALE_PIECES && (lane < 16 || MINIMUM);
    auto find_tile = [&]() {
        const int tile = tile_at(copy_turn);
        copying = tile < tiles;
        if (!copying) return;
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                const int row = min(row_of(tile, chain, (i * 32 + lane) / PIECES), last_row);
                from[chain][i] = weight + row * row_bytes + lane % PIECES * 16;
            }
            const int row = min(row_of(tile, chain, scale_place / SCALE_BYTES), last_row);
            scale_from[chain] = (lane < 16 ? scales : minimums) + row * scale_row_bytes + scale_place % SCALE_BYTES;
        }
    };
    // One of the copies of a stage.
    auto copy = [&](int chain, int i) {
        const u32 stage = ring_address + copy_slot * STAGE_BYTES + chain * CHAIN_BYTES;
        if (i < COPIES) {
            if (copying) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(stage + to[i % COPIES]), "l"(from[chain][i % COPIES]));
        } else if (copying && copies_scales) {
            const u32 place = stage + CODES + (lane < 16 ? 0 : 8 * SCALE_BYTES) + scale_place;
            if (SCALE_PIECE == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(place), "l"(scale_from[chain]));
            else asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8;" ::"r"(place), "l"(scale_from[chain]));
        }
    };
    auto end_copies = [&]() {
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++copy_slot == STAGES) copy_slot = 0;
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) from[chain][i] += ROW_BYTES;
            scale_from[chain] += SCALE_BYTES;
        }
        if (++copy_step == steps) {
            copy_step = 0;
            copy_turn++;
            find_tile();
        }
    };
    constexpr int EACH = COPIES + 1;  // copies for one chain
    find_tile();
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) {
#pragma unroll
        for (int i = 0; i < CHAINS * EACH; i++) copy(i / EACH, i % EACH);
        end_copies();
    }

    if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
    // x in cells, of what a lane gives to a tensor core instruction: for 16 columns, 4 of a row and, with MANY, 4 of the row
    // 8 further on.
    char* const cells = shared + WARPS * STAGES * STAGE_BYTES;
#pragma unroll 4
    for (int i = threadIdx.x; i < X_ROWS * columns / 4; i += THREADS) {
        const int row = i / 4 % X_ROWS, column = i / (4 * X_ROWS) * 16 + i % 4 * 4;
        // Rows that do not exist are any rows: their sums are not used.
        const u64 four = *(const u64*)(x + (long long)min(row, rows - 1) * x_stride + column);
        const u64 other = MANY ? *(const u64*)(x + (long long)min(row + 8, rows - 1) * x_stride + column) : 0;
        if (CELL == 16) ((uint4*)cells)[i] = make_uint4((u32)four, (u32)other, (u32)(four >> 32), (u32)(other >> 32));
        else ((u64*)cells)[i] = four;
    }
    __syncthreads();
    if (warp >= WARPS) return;
    const char* const own_cell = cells + (own % X_ROWS * 4 + part) * CELL;
    u32 base = 0x4B000000u;
    asm volatile("" : "+r"(base));  // stays in a register

    int slot = 0;
    for (int turn = 0; tile_at(turn) < tiles; turn++) {
        const int tile = tile_at(turn);
        // Of the row `own` two outputs, and then of the row 8 further on.
        float sum[CHAINS][4] = {};
        float added[4] = {};  // the residual, read before it is needed
        auto row_at = [&](int i) { return own + i / 2 * 8; };
        auto output_at = [&](int i) { return tile * 8 + part * 2 + i % 2; };
        auto is_used = [&](int i) { return (MANY || i < 2) && row_at(i) < rows && output_at(i) < width; };
        if (ADDED) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (is_used(i)) added[i] = residual[(long long)row_at(i) * residual_stride + output_at(i)];
        }
        const char* cell = own_cell;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncwarp();
            const char* const stage = ring + slot * STAGE_BYTES + own * ROW_BYTES;
            const char* const stage_scales = ring + slot * STAGE_BYTES + CODES + own * SCALE_BYTES;
            if (++slot == STAGES) slot = 0;
#pragma unroll
            for (int k = 0; k < STEPS_OF_16; k++) {
                const char* const place = cell + k * (X_ROWS * 4 * CELL);
                uint4 xs;
                if (CELL == 16) {
                    xs = *(const uint4*)place;
                } else {
                    const u64 four = *(const u64*)place;
                    xs = make_uint4((u32)four, 0, (u32)(four >> 32), 0);
                }
#pragma unroll
                for (int chain = 0; chain < CHAINS; chain++) {
                    const char* const codes = stage + chain * CHAIN_BYTES;
                    u32 w0, w1;
                    const char* const by = stage_scales + chain * CHAIN_BYTES + k * 16 / GROUP * SCALE_SIZE;
                    const float minimum = MINIMUM ? scale_at(by + 8 * SCALE_BYTES) : 0.0f;
                    const u32 four = BITS == 8 ? *(const u32*)(codes + (k ^ own) * 16 + part * 4)
                                               : *(const u16*)(codes + (k / 2 ^ own) * 16 + k % 2 * 8 + part * 2);
                    unpack(w0, w1, four, scale_at(by), minimum, base);
                    multiply_add(sum[chain], xs, w0, w1);
                }
#pragma unroll
                for (int i = k * CHAINS * EACH / STEPS_OF_16; i < (k + 1) * CHAINS * EACH / STEPS_OF_16; i++) copy(i / EACH, i % EACH);
            }
            cell += STEPS_OF_16 * X_ROWS * 4 * CELL;
            end_copies();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!is_used(i)) continue;
            const int output = output_at(i);
            float total = sum[0][i];
            if (BIASED) total = __fadd_rn(total, bias[GATED ? 2 * output : output]);
            if (GATED) {
                float up = sum[CHAINS - 1][i];
                if (BIASED) up = __fadd_rn(up, bias[2 * output + 1]);
                total = __fmul_rn(activated(total), up);
            }
            if (ADDED) total = __fadd_rn(added[i], total);
            const long long at = (long long)row_at(i) * out_stride + output;
            if (HALF_OUT) ((u16*)out)[at] = (u16)halves(total, 0.0f);
            else ((float*)out)[at] = total;
        }
    }
}
