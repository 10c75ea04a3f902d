/* The kernels for the vector instructions that every 64-bit ARM processor has. */
#if defined(__aarch64__)
#define GL_NEON
#include "kernels.h"

const gl_kernels *gl_kernels_neon(void) {
    static const gl_kernels kernels = KERNELS("neon");
    return &kernels;
}
#endif
