// Hydrodynamics in two dimensions: the compressible equations on a grid of cells with reflecting walls. In each step the fastest wave says
// how long the step may be, which the host reads; then each cell changes by what flows through its four faces.
#include "app.cuh"

constexpr float GAMMA = 1.4f;

struct Cell {
    float density, x, y, energy; // per volume: mass, momentum, energy
};

__host__ __device__ inline float pressure(Cell c) { return (GAMMA - 1.0f) * (c.energy - 0.5f * (c.x * c.x + c.y * c.y) / c.density); }

__host__ __device__ inline float fastest(Cell c) {
    float sound = sqrtf(GAMMA * pressure(c) / c.density);
    return fmaxf(fabsf(c.x), fabsf(c.y)) / c.density + sound;
}

// What flows from a to b through a face across x, after Rusanov.
__host__ __device__ inline Cell flux(Cell a, Cell b) {
    float pa = pressure(a), pb = pressure(b), ua = a.x / a.density, ub = b.x / b.density;
    float s = fmaxf(fabsf(ua) + sqrtf(GAMMA * pa / a.density), fabsf(ub) + sqrtf(GAMMA * pb / b.density));
    Cell f;
    f.density = 0.5f * (a.x + b.x - s * (b.density - a.density));
    f.x = 0.5f * (a.x * ua + pa + b.x * ub + pb - s * (b.x - a.x));
    f.y = 0.5f * (a.y * ua + b.y * ub - s * (b.y - a.y));
    f.energy = 0.5f * ((a.energy + pa) * ua + (b.energy + pb) * ub - s * (b.energy - a.energy));
    return f;
}

__host__ __device__ inline Cell turned(Cell c) { return {c.density, c.y, c.x, c.energy}; }

// The neighbour at (x, y); behind a wall it is the same with its speed reversed.
__host__ __device__ inline Cell at(const Cell *cells, int n, int x, int y, Cell own) {
    if (x < 0 || x >= n) return {own.density, -own.x, own.y, own.energy};
    if (y < 0 || y >= n) return {own.density, own.x, -own.y, own.energy};
    return cells[size_t(y) * n + x];
}

__host__ __device__ inline Cell advanced(const Cell *cells, int n, int x, int y, float dt) {
    Cell c = cells[size_t(y) * n + x];
    Cell l = flux(at(cells, n, x - 1, y, c), c), r = flux(c, at(cells, n, x + 1, y, c));
    Cell d = turned(flux(turned(at(cells, n, x, y - 1, c)), turned(c))), u = turned(flux(turned(c), turned(at(cells, n, x, y + 1, c))));
    c.density += dt * (l.density - r.density + d.density - u.density);
    c.x += dt * (l.x - r.x + d.x - u.x);
    c.y += dt * (l.y - r.y + d.y - u.y);
    c.energy += dt * (l.energy - r.energy + d.energy - u.energy);
    return c;
}

// The fastest wave of all: positive floats are in the order of their bits.
__global__ void wave(const Cell *cells, int count, unsigned *most) {
    __shared__ unsigned best;
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    unsigned own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        own = max(own, __float_as_uint(fastest(cells[i])));
    atomicMax(&best, own);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(most, best);
}

__global__ void advance(const Cell *from, Cell *to, int n, float dt) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < n && y < n) to[size_t(y) * n + x] = advanced(from, n, x, y, dt);
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int n = app.pick(40, 1536), steps = app.pick(40, 4000), count = n * n;
    std::vector<Cell> start(count);
    for (int y = 0; y < n; y++) {
        for (int x = 0; x < n; x++) {
            // A dense corner, as in CloverLeaf's first problem, and a little noise.
            bool dense = x < n / 3 && y < n / 5;
            float noise = static_cast<float>(app::mix(y * n + x) >> 44) / float(1 << 24);
            start[y * n + x] = {(dense ? 1.0f : 0.2f) + noise, 0, 0, dense ? 2.5f : 0.25f};
        }
    }
    Cell *from = app::device_copy(start), *to = app::device_copy(start);
    unsigned *most = app::device_array<unsigned>(1), *most_here;
    CHECK(cudaMallocHost(&most_here, 4));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    const dim3 block(32, 4), grid(app::blocks(n, 32), app::blocks(n, 4));
    float dt = 0;
    double time = 0;
    for (int step = 0; step < steps; step++) {
        CHECK(cudaMemsetAsync(most, 0, 4, stream));
        wave<<<std::min(app::blocks(count, 256), 256u), 256, 0, stream>>>(from, count, most);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(most_here, most, 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        float speed;
        std::memcpy(&speed, most_here, 4);
        dt = 0.2f / speed;
        time += dt;
        advance<<<grid, block, 0, stream>>>(from, to, n, dt);
        CHECK_LAUNCH();
        std::swap(from, to);
        app.step();
    }
    CHECK(cudaStreamSynchronize(stream));
    std::vector<Cell> last(count);
    CHECK(cudaMemcpy(last.data(), from, count * sizeof(Cell), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(start.data(), to, count * sizeof(Cell), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i += 7) {
        Cell want = advanced(start.data(), n, i % n, i / n, dt);
        app.equal(&last[i], &want, 1, "a cell of the last step");
    }
    double mass = 0, before = 0;
    for (int i = 0; i < count; i++) mass += last[i].density, before += start[i].density;
    app.expect(mass > 0 && mass - before < 1e-3 * before && before - mass < 1e-3 * before, "mass stays what it is");
    app.host(&time, sizeof time);
    app.host(last.data(), count * sizeof(Cell));
    app.host(start.data(), count * sizeof(Cell));
    app.host(most_here, 4);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    CHECK(cudaFree(most));
    CHECK(cudaFreeHost(most_here));
    return app.finish();
}
