/* The kernels in portable C, for any machine. */
#include "kernels.h"

const gl_kernels *gl_kernels_portable(void) {
    static const gl_kernels kernels = KERNELS("portable");
    return &kernels;
}
