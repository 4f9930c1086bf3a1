// Copies between the whole of an array and packed memory.
#pragma once

#include <cuda_runtime.h>

namespace program {

// Out of the array, or into it: slices of rows of so many bytes, in elements of so many.
inline cudaMemcpy3DParms packed_copy(cudaArray_t array, void *packed, size_t row, size_t rows, size_t slices, size_t element, bool out, cudaMemcpyKind kind) {
    cudaMemcpy3DParms p = {};
    cudaPitchedPtr at = make_cudaPitchedPtr(packed, row, row / element, rows);
    // Extents count elements where an array takes part.
    p.extent = make_cudaExtent(row / element, rows, slices);
    p.kind = kind;
    if (out) p.srcArray = array, p.dstPtr = at;
    else p.dstArray = array, p.srcPtr = at;
    return p;
}

} // namespace program
