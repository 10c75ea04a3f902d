/* The kernels for avx512. Compiled with its instructions, run only where gl_select_kernels has found them. */
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif
#define GL_AVX512
#include "kernels.h"

const gl_kernels *gl_kernels_avx512(void) {
    static const gl_kernels kernels = KERNELS("avx512");
    return &kernels;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
