// Conjugate gradients for a sparse matrix by rows (CSR): a grid of resistors. Sums are made in one order: each block adds its part as a
// tree, one block adds the parts. The host reads the residual in each step, as solvers do that stop when it is small.
#include "app.cuh"

constexpr int THREADS = 128;
constexpr int PARTS = 256;

struct Matrix {
    const int *rows, *columns;
    const double *values;
    int n;
};

__global__ void multiply(Matrix m, const double *x, double *y) {
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < m.n; row += gridDim.x * blockDim.x) {
        double sum = 0;
        for (int k = m.rows[row]; k < m.rows[row + 1]; k++) sum += m.values[k] * x[m.columns[k]];
        y[row] = sum;
    }
}

__device__ double block_sum(double own) {
    __shared__ double parts[PARTS];
    parts[threadIdx.x] = own;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    return parts[0];
}

__global__ void dot(const double *a, const double *b, double *parts, int n) {
    double own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += a[i] * b[i];
    double sum = block_sum(own);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: the sum of all parts, and what a step needs of it.
__global__ void finish(const double *parts, double *to, const double *over, double *ratio) {
    double sum = block_sum(parts[threadIdx.x]);
    if (threadIdx.x != 0) return;
    if (ratio != nullptr) *ratio = over == to ? sum / *over : *over / sum;
    *to = sum;
}

// x += alpha p, r -= alpha q
__global__ void correct(double *x, double *r, const double *p, const double *q, const double *alpha, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        x[i] += *alpha * p[i];
        r[i] -= *alpha * q[i];
    }
}

// p = r + beta p
__global__ void turn(double *p, const double *r, const double *beta, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = r[i] + *beta * p[i];
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int side = app.pick(48, 2048), n = side * side, limit = app.pick(30, 3000);
    std::vector<int> rows(1), columns;
    std::vector<double> values, b;
    for (int row = 0; row < n; row++) {
        const int x = row % side, y = row / side;
        double own = 0.0001;
        const size_t diagonal = values.size();
        columns.push_back(row), values.push_back(0);
        auto to = [&](int other) {
            double conductance = 1.0 + (app::mix(std::min(row, other) * 4ull + (std::abs(row - other) == 1)) >> 56) / 256.0;
            columns.push_back(other), values.push_back(-conductance), own += conductance;
        };
        if (x > 0) to(row - 1);
        if (x + 1 < side) to(row + 1);
        if (y > 0) to(row - side);
        if (y + 1 < side) to(row + side);
        values[diagonal] = own;
        rows.push_back(static_cast<int>(columns.size()));
        b.push_back(static_cast<double>(app::mix(row) >> 44) / (1 << 20) - 0.5);
    }
    int *device_rows = app::device_copy(rows), *device_columns = app::device_copy(columns);
    double *device_values = app::device_copy(values);
    const Matrix m = {device_rows, device_columns, device_values, n};
    double *x = app::device_array<double>(n), *r = app::device_copy(b), *p = app::device_copy(b), *q = app::device_array<double>(n);
    double *parts = app::device_array<double>(PARTS), *scalars = app::device_array<double>(4);
    CHECK(cudaMemset(x, 0, n * 8));
    CHECK(cudaMemset(scalars, 0, 4 * 8));
    // rr, pq, alpha, beta
    double *rr = scalars, *pq = scalars + 1, *alpha = scalars + 2, *beta = scalars + 3, residual, first;
    const unsigned grid = std::min(app::blocks(n, THREADS), 2048u);
    static_assert(PARTS % 2 == 0, "a tree");
    dot<<<PARTS, THREADS>>>(r, r, parts, n);
    finish<<<1, PARTS>>>(parts, rr, nullptr, nullptr);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy(&first, rr, 8, cudaMemcpyDeviceToHost));
    int step = 0;
    for (residual = first; step < limit && residual > first * 1e-24; step++) {
        multiply<<<grid, THREADS>>>(m, p, q);
        dot<<<PARTS, THREADS>>>(p, q, parts, n);
        finish<<<1, PARTS>>>(parts, pq, rr, alpha);
        correct<<<grid, THREADS>>>(x, r, p, q, alpha, n);
        dot<<<PARTS, THREADS>>>(r, r, parts, n);
        finish<<<1, PARTS>>>(parts, rr, rr, beta);
        turn<<<grid, THREADS>>>(p, r, beta, n);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(&residual, rr, 8, cudaMemcpyDeviceToHost));
        app.step();
    }
    // The residual that the method keeps is that of its answer.
    std::vector<double> answer(n);
    CHECK(cudaMemcpy(answer.data(), x, n * 8, cudaMemcpyDeviceToHost));
    double true_residual = 0;
    for (int row = 0; row < n; row++) {
        double sum = b[row];
        for (int k = rows[row]; k < rows[row + 1]; k++) sum -= values[k] * answer[columns[k]];
        true_residual += sum * sum;
    }
    app.expect(residual < first * 0.5, "the residual falls");
    app.expect(true_residual < residual * 1.01 + first * 1e-18 && residual < true_residual * 1.01 + first * 1e-18, "the residual of the answer");
    app.host(&step, sizeof step);
    app.host(answer.data(), n * 8);
    for (double *v : {r, p, q}) app.device(v, n * 8);
    app.device(parts, PARTS * 8);
    app.device(scalars, 4 * 8);
    app.device(device_rows, rows.size() * 4);
    app.device(device_columns, columns.size() * 4);
    app.device(device_values, values.size() * 8);
    for (double *v : {x, r, p, q, parts, scalars, device_values}) CHECK(cudaFree(v));
    for (int *v : {device_rows, device_columns}) CHECK(cudaFree(v));
    return app.finish();
}
