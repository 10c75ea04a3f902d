// The product of a few rows with a packed matrix (`PackedMatrix` of packed.py). Few rows should take no longer than reading the matrix.
//
// The order of a sum: the columns are divided into chunks of 128, and the chunks into 8 slices of the same size, the last of which
// may have fewer or none. A slice is added up by the tensor cores, in ascending steps of 16 in one float32 accumulator; then the
// slices are added in ascending order. None of this depends on the number of rows; `linear_kernel` of linear.py with SLICES does
// the same, with the values that `expand_kernel` writes.
//
// A block has a warp for each slice and computes TILES tiles of 16 outputs at a time: two units of 8 rows of the matrix, which for
// a matrix that is two in turn (gate and up) are the same one of both. A warp copies SPAN chunks of its slice at a time to shared
// memory, STAGES times ahead: the first ones while the previous kernel still runs, and those of the next tiles while it computes.
// It unpacks them to operands of the tensor cores in registers.
//
// A lane has the rows lane / 4 of both units and, of each 16 columns, 4 p to 4 p + 3, where p is its number modulo 4: columns of an
// instruction may be in any order that is the same for both operands.
//
// packed_linear.py defines: BITS (8 or 4), MIDDLE, GROUP and MATRICES as `PackedMatrix` has them; TABLE (whether codes are places in
// the 16 bytes of TABLE_0 to TABLE_3), FLOAT (whether codes are E4M3, with scales in float32); GATED, ACTIVATION, BIASED, ADDED,
// HALF_OUT, EARLY; EIGHTS (of rows of x: 1, 2 or 4), X_SHARED (whether x is copied to shared memory), TILES, SPAN, STAGES, BLOCKS
// (that a multiprocessor has room for).

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int SLICES = 8;
constexpr int THREADS = 32 * SLICES;
constexpr int STEPS = 8;                                     // of 16 columns in a chunk
constexpr int CODE_BYTES = 128 * BITS;                       // of a chunk of a unit
constexpr int SCALE_BYTES = FLOAT ? 4 : 128 / GROUP * 2 * (1 + MIDDLE);  // of a chunk of a row
constexpr int CHUNK_BYTES = CODE_BYTES + 8 * SCALE_BYTES;    // of a unit
constexpr int UNITS = 2 * TILES;
constexpr int STAGE_BYTES = UNITS * SPAN * CHUNK_BYTES;
static_assert(FLOAT ? BITS == 8 && GROUP == 128 && !MIDDLE : GROUP == 16 || GROUP == 32, "a step of 16 columns has one scale");
static_assert(!TABLE || BITS == 4, "a table has 16 values");

__device__ __forceinline__ u32 halves(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

struct Sums {
    float at[4];  // of a row of the first unit with two rows of x, of one of the second unit
};

// Returns the products of 16 columns added to sums: of 16 rows of the matrix with 8 rows of x.
__device__ __forceinline__ Sums added_product(const u32 (&w)[4], uint2 x, Sums c) {
    Sums sum;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(sum.at[0]), "=f"(sum.at[1]), "=f"(sum.at[2]), "=f"(sum.at[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x.x), "r"(x.y), "f"(c.at[0]), "f"(c.at[1]), "f"(c.at[2]), "f"(c.at[3]));
    return sum;
}

// What the previous kernel wrote is read from the L2 cache, where it is.
__device__ __forceinline__ float read(const float* place) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(place) : "memory");
    return value;
}

