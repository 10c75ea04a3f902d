/* The kernels for i8mm. Compiled with its instructions, run only where gl_select_kernels has found them. */
#if defined(__aarch64__)
#include <arm_neon.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif
#define GL_NEON
#define GL_DOTPROD
#define GL_I8MM
#include "kernels.h"

const gl_kernels *gl_kernels_i8mm(void) {
    static const gl_kernels kernels = KERNELS("i8mm");
    return &kernels;
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
