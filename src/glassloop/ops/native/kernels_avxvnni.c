/* The kernels for avxvnni. Compiled with its instructions, run only where gl_active has found them. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avxvnni")
#define GL_AVXVNNI
#include "kernels.h"

const gl_kernels *gl_kernels_avxvnni(void) {
    static const gl_kernels kernels = KERNELS("avxvnni");
    return &kernels;
}
#endif