__device__ __forceinline__ uint2 read(const u16* place) {
    uint2 value;
    asm volatile("ld.global.cg.v2.b32 {%0,%1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(place) : "memory");
    return value;
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

// ── unpacking ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

// Operations on two values in half precision, each rounded once.
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

constexpr u32 ONE = 0x3f803f80u, MINUS_ONE = 0xbf80bf80u, MINUS_136 = 0xc308c308u, MINUS_NOTHING = 0x80008000u;
constexpr u32 TWO_TO_120 = 0x7b807b80u;
constexpr bool BYTES = BITS == 8 || TABLE;  // whether a code, perhaps after a look into the table, is an integer of 8 bits

// Returns two codes: those in the low bits of both halves of a word. The bits of 128 with those of a smaller number in its last
// places are the sum of both.
__device__ __forceinline__ u32 codes_in(u32 word, u32 mask) {
    const u32 low = (word & mask) | 0x43004300u;
    if (!BYTES) return multiply_add(low, ONE, MINUS_136);
    // The last 7 bits and, for a negative code, 128 less.
    return multiply_add((word & 0x00800080u) | 0x43004300u, MINUS_ONE, low);
}

// Returns the values of four 4-bit codes in one half of the bytes of a word (the low or the high bytes of its halves), in the order
// of 8-bit codes. Two instructions look up three bits of each code in one half of the table each, and the fourth bit selects.
__device__ __forceinline__ u32 looked_up(u32 word, int second_bytes) {
    const u32 places = __byte_perm(word, 0, second_bytes ? 0x4431 : 0x4420);
    const u32 low = __byte_perm((u32)TABLE_0, (u32)TABLE_1, places & 0x7777u);
    const u32 high = __byte_perm((u32)TABLE_2, (u32)TABLE_3, places & 0x7777u);
    const u32 is_high = __byte_perm(0x0000ff00u, 0, places >> 3 & 0x1111u);
    return (high & is_high) | (low & ~is_high);
}

// Returns two values of E4M3 (the low bytes of both halves of a word) times a scale, rounded to float32 and then to half precision.
// The bits of E4M3 within those of a number in half precision are its value times 2 ** -120, exactly.
__device__ __forceinline__ u32 scaled_floats(u32 word, float scale) {
    const u32 tiny = (word & 0x007f007fu) << 4 | (word & 0x00800080u) << 8;
    const u32 both = multiply_add(tiny, TWO_TO_120, MINUS_NOTHING);
    return halves(__fmul_rn(__uint_as_float(both << 16), scale), __fmul_rn(__uint_as_float(both & 0xffff0000u), scale));
}

// What a lane reads of a chunk of a unit: its codes, and scales and middles of its row.
struct Raw {
    uint4 codes[BITS / 4];
    u32 scales[SCALE_BYTES / 4];

    __device__ __forceinline__ void read(const char* place, int lane) {
#pragma unroll
        for (int i = 0; i < BITS / 4; i++) codes[i] = *(const uint4*)(place + i * 512 + lane * 16);
        if (FLOAT) scales[0] = *(const u32*)(place + CODE_BYTES + lane / 4 * SCALE_BYTES);
#pragma unroll
        for (int i = 0; i < SCALE_BYTES / 8; i++)
            *(uint2*)&scales[2 * i] = *(const uint2*)(place + CODE_BYTES + lane / 4 * SCALE_BYTES + i * 8);
    }

    // A scale or middle, twice.
    __device__ __forceinline__ u32 scale_at(int i) const { return __byte_perm(scales[i / 2], 0, i % 2 ? 0x3232 : 0x1010); }

    // Computes the values of the four columns of a step. A word has one step of 8-bit codes or two of 4-bit codes.
    __device__ __forceinline__ void unpack(u32& first, u32& second, int step, u32 mask) const {
        const uint4 vector = codes[BITS == 4 ? 0 : step / 4];
        const int at = BITS == 4 ? step / 2 : step % 4, group = step * 16 / GROUP;
        u32 word = at == 0 ? vector.x : at == 1 ? vector.y : at == 2 ? vector.z : vector.w;
        if (FLOAT) {
            first = scaled_floats(word, __uint_as_float(scales[0]));
            second = scaled_floats(word >> 8, __uint_as_float(scales[0]));
            return;
        }
        if (TABLE) word = looked_up(word, step % 2);
        else if (BITS == 4) word >>= step % 2 * 8;
        const u32 scale = scale_at(group * (1 + MIDDLE)), middle = MIDDLE ? scale_at(group * 2 + 1) : MINUS_NOTHING;
        first = multiply_add(codes_in(word, mask), scale, middle);
        second = multiply_add(codes_in(word >> (BYTES ? 8 : 4), mask), scale, middle);
    }
};

// ── the kernel ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
packed_linear(const u16* __restrict__ x, const char* __restrict__ matrix, const float* __restrict__ bias, const float* residual,
              void* out, int rows, int height, int width, int columns, int x_stride, int residual_stride, int out_stride) {
    extern __shared__ __align__(128) char shared[];  // stages of all warps, two buffers for the sums of all slices, x
    if (EARLY) asm volatile("griddepcontrol.launch_dependents;");
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), own = lane / 4, part = lane % 4;
    const int chunks = columns / 128, length = (chunks + SLICES - 1) / SLICES;
    const int first = min(warp * length, chunks), last = min(first + length, chunks);  // of the warp's slice
    const int units = (height + 7) / 8;                       // of each of the matrices, which have this height
    const int ends = (units * MATRICES + UNITS - 1) / UNITS;  // how many times TILES tiles there are
    const int first_row = blockIdx.y * (8 * EIGHTS), own_rows = min(rows - first_row, 8 * EIGHTS);
    const int values = own_rows * (TILES * 16);  // outputs of a block at a time, two of which make a gated one
    char* const stages = shared + warp * (STAGES * STAGE_BYTES);
    float* const sums = (float*)(shared + SLICES * STAGES * STAGE_BYTES);
    char* const x_slice = (char*)(sums + 2 * SLICES * values) + warp * length * own_rows * 256;

    // Copies the next chunks; of what is behind the last tile, nothing.
    int next = blockIdx.x, next_chunk = first, next_stage = 0;
    auto copy = [&]() {
        if (next < ends && first < last) {
            const int size = min(last - next_chunk, SPAN) * CHUNK_BYTES;
#pragma unroll
            for (int i = 0; i < UNITS; i++) {  // a unit that does not exist is any unit: its sums are not used
                const int tile = next * TILES + i / 2;
                const int unit = MATRICES == 2 ? min(tile, units - 1) + i % 2 * units : min(2 * tile + i % 2, units - 1);
                const char* const from = matrix + ((long long)unit * chunks + next_chunk) * CHUNK_BYTES + lane * 16;
                const char* const place = stages + next_stage * STAGE_BYTES + i * (SPAN * CHUNK_BYTES) + lane * 16;
                const u32 to = (u32)__cvta_generic_to_shared(place);
#pragma unroll
                for (int at = 0; at < SPAN * CHUNK_BYTES; at += 512)
                    if (at + lane * 16 < size)
                        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                                     : "memory");
            }
            if (++next_stage == STAGES) next_stage = 0;
            next_chunk += SPAN;
            if (next_chunk >= last) next_chunk = first, next += gridDim.x;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int i = 0; i < STAGES; i++) copy();
    if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");

    // In shared memory, x of a slice is in the order: 32 columns, rows, lanes of a row, two steps, four columns. Else a lane reads
    // what it needs of a chunk one chunk ahead. A row that does not exist is any row: its sums are not used.
    const u16* x_at[EIGHTS];
    uint2 xs[EIGHTS][STEPS];
    if (X_SHARED) {
        for (int i = lane; i < (last - first) * own_rows * 16; i += 32) {
            const int at = i / (own_rows * 4), row = i / 4 % own_rows;
            const u16* const from = x + (long long)(first_row + row) * x_stride + first * 128 + at * 32 + i % 4 * 4;
            const uint2 low = read(from), high = read(from + 16);
            *(uint4*)(x_slice + i * 16) = {low.x, low.y, high.x, high.y};
        }
        __syncwarp();
    } else {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
            x_at[i] = x + (long long)(first_row + min(i * 8 + own, own_rows - 1)) * x_stride + part * 4;
    }
    auto read_x = [&](int chunk, int step) {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            if (X_SHARED) {
                if (step % 2) continue;
                const int row = min(i * 8 + own, own_rows - 1), at = (chunk - first) * 4 + step / 2;
                const uint4 both = *(const uint4*)(x_slice + (at * own_rows + row) * 64 + part * 16);
                xs[i][step] = {both.x, both.y}, xs[i][step + 1] = {both.z, both.w};
            } else {
                xs[i][step] = read(x_at[i] + chunk * 128 + step * 16);
            }
        }
    };

    // The mask of the bits of a code. The compiler would load a constant again and again, so it must not see that it is one.
    const u32 mask = (BYTES ? 0x007f007fu : 0x000f000fu) ^ (u32)(rows >> 31);
    int stage = 0, turn = 0;
    for (int now = blockIdx.x; now < ends; now += gridDim.x, turn++) {
        Sums sum[TILES][EIGHTS] = {};
        if (!X_SHARED && first < last)
#pragma unroll
            for (int step = 0; step < STEPS; step++) read_x(first, step);
        for (int begin = first; begin < last; begin += SPAN) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            __syncwarp();
            const char* place = stages + stage * STAGE_BYTES;
#pragma unroll 1
            for (int chunk = begin; chunk < min(begin + SPAN, last); chunk++, place += CHUNK_BYTES) {
                Raw raw[UNITS];
#pragma unroll
                for (int i = 0; i < UNITS; i++) raw[i].read(place + i * (SPAN * CHUNK_BYTES), lane);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    if (X_SHARED) read_x(chunk, step);
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        u32 w[4];
                        raw[2 * tile].unpack(w[0], w[2], step, mask);
                        raw[2 * tile + 1].unpack(w[1], w[3], step, mask);
#pragma unroll
                        for (int i = 0; i < EIGHTS; i++) sum[tile][i] = added_product(w, xs[i][step], sum[tile][i]);
                    }
                    if (!X_SHARED && chunk + 1 < last) read_x(chunk + 1, step);
                }
            }
            __syncwarp();
            copy();
            if (++stage == STAGES) stage = 0;
        }

        // The sums of all slices: by slice, row of x, tile and row of the tile. The warps take turns in adding them up. There are
        // two buffers: when the warps meet, all of them have read what was in the one that is written next.
        float* const buffer = sums + turn % 2 * (SLICES * values);
