// Triangles of a graph: edges go from the smaller to the larger vertex; for each edge the sorted lists of both ends are walked together.
#include "app.cuh"

__global__ void triangles(const unsigned *rows, const unsigned *columns, const unsigned *sources, unsigned *found, unsigned from,
                          unsigned count, unsigned long long *total) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned edge = from + i, u = sources[edge], v = columns[edge], common = 0;
    unsigned a = rows[u], a_end = rows[u + 1], b = rows[v], b_end = rows[v + 1];
    while (a < a_end && b < b_end) {
        unsigned x = columns[a], y = columns[b];
        common += x == y;
        a += x <= y;
        b += y <= x;
    }
    found[edge] = common;
    if (common != 0) atomicAdd(total, static_cast<unsigned long long>(common));
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const unsigned vertices = app.pick(400u, 1u << 19), edges_wanted = app.pick(4000u, 6u << 20), batches = app.pick(30u, 64u);
    const unsigned rounds = app.pick(1u, 12u);
    std::vector<uint64_t> edges;
    for (uint64_t i = 0; edges.size() < edges_wanted; i++) {
        // Few vertices have many edges.
        auto vertex = [&](uint64_t r) { return (r % vertices) * ((r >> 32) % vertices) / vertices; };
        uint64_t u = vertex(app::mix(i * 2)), v = vertex(app::mix(i * 2 + 1));
        if (u != v) edges.push_back(std::min(u, v) << 32 | std::max(u, v));
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    const unsigned count = static_cast<unsigned>(edges.size());
    std::vector<unsigned> rows(vertices + 1), columns, sources;
    for (uint64_t e : edges) {
        rows[(e >> 32) + 1]++;
        sources.push_back(e >> 32), columns.push_back(static_cast<unsigned>(e));
    }
    for (unsigned v = 0; v < vertices; v++) rows[v + 1] += rows[v];
    unsigned *device_rows = app::device_copy(rows), *device_columns = app::device_copy(columns), *device_sources = app::device_copy(sources);
    unsigned *found = app::device_array<unsigned>(count);
    unsigned long long *total = app::device_array<unsigned long long>(1), sum;
    const unsigned batch = (count + batches - 1) / batches;
    for (unsigned round = 0; round < rounds; round++) {
        CHECK(cudaMemset(total, 0, sizeof sum));
        CHECK(cudaMemset(found, 0, count * 4ull));
        for (unsigned from = 0; from < count; from += batch) {
            const unsigned now = std::min(batch, count - from);
            triangles<<<app::blocks(now, 128), 128>>>(device_rows, device_columns, device_sources, found, from, now, total);
            CHECK_LAUNCH();
            app.step();
        }
        CHECK(cudaMemcpy(&sum, total, sizeof sum, cudaMemcpyDeviceToHost));
    }
    std::vector<unsigned> got(count);
    CHECK(cudaMemcpy(got.data(), found, count * 4ull, cudaMemcpyDeviceToHost));
    unsigned long long all = 0;
    for (unsigned i = 0; i < count; i++) all += got[i];
    app.expect(all == sum && sum > 0, "the sum of all triangles");
    for (unsigned i = 0; i < count; i += app.pick(1, 1009)) {
        unsigned u = sources[i], v = columns[i], common = 0;
        for (unsigned a = rows[u]; a < rows[u + 1]; a++)
            common += std::binary_search(columns.begin() + rows[v], columns.begin() + rows[v + 1], columns[a]);
        app.expect(got[i] == common, "the triangles of an edge");
    }
    app.host(&sum, sizeof sum);
    app.host(got.data(), count * 4ull);
    app.device(device_rows, rows.size() * 4);
    app.device(device_columns, count * 4ull);
    app.device(device_sources, count * 4ull);
    for (unsigned *p : {device_rows, device_columns, device_sources, found}) CHECK(cudaFree(p));
    CHECK(cudaFree(total));
    return app.finish();
}
