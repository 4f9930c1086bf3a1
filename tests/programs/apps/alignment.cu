// Sequence alignment after Smith and Waterman with affine gaps: a query against a database that comes in parts; each thread aligns one
// sequence, with its row of scores in global memory.
#include "app.cuh"

constexpr int LETTERS = 20, OPEN = 11, EXTEND = 1, LONGEST = 512;

__constant__ signed char substitution[LETTERS * LETTERS];
__constant__ unsigned char query[LONGEST];

// Letter k of all sequences lies together, as do their scores: words of a warp are beside each other.
__global__ void align(const unsigned char *letters, const int *lengths, short2 *rows, int *best, int sequences, int query_length) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= sequences) return;
    int highest = 0;
    for (int q = 0; q < query_length; q++) rows[q * sequences + i] = make_short2(0, 0);
    for (int k = 0; k < lengths[i]; k++) {
        const signed char *scores = substitution + letters[k * sequences + i] * LETTERS;
        int diagonal = 0, above = 0, gap = 0;
        for (int q = 0; q < query_length; q++) {
            short2 left = rows[q * sequences + i]; // best score and best one with a gap, of the column before
            int open_left = max(left.y - EXTEND, left.x - OPEN), open_above = max(gap - EXTEND, above - OPEN);
            int score = max(max(0, diagonal + scores[query[q]]), max(open_left, open_above));
            rows[q * sequences + i] = make_short2(score, max(open_left, 0));
            diagonal = left.x, above = score, gap = max(open_above, 0);
            highest = max(highest, score);
        }
    }
    best[i] = highest;
}

static int align_on_host(const std::vector<unsigned char> &sequence, const std::vector<unsigned char> &query, const std::vector<signed char> &table) {
    std::vector<int> best(query.size()), gaps(query.size());
    int highest = 0;
    for (unsigned char letter : sequence) {
        int diagonal = 0, above = 0, gap = 0;
        for (size_t q = 0; q < query.size(); q++) {
            int left = std::max(gaps[q] - EXTEND, best[q] - OPEN), up = std::max(gap - EXTEND, above - OPEN);
            int score = std::max({0, diagonal + table[letter * LETTERS + query[q]], left, up});
            diagonal = best[q], best[q] = above = score;
            gaps[q] = std::max(left, 0), gap = std::max(up, 0);
            highest = std::max(highest, score);
        }
    }
    return highest;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int sequences = app.pick(64, 32768), longest = app.pick(24, 384), query_length = app.pick(20, 320), parts = app.pick(24, 24);
    std::vector<signed char> table(LETTERS * LETTERS);
    for (int a = 0; a < LETTERS; a++)
        for (int b = 0; b <= a; b++)
            table[a * LETTERS + b] = table[b * LETTERS + a] = static_cast<signed char>(a == b ? 4 + a % 6 : -int(app::mix(a * LETTERS + b) % 5) + 1);
    std::vector<unsigned char> wanted(query_length);
    for (int q = 0; q < query_length; q++) wanted[q] = app::mix(q) % LETTERS;
    CHECK(cudaMemcpyToSymbol(substitution, table.data(), table.size()));
    CHECK(cudaMemcpyToSymbol(query, wanted.data(), wanted.size()));
    std::vector<unsigned char> letters(size_t(sequences) * longest);
    std::vector<int> lengths(sequences), scores(sequences);
    unsigned char *device_letters = app::device_array<unsigned char>(letters.size());
    int *device_lengths = app::device_array<int>(sequences), *best = app::device_array<int>(sequences);
    short2 *rows = app::device_array<short2>(size_t(sequences) * query_length);
    for (int part = 0; part < parts; part++) {
        auto letter = [&](int i, int k) {
            // A stretch of the query is in every fifth sequence.
            if (i % 5 == 0 && k > 4 && k < 4 + query_length / 2) return wanted[(k + i) % query_length];
            return static_cast<unsigned char>(app::mix((uint64_t(part) * sequences + i) * 1024 + k) % LETTERS);
        };
        for (int i = 0; i < sequences; i++) lengths[i] = longest - static_cast<int>(app::mix(part * 77 + i) % (longest / 2));
        for (int k = 0; k < longest; k++)
            for (int i = 0; i < sequences; i++) letters[size_t(k) * sequences + i] = letter(i, k);
        CHECK(cudaMemcpy(device_letters, letters.data(), letters.size(), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(device_lengths, lengths.data(), sequences * 4, cudaMemcpyHostToDevice));
        align<<<app::blocks(sequences, 64), 64>>>(device_letters, device_lengths, rows, best, sequences, query_length);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(scores.data(), best, sequences * 4, cudaMemcpyDeviceToHost));
        for (int i = part; i < sequences; i += sequences / 4) {
            std::vector<unsigned char> sequence(lengths[i]);
            for (int k = 0; k < lengths[i]; k++) sequence[k] = letters[size_t(k) * sequences + i];
            app.expect(scores[i] == align_on_host(sequence, wanted, table), "a score");
        }
        app.host(scores.data(), sequences * 4);
        app.step();
    }
    app.variable(substitution);
    app.device(device_letters, letters.size());
    app.device(device_lengths, sequences * 4);
    app.device(rows, size_t(sequences) * query_length * sizeof(short2));
    CHECK(cudaFree(device_letters));
    CHECK(cudaFree(device_lengths));
    CHECK(cudaFree(best));
    CHECK(cudaFree(rows));
    return app.finish();
}
