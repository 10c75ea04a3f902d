/* The kernels for avx2. Compiled with its instructions, run only where gl_active has found them. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define GL_AVX2
#include "kernels.h"

const gl_kernels *gl_kernels_avx2(void) {
    static const gl_kernels kernels = KERNELS("avx2");
    return &kernels;
}
#endif
