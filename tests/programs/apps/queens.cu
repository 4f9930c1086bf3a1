// Tree search: the number of ways to put n queens on a board. The host makes the first rows; a thread searches all that follows from one
// of them, with a stack of its own.
#include "app.cuh"

constexpr int DEEPEST = 24;

struct Board {
    unsigned columns, left, right; // that are attacked in the next row
};

__global__ void search(const Board *boards, unsigned *found, unsigned count, int rows, unsigned all) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Board at[DEEPEST];
    unsigned open[DEEPEST], solutions = 0;
    int depth = 0;
    at[0] = boards[i];
    open[0] = all & ~(at[0].columns | at[0].left | at[0].right);
    while (depth >= 0) {
        unsigned choices = open[depth];
        if (choices == 0) {
            depth--;
            continue;
        }
        unsigned queen = choices & (0 - choices);
        open[depth] = choices ^ queen;
        if (depth + 1 == rows) {
            solutions++;
            continue;
        }
        Board b = at[depth];
        b.columns |= queen, b.left = (b.left | queen) << 1, b.right = (b.right | queen) >> 1;
        depth++;
        at[depth] = b;
        open[depth] = all & ~(b.columns | b.left | b.right);
    }
    found[i] = solutions;
}

static void first_rows(std::vector<Board> &boards, Board b, int rows, unsigned all) {
    if (rows == 0) return boards.push_back(b);
    for (unsigned open = all & ~(b.columns | b.left | b.right); open != 0; open &= open - 1) {
        unsigned queen = open & (0 - open);
        first_rows(boards, {b.columns | queen, (b.left | queen) << 1, (b.right | queen) >> 1}, rows - 1, all);
    }
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int n = app.pick(10, 18), given = app.pick(3, 5);
    const uint64_t known = app.pick<uint64_t>(724, 666090624);
    const unsigned all = (1u << n) - 1, batch = app.pick(16, 8192);
    std::vector<Board> boards;
    first_rows(boards, {0, 0, 0}, given, all);
    const unsigned count = static_cast<unsigned>(boards.size());
    Board *device = app::device_copy(boards);
    unsigned *found = app::device_array<unsigned>(count);
    CHECK(cudaMemset(found, 0xff, count * 4));
    uint64_t solutions = 0;
    std::vector<unsigned> part(batch);
    for (unsigned at = 0; at < count; at += batch) {
        const unsigned now = std::min(batch, count - at);
        search<<<app::blocks(now, 64), 64>>>(device + at, found + at, now, n - given, all);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(part.data(), found + at, now * 4, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < now; i++) solutions += part[i];
        app.step();
    }
    app.expect(solutions == known, "the number of solutions");
    app.host(&solutions, sizeof solutions);
    app.device(device, count * sizeof(Board));
    app.device(found, count * 4);
    CHECK(cudaFree(device));
    CHECK(cudaFree(found));
    return app.finish();
}
