// The kernels of orbit. The program carries them as PTX, so that it can be built without nvcc:
//   nvcc -arch=compute_75 -ptx -O3 -o - orbit.cu | sed 's/^.version .*/.version 6.5/; s/^.global/.visible .global/' > orbit.ptx
// (nothing in it is younger than PTX 6.5, and the program asks for the variables by name).
//
// Every operation is rounded once and in a fixed order, so all devices compute the same bits; host.rs repeats it.
#include <cstdint>

constexpr int BODIES = 128;
constexpr int HALF = BODIES / 2;
constexpr float SOFTENING = 0.0625f;
constexpr float STEP = 0.0009765625f;

extern "C" {

// Where the bodies are now and where they go next: addresses in device memory, which a move must keep true.
__device__ float4 *tracks[2];
// How often a body was seen in each octant.
__device__ unsigned int octants[8];
// Steps that each half has made.
__device__ unsigned int steps_done[2];

__global__ void begin(float4 *even, float4 *odd) {
    tracks[0] = even;
    tracks[1] = odd;
}

// One step of one half of the bodies under the pull of all.
__global__ void advance(float4 *velocity, int from, int half) {
    int i = half * HALF + blockIdx.x * blockDim.x + threadIdx.x;
    const float4 *here = tracks[from];
    float4 *there = tracks[1 - from];
    float4 p = here[i], v = velocity[i];
    float ax = 0, ay = 0, az = 0;
    #pragma unroll 1
    for (int j = 0; j < BODIES; j++) {
        float4 q = here[j];
        float dx = __fsub_rn(q.x, p.x), dy = __fsub_rn(q.y, p.y), dz = __fsub_rn(q.z, p.z);
        float d2 = __fmaf_rn(dx, dx, __fmaf_rn(dy, dy, __fmaf_rn(dz, dz, SOFTENING)));
        float pull = __fmul_rn(q.w, __frcp_rn(d2));
        ax = __fmaf_rn(pull, dx, ax);
        ay = __fmaf_rn(pull, dy, ay);
        az = __fmaf_rn(pull, dz, az);
    }
    v.x = __fmaf_rn(ax, STEP, v.x);
    v.y = __fmaf_rn(ay, STEP, v.y);
    v.z = __fmaf_rn(az, STEP, v.z);
    p.x = __fmaf_rn(v.x, STEP, p.x);
    p.y = __fmaf_rn(v.y, STEP, p.y);
    p.z = __fmaf_rn(v.z, STEP, p.z);
    velocity[i] = v;
    there[i] = p;
    atomicAdd(&octants[(p.x > 0 ? 1 : 0) | (p.y > 0 ? 2 : 0) | (p.z > 0 ? 4 : 0)], 1u);
    if (i % HALF == 0) atomicAdd(&steps_done[half], 1u);
}

// Changes a few words of a large memory, so that there is much to carry and little that changed last.
__global__ void twinkle(uint32_t *sky, uint32_t words, uint32_t step) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t at = (i * 40503u + step * 2654435761u) % words;
    atomicXor(&sky[at], (step + 1) * 2246822519u ^ i);
}

}
