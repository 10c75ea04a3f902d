// The product of a few rows with a packed matrix, in the order of `linear_kernel` of linear.py: each sum runs over the columns in
// ascending steps of 16 in one float32 accumulator. Few rows should take no longer than reading the matrix.
//
// A block of 16 warps runs on each multiprocessor and computes tiles of 16 rows of the matrix. A chunk is 128 * SPAN columns of a
// tile. Warp w has the chunks c of every tile with c % 16 == w: it reads their codes, which do not depend on the previous kernel,
// straight into registers and unpacks them to operands of the tensor cores, before it needs the sums. These pass through the
// warps in a ring: warp c % 16 gets the sums of a tile over the chunks before c from its predecessor by a mailbox in shared
// memory, adds its chunk and sends them on. Chunk 0 begins with zeros; the warp that has the last chunk writes the outputs.
//
// All warps take their chunks in the same order: for each TILES tiles of the block, for each 16 chunks, for each of these tiles.
// So the sums reach a warp in the order in which it takes them, and 15 passes on to 0 what 0 needs in the next 16 chunks. Sums
// of at most 2 * TILES tiles are on the way at a time, fewer than the ring has places for, so there is always a warp that can
// go on.
//
// Columns of an instruction may be in any order that is the same for both operands. A lane has the columns 4 p to 4 p + 3 of
// each 16, where p is its number modulo 4. Codes and x are stored so that a lane finds its columns of several steps in a row:
// `Packed` of matrix.py says how.
//
// few_rows.py defines: BITS (8 or 4), MINIMUM, WIDE_SCALES, ZERO, GROUP, GATED, ACTIVATION, BIASED, ADDED, HALF_OUT, MANY (more
// than 8 rows), X_GLOBAL (x does not fit the shared memory), X_AHEAD (x is read before the sums have come), EARLY, TILES,
// SPAN, DEPTH (chunks that a warp reads ahead), ENTRIES (of a mailbox), BLOCKS (that a multiprocessor has room for).

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

constexpr int WARPS = 16;
constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = 8 * SPAN;                                     // of 16 columns in a chunk
constexpr int VECTORS = SPAN * BITS / 4;                            // of 16 bytes of codes that a lane reads of a row of a chunk
constexpr int SCALES = 128 * SPAN / GROUP;                          // of a row of a chunk
constexpr int SCALE_WORDS = WIDE_SCALES ? SCALES : SCALES / 2;
constexpr int HALVES = 1 + MANY;                                    // of 8 rows of x
constexpr int SUM_BYTES = 512 * HALVES;                             // of a tile
constexpr int ENTRY_BYTES = SUM_BYTES + 16;                         // two barriers follow: of a full entry and of an empty one
constexpr int MAIL_BYTES = WARPS * ENTRIES * ENTRY_BYTES;
static_assert(2 * TILES <= WARPS * ENTRIES, "sums would wait for each other");
static_assert(GROUP == 16 || GROUP == 32, "a word of 4-bit codes has one or two scales");
static_assert(DEPTH >= 1 && DEPTH <= 3, "each is a call");
static_assert(BITS == 8 ? ZERO == 0 : !(MINIMUM && ZERO), "a value has one of both");

__device__ __forceinline__ u32 halves(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Adds the products of 16 columns: of 16 rows of the matrix with 8 rows of x.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const u32 (&w)[4], u32 x0, u32 x1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
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

__device__ __forceinline__ uint4 read(const uint4* place) {
    uint4 value;
    asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(place)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint2 read(const uint2* place) {
    uint2 value;
    asm volatile("ld.global.cg.v2.b32 {%0,%1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(place) : "memory");
    return value;
}

__device__ __forceinline__ void store_8(u32 to, u32 a, u32 b) {
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(a), "r"(b) : "memory");
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

// What a lane reads of a chunk: of two rows, the one of its number / 4 and the 8th after it.
struct Raw {
    uint4 codes[2][VECTORS];
    u32 scales[2][SCALE_WORDS], minimums[2][MINIMUM ? SCALE_WORDS : 1];
};

// A part of the matrix, which no kernel writes; it is read when the instruction is reached, though nothing depends on it.
__device__ __forceinline__ uint4 read_codes(const char* place) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(place));
    return value;
}

__device__ __forceinline__ void read_scales(u32* to, const char* place) {
    if constexpr (SCALE_WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < SCALE_WORDS; i += 4)
            asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3])
                         : "l"(place + 4 * i));
    } else {
        asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(place));
    }
}

