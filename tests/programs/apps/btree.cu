// A B+ tree whose nodes point to each other by address: single look-ups and ranges on the device, values that change between them.
#include "app.cuh"

constexpr int WIDTH = 16;

struct Node {
    unsigned keys[WIDTH];
    Node *children[WIDTH]; // of inner nodes; the first key of each child is in keys
    unsigned values[WIDTH];
    Node *next; // leaf to leaf
    unsigned count, leaf;
};

__device__ const Node *find(const Node *node, unsigned key) {
    while (!node->leaf) {
        unsigned i = 0;
        while (i + 1 < node->count && node->keys[i + 1] <= key) i++;
        node = node->children[i];
    }
    return node;
}

__global__ void look_up(const Node *root, unsigned *answers, unsigned count, unsigned largest, unsigned round) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned key = static_cast<unsigned>(app::mix(i + round * 65537ull) % largest), answer = 0xffffffff;
    const Node *leaf = find(root, key);
    for (unsigned k = 0; k < leaf->count; k++)
        if (leaf->keys[k] == key) answer = leaf->values[k];
    answers[i] = answer;
}

__global__ void sum_ranges(const Node *root, unsigned *answers, unsigned count, unsigned largest, unsigned length, unsigned round) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned from = static_cast<unsigned>(app::mix(i * 3 + round * 257ull) % largest), sum = 0;
    for (const Node *leaf = find(root, from); leaf != nullptr && leaf->keys[0] < from + length; leaf = leaf->next)
        for (unsigned k = 0; k < leaf->count; k++)
            if (leaf->keys[k] >= from && leaf->keys[k] < from + length) sum += leaf->values[k];
    answers[i] += sum;
}

// Every leaf's values, a little different.
__global__ void change(Node *leaves, unsigned count, unsigned round) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count * WIDTH) leaves[i / WIDTH].values[i % WIDTH] += (i + round) % 7;
}

// Keys are all multiples of three.
static unsigned value_of(unsigned key, unsigned rounds) {
    unsigned i = key / 3, value = static_cast<unsigned>(app::mix(key));
    for (unsigned r = 0; r < rounds; r++) value += (i + r) % 7;
    return value;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const unsigned leaves = app.pick(512, 1 << 17), keys = leaves * WIDTH, largest = keys * 3, count = app.pick(2048, 1 << 22);
    const unsigned rounds = app.pick(32, 300), length = 150;
    std::vector<std::vector<Node>> levels(1, std::vector<Node>(leaves));
    for (unsigned i = 0; i < keys; i++) {
        Node &leaf = levels[0][i / WIDTH];
        leaf.keys[i % WIDTH] = i * 3, leaf.values[i % WIDTH] = value_of(i * 3, 0);
        leaf.children[i % WIDTH] = nullptr, leaf.count = WIDTH, leaf.leaf = 1;
    }
    std::vector<Node *> device(1, app::device_array<Node>(leaves));
    for (unsigned i = 0; i < leaves; i++) levels[0][i].next = i + 1 < leaves ? device[0] + i + 1 : nullptr;
    while (levels.back().size() > 1) {
        const std::vector<Node> &below = levels.back();
        std::vector<Node> level((below.size() + WIDTH - 1) / WIDTH);
        std::memset(level.data(), 0, level.size() * sizeof(Node));
        for (size_t i = 0; i < below.size(); i++) {
            Node &node = level[i / WIDTH];
            node.keys[node.count] = below[i].keys[0], node.children[node.count++] = device.back() + i;
        }
        device.push_back(app::device_array<Node>(level.size()));
        levels.push_back(level);
    }
    for (size_t l = 0; l < levels.size(); l++)
        CHECK(cudaMemcpy(device[l], levels[l].data(), levels[l].size() * sizeof(Node), cudaMemcpyHostToDevice));
    unsigned *answers = app::device_array<unsigned>(count), *sums = app::device_array<unsigned>(count);
    CHECK(cudaMemset(sums, 0, count * 4));
    std::vector<unsigned> got(count);
    for (unsigned round = 0; round < rounds; round++) {
        look_up<<<app::blocks(count, 128), 128>>>(device.back(), answers, count, largest, round);
        CHECK_LAUNCH();
        sum_ranges<<<app::blocks(count / 4, 128), 128>>>(device.back(), sums, count / 4, largest, length, round);
        CHECK_LAUNCH();
        change<<<app::blocks(keys, 256), 256>>>(device[0], leaves, round);
        CHECK_LAUNCH();
        if (round % 8 == 7) {
            CHECK(cudaMemcpy(got.data(), answers, count * 4, cudaMemcpyDeviceToHost));
            for (unsigned i = 0; i < count; i += app.pick(101, 4001)) {
                unsigned key = static_cast<unsigned>(app::mix(i + round * 65537ull) % largest);
                app.expect(got[i] == (key % 3 == 0 ? value_of(key, round) : 0xffffffff), "a look-up");
            }
        }
        app.step();
    }
    CHECK(cudaMemcpy(got.data(), sums, count * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < count / 4; i += count / 16) {
        unsigned want = 0;
        for (unsigned round = 0; round < rounds; round++) {
            unsigned from = static_cast<unsigned>(app::mix(i * 3 + round * 257ull) % largest);
            for (unsigned key = (from + 2) / 3 * 3; key < from + length && key < largest; key += 3) want += value_of(key, round);
        }
        app.expect(got[i] == want, "the sums of ranges");
    }
    app.device(answers, count * 4);
    app.device(sums, count * 4);
    for (size_t l = 0; l < levels.size(); l++) {
        // Addresses differ from run to run; what they point to must not.
        std::vector<Node> nodes(levels[l].size());
        CHECK(cudaMemcpy(nodes.data(), device[l], nodes.size() * sizeof(Node), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < nodes.size(); i++) {
            bool same = nodes[i].next == levels[l][i].next && std::equal(nodes[i].children, nodes[i].children + WIDTH, levels[l][i].children);
            app.expect(same, "the addresses in a node");
            std::memset(nodes[i].children, 0, sizeof nodes[i].children);
            nodes[i].next = nullptr;
        }
        app.host(nodes.data(), nodes.size() * sizeof(Node));
        CHECK(cudaFree(device[l]));
    }
    CHECK(cudaFree(answers));
    CHECK(cudaFree(sums));
    return app.finish();
}