#pragma unroll
        for (int i = 0; i < TILES * EIGHTS * 4; i++) {
            const int tile = i / (4 * EIGHTS), row = i / 4 % EIGHTS * 8 + part * 2 + i % 2, at = i % 4 / 2 * 8 + own;
            if (row < own_rows) buffer[warp * values + (row * TILES + tile) * 16 + at] = sum[tile][i / 4 % EIGHTS].at[i % 4];
        }
        __syncthreads();
#pragma unroll 1
        for (int begin = (warp + turn) % SLICES * 32; begin < values; begin += THREADS) {
            const int i = min(begin + lane, values - 1), row = first_row + i / (TILES * 16);
            const int tile = now * TILES + i / 16 % TILES, second = i % 16 / 8;  // unit of the tile
            const int output = GATED ? tile * 8 + i % 8 : tile * 16 + (MATRICES == 2 ? i % 8 * 2 + second : i % 16);
            const bool used = begin + lane < values && output < width && !(GATED && second);
            const float added = ADDED && used ? read(residual + (long long)row * residual_stride + output) : 0.0f;
            float total = 0.0f;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) total = __fadd_rn(total, buffer[slice * values + i]);
            if (BIASED) total = __fadd_rn(total, bias[min(GATED ? 2 * output + second : output, height * MATRICES - 1)]);
            if (GATED) {  // the rows of up are 8 lanes behind those of gate
                const float up = __shfl_down_sync(~0u, total, 8);
                total = __fmul_rn(activated(total), up);
            }
            if (ADDED) total = __fadd_rn(added, total);
            const long long at = (long long)row * out_stride + output;
            if (used && HALF_OUT) ((u16*)out)[at] = (u16)halves(total, 0.0f);
            else if (used) ((float*)out)[at] = total;
        }
    }
}
