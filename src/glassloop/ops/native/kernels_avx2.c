/* The kernels for avx2. Compiled with its instructions, run only where gl_select_kernels has found them. */
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define GL_AVX2
#include "kernels.h"

const gl_kernels *gl_kernels_avx2(void) {
    static const gl_kernels kernels = KERNELS("avx2");
    return &kernels;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
