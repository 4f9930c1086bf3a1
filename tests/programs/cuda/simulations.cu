// The state of four simulations as programs keep it, changed in a few places per step: spins of a lattice, a mesh whose edges flip,
// particles that bounce off walls and are kept in order, weights of an embedding with the moments of their optimiser. The host runs
// the same simulations on a model of all the memory, and compares all of it at the end.
#include "program.cuh"
#include "until.cuh"

#include <cmath>

constexpr int BLOCK = 128;

// Single roundings in a fixed order, on host and device.
__host__ __device__ inline float times(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

__host__ __device__ inline float plus(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

__host__ __device__ inline float over(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

__host__ __device__ inline float root(float a) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(a);
#else
    return std::sqrt(a);
#endif
}

__host__ __device__ inline void count(uint32_t &counter, uint32_t amount) {
#ifdef __CUDA_ARCH__
    atomicAdd(&counter, amount);
#else
    counter += amount;
#endif
}

__host__ __device__ inline void exchange(float &a, float &b) {
    const float was = a;
    a = b, b = was;
}

__host__ __device__ inline uint64_t draw(int what, uint64_t step, uint64_t i) { return program::mix((step << 24) + (uint64_t(what) << 20) + i); }

// ---- spins of +-1, with periodic edges: a few rows of one colour of the checkerboard at a time

constexpr uint32_t WIDTH = 1024, HEIGHT = 160, ROWS = 4;

struct Lattice {
    float *spins;
};

__host__ __device__ inline void advance(const Lattice &l, uint64_t step, uint32_t i) {
    const uint32_t row = static_cast<uint32_t>(step / 2 * ROWS + i / (WIDTH / 2)) % HEIGHT, column = i % (WIDTH / 2) * 2 + (row + step) % 2;
    auto at = [&](uint32_t r, uint32_t c) -> float & { return l.spins[r % HEIGHT * WIDTH + c % WIDTH]; };
    float &spin = at(row, column);
    const float around = plus(plus(at(row + 1, column), at(row + HEIGHT - 1, column)), plus(at(row, column + 1), at(row, column + WIDTH - 1)));
    const float energy = times(spin, around);
    // exp(-2 E / T) at T = 2, in 1024ths.
    const uint64_t chance = energy <= 0 ? 1024 : energy <= 2 ? 138 : 18;
    if (draw(0, step, i) % 1024 < chance) spin = -spin;
}

// ---- a mesh of quads, two triangles each, whose diagonals flip; vertices know how many triangles meet in them

constexpr uint32_t SIDE = 96, QUADS = SIDE * SIDE, VERTICES = (SIDE + 1) * (SIDE + 1), QUADS_AT_A_TIME = 256;

struct Mesh {
    float *positions;    // x, y, z of each vertex
    uint32_t *triangles; // three vertices each
    uint32_t *valences;
};

__host__ __device__ inline void advance(const Mesh &m, uint64_t step, uint32_t i) {
    // An odd stride: no quad twice.
    const uint32_t quad = static_cast<uint32_t>((step * QUADS_AT_A_TIME + i) * 37 % QUADS);
    const uint64_t random = draw(1, step, i);
    if (random % 4 != 0) return;
    const uint32_t a = quad / SIDE * (SIDE + 1) + quad % SIDE, b = a + 1, c = b + SIDE + 1, d = a + SIDE + 1;
    uint32_t *t = m.triangles + quad * 6;
    if (t[1] == b && t[2] == c) {
        const uint32_t flipped[6] = {a, b, d, b, c, d};
        for (int k = 0; k < 6; k++) t[k] = flipped[k];
        count(m.valences[a], -1u), count(m.valences[c], -1u), count(m.valences[b], 1), count(m.valences[d], 1);
    } else {
        const uint32_t usual[6] = {a, b, c, a, c, d};
        for (int k = 0; k < 6; k++) t[k] = usual[k];
        count(m.valences[a], 1), count(m.valences[c], 1), count(m.valences[b], -1u), count(m.valences[d], -1u);
    }
    // The vertex is this quad's own: mirrored.
    float *p = m.positions + a * 3;
    p[random >> 8 & 1] = -p[random >> 8 & 1];
    if (random >> 9 & 1) p[2] = -p[2];
}

// ---- particles in arrays, bouncing in a box; neighbours in the list change places to stay in order of their cells

constexpr uint32_t PARTICLES = 16384, PAIRS_AT_A_TIME = 512, CELLS = 64;

struct Particles {
    float *x, *y, *vx, *vy;
    uint32_t *cells; // how many are in each column of the box
};

__host__ __device__ inline uint32_t cell(float x) {
    const float scaled = times(x, float(CELLS));
    return scaled <= 0 ? 0 : scaled >= CELLS - 1 ? CELLS - 1 : static_cast<uint32_t>(scaled);
}

__host__ __device__ inline void advance(const Particles &p, uint64_t step, uint32_t i) {
    const uint64_t round = step / (PARTICLES / PAIRS_AT_A_TIME / 2);
    // Pairs begin at an even place in one round, at an odd one in the next.
    const uint32_t one = static_cast<uint32_t>(((step * PAIRS_AT_A_TIME + i) * 2 + round % 2) % PARTICLES), two = (one + 1) % PARTICLES;
    for (uint32_t k : {one, two}) {
        const uint32_t before = cell(p.x[k]);
        p.x[k] = plus(p.x[k], times(p.vx[k], 0.01f));
        p.y[k] = plus(p.y[k], times(p.vy[k], 0.01f));
        if ((p.x[k] < 0 && p.vx[k] < 0) || (p.x[k] > 1 && p.vx[k] > 0)) p.vx[k] = -p.vx[k];
        if ((p.y[k] < 0 && p.vy[k] < 0) || (p.y[k] > 1 && p.vy[k] > 0)) p.vy[k] = -p.vy[k];
        const uint32_t after = cell(p.x[k]);
        if (before != after) count(p.cells[before], -1u), count(p.cells[after], 1);
    }
    if (one > two || cell(p.x[one]) <= cell(p.x[two])) return;
    exchange(p.x[one], p.x[two]), exchange(p.y[one], p.y[two]);
    exchange(p.vx[one], p.vx[two]), exchange(p.vy[one], p.vy[two]);
}

// ---- an embedding whose rows get gradients now and then; Adam keeps two moments for each weight

constexpr uint32_t COLUMNS = 64, TABLE = 1024 * COLUMNS, ROWS_AT_A_TIME = 8;

struct Optimiser {
    float *weights, *first, *second;
    uint32_t *updates; // of each row
};

__host__ __device__ inline void advance(const Optimiser &o, uint64_t step, uint32_t i) {
    const uint64_t slot = i / COLUMNS;
    // Slots have rows of their own.
    const uint32_t row = static_cast<uint32_t>(draw(2, step, slot) % (TABLE / COLUMNS / ROWS_AT_A_TIME) * ROWS_AT_A_TIME + slot);
    const uint32_t at = row * COLUMNS + i % COLUMNS;
    const uint64_t random = draw(3, step, i);
    // Most gradients of a rectified layer are zero, and their sign is as likely one as the other.
    const float gradient = random % 8 > 2 ? 0 : times(static_cast<float>(static_cast<int>(random >> 40 & 2047) - 1023), 1.0f / 1024);
    o.first[at] = plus(times(o.first[at], 0.9f), times(gradient, 0.1f));
    o.second[at] = plus(times(o.second[at], 0.999f), times(times(gradient, gradient), 0.001f));
    const float change = over(o.first[at], plus(root(o.second[at]), 1e-8f));
    o.weights[at] = plus(o.weights[at], times(change, -0.001f));
    if (i % COLUMNS == 0) count(o.updates[row], 1);
}

// ----

template <class Simulation> __global__ void advance_all(Simulation s, uint64_t step, uint32_t threads) {
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < threads) advance(s, step, i);
}

// One step on the device, and on the host's model.
template <class Simulation> void both(const Simulation &device, const Simulation &model, uint64_t step, uint32_t threads, cudaStream_t stream) {
    advance_all<<<(threads + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(device, step, threads);
    CHECK_LAUNCH();
    for (uint32_t i = 0; i < threads; i++) advance(model, step, i);
}

// All the memory: every allocation with its model.
class Arrays {
  public:
    // An array of words, filled by the host; its address on the device and that of its model.
    template <class T, class F> std::pair<T *, T *> make(const char *name, uint32_t n, F value) {
        static_assert(sizeof(T) == 4, "words");
        arrays_.push_back({name, nullptr, std::vector<uint32_t>(n)});
        Array &a = arrays_.back();
        T *model = reinterpret_cast<T *>(a.want.data());
        for (uint32_t i = 0; i < n; i++) model[i] = value(i);
        CHECK(cudaMalloc(&a.device, n * 4));
        CHECK(cudaMemcpy(a.device, model, n * 4, cudaMemcpyHostToDevice));
        return {static_cast<T *>(a.device), model};
    }
    void end(program::Report &report, bool digests) {
        for (Array &a : arrays_) {
            report.expect_device(a.name, a.device, a.want.data(), a.want.size() * 4);
            if (digests) report.allocation(a.name, a.device, a.want.size() * 4);
            CHECK(cudaFree(a.device));
        }
    }

  private:
    struct Array {
        const char *name;
        void *device;
        std::vector<uint32_t> want;
    };
    std::vector<Array> arrays_;
};

int main(int argc, char **argv) {
    const program::Until until(argc, argv);
    program::Options options(argc, argv, 400);
    program::Report report;
    program::Window window;
    Arrays arrays;
    auto unit = [](int what, uint32_t i) { return static_cast<float>(program::mix(uint64_t(what) << 32 | i) >> 40) / (1 << 24); };

    auto [spins, spins_here] = arrays.make<float>("spins", WIDTH * HEIGHT, [&](uint32_t i) { return unit(1, i) < 0.5f ? -1.0f : 1.0f; });
    auto [positions, positions_here] = arrays.make<float>("positions", VERTICES * 3, [&](uint32_t i) { return unit(2, i); });
    auto corner = [](uint32_t i) {
        const uint32_t a = i / 6 / SIDE * (SIDE + 1) + i / 6 % SIDE, corners[6] = {a, a + 1, a + SIDE + 2, a, a + SIDE + 2, a + SIDE + 1};
        return corners[i % 6];
    };
    auto [triangles, triangles_here] = arrays.make<uint32_t>("triangles", QUADS * 6, corner);
    auto [valences, valences_here] = arrays.make<uint32_t>("valences", VERTICES, [](uint32_t) { return 100000; });
    auto [x, x_here] = arrays.make<float>("x", PARTICLES, [&](uint32_t i) { return unit(3, i); });
    auto [y, y_here] = arrays.make<float>("y", PARTICLES, [&](uint32_t i) { return unit(4, i); });
    auto [vx, vx_here] = arrays.make<float>("vx", PARTICLES, [&](uint32_t i) { return unit(5, i) - 0.5f; });
    auto [vy, vy_here] = arrays.make<float>("vy", PARTICLES, [&](uint32_t i) { return unit(6, i) - 0.5f; });
    // Only changes are counted: the first value keeps every count above zero.
    auto [cells, cells_here] = arrays.make<uint32_t>("cells", CELLS, [](uint32_t) { return PARTICLES; });
    auto [weights, weights_here] = arrays.make<float>("weights", TABLE, [&](uint32_t i) { return unit(7, i) - 0.5f; });
    auto [first, first_here] = arrays.make<float>("first moments", TABLE, [](uint32_t) { return 0.0f; });
    auto [second, second_here] = arrays.make<float>("second moments", TABLE, [](uint32_t) { return 0.0f; });
    auto [updates, updates_here] = arrays.make<uint32_t>("updates", TABLE / COLUMNS, [](uint32_t) { return 0u; });

    const Lattice lattice = {spins}, lattice_here = {spins_here};
    const Mesh mesh = {positions, triangles, valences}, mesh_here = {positions_here, triangles_here, valences_here};
    const Particles particles = {x, y, vx, vy, cells}, particles_here = {x_here, y_here, vx_here, vy_here, cells_here};
    const Optimiser optimiser = {weights, first, second, updates}, optimiser_here = {weights_here, first_here, second_here, updates_here};
    cudaStream_t streams[2];
    for (cudaStream_t &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    for (long step = 0; until.more(step, options.steps); step++) {
        both(lattice, lattice_here, step, ROWS * WIDTH / 2, streams[0]);
        both(mesh, mesh_here, step, QUADS_AT_A_TIME, streams[1]);
        both(particles, particles_here, step, PAIRS_AT_A_TIME, streams[0]);
        both(optimiser, optimiser_here, step, ROWS_AT_A_TIME * COLUMNS, streams[1]);
        window.round_done(streams[step % 2]);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    arrays.end(report, !until.told());
    window.destroy();
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
