/* The kernels for avxvnni. Compiled with its instructions, run only where gl_select_kernels has found them. */
#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif
#define GL_AVXVNNI
#include "kernels.h"

const gl_kernels *gl_kernels_avxvnni(void) {
    static const gl_kernels kernels = KERNELS("avxvnni");
    return &kernels;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
