// Molecular dynamics: particles in a periodic box, sorted into cells in each step; forces from the 27 cells around, summed in one order.
#include "app.cuh"

constexpr int ROOM = 32; // particles in a cell at most
constexpr float SIDE = 1.0f, CUT2 = 1.0f, DT = 0.002f;

struct Box {
    int cells; // along each side
    __host__ __device__ int all() const { return cells * cells * cells; }
    __host__ __device__ float length() const { return cells * SIDE; }
    __host__ __device__ int cell(float3 p) const {
        int x = static_cast<int>(p.x / SIDE), y = static_cast<int>(p.y / SIDE), z = static_cast<int>(p.z / SIDE);
        x = x >= cells ? cells - 1 : x, y = y >= cells ? cells - 1 : y, z = z >= cells ? cells - 1 : z;
        return (z * cells + y) * cells + x;
    }
};

// Which particles are in which cell, in any order.
__global__ void sort_in(const float3 *positions, int *members, int *counts, int n, Box box) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int cell = box.cell(positions[i]), at = atomicAdd(&counts[cell], 1);
    if (at < ROOM) members[cell * ROOM + at] = i;
}

// The order of their numbers.
__global__ void put_in_order(int *members, const int *counts, Box box) {
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= box.all()) return;
    int *own = members + cell * ROOM, count = min(counts[cell], ROOM);
    for (int i = 1; i < count; i++) {
        int value = own[i], k = i;
        for (; k > 0 && own[k - 1] > value; k--) own[k] = own[k - 1];
        own[k] = value;
    }
    for (int i = count; i < ROOM; i++) own[i] = -1;
}

__host__ __device__ inline float nearest(float d, float length) {
    return d > 0.5f * length ? d - length : d < -0.5f * length ? d + length : d;
}

// A soft repulsion within the cut-off.
__host__ __device__ inline float3 force_on(int i, const float3 *positions, const int *members, Box box) {
    float3 p = positions[i], f = {0, 0, 0};
    int cell = box.cell(p), x = cell % box.cells, y = cell / box.cells % box.cells, z = cell / box.cells / box.cells;
    for (int d = 0; d < 27; d++) {
        int nx = (x + d % 3 - 1 + box.cells) % box.cells, ny = (y + d / 3 % 3 - 1 + box.cells) % box.cells;
        int nz = (z + d / 9 - 1 + box.cells) % box.cells;
        const int *near = members + ((nz * box.cells + ny) * box.cells + nx) * ROOM;
        for (int k = 0; k < ROOM && near[k] >= 0; k++) {
            if (near[k] == i) continue;
            float3 q = positions[near[k]];
            float dx = nearest(p.x - q.x, box.length()), dy = nearest(p.y - q.y, box.length()), dz = nearest(p.z - q.z, box.length());
            float r2 = dx * dx + dy * dy + dz * dz;
            if (r2 >= CUT2 || r2 == 0) continue;
            float s = 20.0f * (CUT2 - r2) / (r2 + 0.1f);
            f.x += s * dx, f.y += s * dy, f.z += s * dz;
        }
    }
    return f;
}

__global__ void forces(const float3 *positions, const int *members, float3 *out, int n, Box box) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = force_on(i, positions, members, box);
}

__host__ __device__ inline float inside(float x, float length) { return x < 0 ? x + length : x >= length ? x - length : x; }

__global__ void advance(float3 *positions, float3 *velocities, const float3 *forces, int n, Box box) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float3 p = positions[i], v = velocities[i], f = forces[i];
    v.x += DT * f.x, v.y += DT * f.y, v.z += DT * f.z;
    p.x = inside(p.x + DT * v.x, box.length()), p.y = inside(p.y + DT * v.y, box.length()), p.z = inside(p.z + DT * v.z, box.length());
    positions[i] = p, velocities[i] = v;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const Box box = {app.pick(6, 56)};
    const int n = box.all() * 4, steps = app.pick(16, 1200), cells = box.all();
    std::vector<float3> start(n), speeds(n);
    for (int i = 0; i < n; i++) {
        auto part = [&](int k) { return static_cast<float>(app::mix(i * 3ull + k) >> 40) / float(1 << 24); };
        int cell = i / 4;
        start[i] = {(cell % box.cells + part(0)) * SIDE, (cell / box.cells % box.cells + part(1)) * SIDE,
                    (cell / box.cells / box.cells + part(2)) * SIDE};
        speeds[i] = {part(7) - 0.5f, part(8) - 0.5f, part(9) - 0.5f};
    }
    float3 *positions = app::device_copy(start), *velocities = app::device_copy(speeds), *pull = app::device_array<float3>(n);
    int *members = app::device_array<int>(size_t(cells) * ROOM), *counts = app::device_array<int>(cells);
    const unsigned grid = app::blocks(n, 128);
    for (int step = 0; step < steps; step++) {
        CHECK(cudaMemsetAsync(counts, 0, cells * 4));
        sort_in<<<grid, 128>>>(positions, members, counts, n, box);
        put_in_order<<<app::blocks(cells, 64), 64>>>(members, counts, box);
        forces<<<grid, 128>>>(positions, members, pull, n, box);
        CHECK_LAUNCH();
        if (step + 1 < steps) advance<<<grid, 128>>>(positions, velocities, pull, n, box);
        CHECK_LAUNCH();
        if (step % 16 == 15) CHECK(cudaDeviceSynchronize());
        app.step();
    }
    // The last step again by the host: the cells, and the forces on some.
    std::vector<int> lists(size_t(cells) * ROOM, -1), full(cells);
    CHECK(cudaMemcpy(start.data(), positions, n * sizeof(float3), cudaMemcpyDeviceToHost));
    bool fits = true;
    for (int i = 0; i < n; i++) {
        int cell = box.cell(start[i]), at = full[cell]++;
        if (at < ROOM) lists[cell * ROOM + at] = i;
        fits = fits && at < ROOM;
    }
    app.expect(fits, "no cell is too full");
    app.equal_device(members, lists.data(), lists.size(), "the cells");
    app.equal_device(counts, full.data(), cells, "the numbers in the cells");
    std::vector<float3> got(n);
    CHECK(cudaMemcpy(got.data(), pull, n * sizeof(float3), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i += 53) {
        float3 want = force_on(i, start.data(), lists.data(), box);
        app.equal(&got[i], &want, 1, "a force");
    }
    app.host(start.data(), n * sizeof(float3));
    app.host(got.data(), n * sizeof(float3));
    app.device(velocities, n * sizeof(float3));
    app.device(members, lists.size() * 4);
    for (float3 *p : {positions, velocities, pull}) CHECK(cudaFree(p));
    CHECK(cudaFree(members));
    CHECK(cudaFree(counts));
    return app.finish();
}
