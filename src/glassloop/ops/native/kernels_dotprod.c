/* The kernels for dotprod. Compiled with its instructions, run only where gl_select_kernels has found them. */
#if defined(__aarch64__)
#include <arm_neon.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#define GL_NEON
#define GL_DOTPROD
#include "kernels.h"

const gl_kernels *gl_kernels_dotprod(void) {
    static const gl_kernels kernels = KERNELS("dotprod");
    return &kernels;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