__device__ __forceinline__ float scale_at(const u32* scales, int i) {
    if (WIDE_SCALES) return __uint_as_float(scales[i]);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)(scales[i / 2] >> (i % 2 * 16))));
    return value;
}

// Powers of two by which the values of the matrix are smaller here than they are, and those of x larger; this changes no product.
constexpr int SHIFT = 48;
constexpr float SHRUNK = 1.0f / (1ull << SHIFT);

// Computes two values from codes. A code is the bits of a float32 below 2^-125: it is the code times 2^-149, and `by` is the
// scale times 2^(149 - SHIFT) or, where the code is 16^i times as large, as much smaller. Its product with a scale of at most 20
// bits is exact. `zero` is the value of a code of 0.
__device__ __forceinline__ u32 unpack_two(u32 codes, int first, const float (&by)[4], float zero, float minimum) {
    float value[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = first + j;
        const float code = __uint_as_float(BITS == 4 ? codes & 15u << (4 * i) : __byte_perm(codes, 0, 0x4440 + i));
        value[j] = __fmaf_rn(code, by[BITS == 4 ? i : 0], zero);
        if (BITS == 8 && MINIMUM) value[j] = __fadd_rn(value[j], minimum);
    }
    return halves(value[0], value[1]);
}

// Unpacks a chunk to operands of the tensor cores, for each step: the first two columns of both rows, the last two of both.
__device__ __forceinline__ void unpack(u32 (&to)[STEPS][4], const Raw& raw) {
    constexpr float STRETCHED = 2.535301200456459e30f;  // 2^(149 - SHIFT)
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float by[4], zero = 0.0f, minimum = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s % (GROUP / 16) == 0) {
                const float scale = scale_at(raw.scales[row], s * 16 / GROUP);
                by[0] = __fmul_rn(scale, STRETCHED);
                by[1] = __fmul_rn(scale, STRETCHED / 16.0f);
                by[2] = __fmul_rn(scale, STRETCHED / 256.0f);
                by[3] = __fmul_rn(scale, STRETCHED / 4096.0f);
                if (MINIMUM) minimum = __fmul_rn(scale_at(raw.minimums[row], s * 16 / GROUP), SHRUNK);
                zero = BITS == 4 && MINIMUM ? minimum : __fmul_rn(scale, -(BITS == 8 ? 128.0f : ZERO) * SHRUNK);
            }
            constexpr int OF_WORD = BITS == 4 ? 2 : 1;  // steps
            const uint4 vector = raw.codes[row][s / (4 * OF_WORD)];
            const int at = s / OF_WORD % 4;
            const u32 word = at == 0 ? vector.x : at == 1 ? vector.y : at == 2 ? vector.z : vector.w;
            const u32 four = BITS == 4 ? word >> (s % 2 * 16) : word ^ 0x80808080u;
            to[s][row] = unpack_two(four, 0, by, zero, minimum);
            to[s][2 + row] = unpack_two(four, 2, by, zero, minimum);
            asm volatile("" : "+r"(to[s][row]), "+r"(to[s][2 + row]));  // computed here, and not where it is used
        }
    }
}

// Returns two values of x, 2^SHIFT times as large.
__device__ __forceinline__ u32 stretched(u32 two) {
    static_assert(SHIFT == 48, "the factor is 2^48 twice, in half precision");
    u32 made;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(two), "r"(0x57805780u), "r"(0x80008000u));
    return made;
}

// The place of four columns of a row of x in shared memory: a lane finds those of two steps in a row.
__device__ __forceinline__ u32 x_at(int column) { return column / 32 * 64 + column / 4 % 4 * 16 + column / 16 % 2 * 8; }

// ── the kernel ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

// A chunk of a tile of the block; the tiles from `first` to `end` are taken together.
struct Cursor {
    int number, chunk, first, end;

    __device__ __forceinline__ void advance(int warp, int chunks, int tiles) {
        if (++number < end) return;
        number = first;
        if ((chunk += WARPS) < chunks) return;
        chunk = warp;
        number = first = end;
        end = min(end + TILES, tiles);
    }
};

// The next entry of the mailbox that a warp reads from, or of the one that it sends to.
struct Mail {
    u32 place, phase;  // the parity of the phase in which it is full

    __device__ __forceinline__ void advance(u32 first) {
        place += ENTRY_BYTES;
        if (place == first + ENTRIES * ENTRY_BYTES) place = first, phase ^= 1;
    }
};
constexpr int FULL = SUM_BYTES, EMPTY = SUM_BYTES + 8;  // barriers of an entry

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
few_rows(const void* __restrict__ x, const char* __restrict__ weight, const char* __restrict__ scales,
         const char* __restrict__ minimums, const float* __restrict__ bias, const float* residual, void* out, int rows,
         int width, int columns, int x_stride, int residual_stride, int out_stride) {
    extern __shared__ __align__(1024) char shared[];  // mailboxes, x
    if (EARLY) asm volatile("griddepcontrol.launch_dependents;");
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that it is uniform
    const u32 mail = (u32)__cvta_generic_to_shared(shared);
    char* const x_place = shared + MAIL_BYTES;
    const int x_pitch = columns * 2 + 64;  // bytes of a row of x, so that rows begin in different banks
    const int weight_rows = GATED ? 2 * width : width;
    const int tiles = (weight_rows + 15) / 16, chunks = columns / (128 * SPAN);
    // Tiles of this block: its number, and so on in steps of the number of blocks.
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    if (own_tiles <= 0) return;
    auto tile_at = [&](int number) { return number * (int)gridDim.x + (int)blockIdx.x; };
    if (threadIdx.x < WARPS * ENTRIES) {
        set_barrier(mail + threadIdx.x * ENTRY_BYTES + FULL, 1);
        set_barrier(mail + threadIdx.x * ENTRY_BYTES + EMPTY, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // A lane's part of a tensor core instruction: two rows of the matrix (`own` and 8 further on), and of each 16 columns four.
    const int own = lane / 4, part = lane % 4;
    const Cursor first = {warp < chunks ? 0 : own_tiles, warp, 0, min(TILES, own_tiles)};
    Cursor next = first;  // to be read
    const char* const codes = weight + part * 16;
    auto load = [&](Raw& to) {
        if (next.number >= own_tiles) return;
        const int row = tile_at(next.number) * 16 + own;
#pragma unroll
        for (int i = 0; i < 2; i++) {  // a row that does not exist is any row: its sums are not used
            const u32 item = (u32)min(row + i * 8, weight_rows - 1) * chunks + next.chunk;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) to.codes[i][v] = read_codes(codes + (u64)item * (64 * VECTORS) + v * 64);
            read_scales(to.scales[i], scales + (u64)item * (4 * SCALE_WORDS));
            if (MINIMUM) read_scales(to.minimums[i], minimums + (u64)item * (4 * SCALE_WORDS));
        }
        next.advance(warp, chunks, own_tiles);
    };
    Raw raw[DEPTH] = {};
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load(raw[i]);
    u32 w[STEPS][4];
    unpack(w, raw[0]);
    load(raw[0]);

    if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (!X_GLOBAL) {
        for (int row = 0; row < rows; row++)
            for (int i = threadIdx.x; i < columns / 8; i += THREADS) {
                const uint4 eight = read((const uint4*)((const u16*)x + (long long)row * x_stride) + i);
                char* const to = x_place + row * x_pitch + x_at(i * 8);
                *(uint2*)to = make_uint2(stretched(eight.x), stretched(eight.y));
                *(uint2*)(to + 16) = make_uint2(stretched(eight.z), stretched(eight.w));
            }
    }
    __syncthreads();

    const char* x_lane[HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++) {  // rows that do not exist are any rows: their sums are not used
        const int row = min(half * 8 + own, rows - 1);
        x_lane[half] = X_GLOBAL ? (const char*)x + ((long long)row * x_stride + part * 4) * 2 : x_place + row * x_pitch + part * 16;
    }
    u32 xs[HALVES][STEPS][2];
    Cursor now = first;
    auto read_x = [&]() {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const char* const place = x_lane[half] + now.chunk * (256 * SPAN);
#pragma unroll
            for (int s = 0; s < STEPS; s += 2) {
                if (X_GLOBAL) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint2 four = read((const uint2*)(place + (s + i) * 32));
                        xs[half][s + i][0] = stretched(four.x), xs[half][s + i][1] = stretched(four.y);
                    }
                } else {
                    const uint4 both = *(const uint4*)(place + s * 32);
                    xs[half][s][0] = both.x, xs[half][s][1] = both.y, xs[half][s + 1][0] = both.z, xs[half][s + 1][1] = both.w;
                }
            }
        }
    };
    const u32 inbox = mail + warp * (ENTRIES * ENTRY_BYTES), outbox = mail + (warp + 1) % WARPS * (ENTRIES * ENTRY_BYTES);
    Mail received = {inbox, 0}, sent = {outbox, 0};
    const u32 lane_place = lane * 16;
    // Adds a chunk and unpacks the following one. Returns whether there was one.
    auto add = [&](Raw& following) {
        if (now.number >= own_tiles) return false;
        const bool begins = now.chunk == 0, ends = now.chunk == chunks - 1;
        const int tile = tile_at(now.number);
        float sum[HALVES][4] = {};
        float added[HALVES][4] = {};  // the residual, read before it is needed
        auto row_at = [&](int half, int i) { return half * 8 + part * 2 + i % 2; };
        auto weight_row_at = [&](int i) { return tile * 16 + own + i / 2 * 8; };
        auto output_at = [&](int i) { return GATED ? weight_row_at(i) / 2 : weight_row_at(i); };
        auto is_used = [&](int half, int i) {
            return row_at(half, i) < rows && weight_row_at(i) < weight_rows && !(GATED && own % 2);
        };
        if (X_GLOBAL ? now.number == now.first : X_AHEAD) read_x();
        if (!ends) {
            wait(sent.place + EMPTY, sent.phase ^ 1);  // a new barrier has the parity of an emptied one
        } else if (ADDED) {
#pragma unroll
            for (int i = 0; i < 4 * HALVES; i++)
                if (is_used(i / 4, i % 4))
                    added[i / 4][i % 4] =
                        read(residual + (long long)row_at(i / 4, i % 4) * residual_stride + output_at(i % 4));
        }
        if (!begins) {
            wait(received.place + FULL, received.phase);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                             : "=f"(sum[half][0]), "=f"(sum[half][1]), "=f"(sum[half][2]), "=f"(sum[half][3])
                             : "r"(received.place + lane_place + half * 512)
                             : "memory");
        }
        if (!X_GLOBAL && !X_AHEAD) read_x();
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int half = 0; half < HALVES; half++) multiply_add(sum[half], w[s], xs[half][s][0], xs[half][s][1]);
        if (!ends) {
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(sent.place + lane_place + half * 512),
                             "f"(sum[half][0]), "f"(sum[half][1]), "f"(sum[half][2]), "f"(sum[half][3])
                             : "memory");
            __syncwarp();
            if (lane == 0) arrive(sent.place + FULL);
            sent.advance(outbox);
        }
        if (!begins) {
            if (ends) __syncwarp();
            if (lane == 0) arrive(received.place + EMPTY);
            received.advance(inbox);
        }
        if (ends) {
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
        unpack(w, following);
        load(following);
        now.advance(warp, chunks, own_tiles);
        return true;
    };
    while (add(raw[1 % DEPTH]) && (DEPTH < 2 || add(raw[2 % DEPTH])) && (DEPTH < 3 || add(raw[3 % DEPTH]))) continue;
}
