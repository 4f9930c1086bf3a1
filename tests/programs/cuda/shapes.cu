// Copies of boxes between GPUs: arrays of one, two and three dimensions and pitched memory, in every combination, also with host memory, at odd
// offsets and of odd sizes, in the streams of either end, by calls that wait and calls that do not. Bytes are whatever an earlier copy has put there,
// and a kernel changes some. The host repeats everything and compares. With one GPU both halves run on it; the result is the same.
#include "program.cuh"

#include <algorithm>

constexpr int GPUS = 2;

__global__ void stir(unsigned char *at, size_t pitch, size_t width, size_t rows, unsigned int by) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < width * rows; i += gridDim.x * blockDim.x) {
        unsigned char *byte = at + i / width * pitch + i % width;
        *byte = static_cast<unsigned char>(*byte * 5 + by + i);
    }
}

struct Random {
    uint64_t state;
    size_t below(size_t n) { return static_cast<size_t>(program::mix(state++) % n); }
};

struct Gpu {
    int device;
    cudaStream_t stream;
};

static Gpu gpus[GPUS];

// A box of elements: an array, or rows of device memory with bytes between them, or of pinned memory, of no GPU.
struct Box {
    const char *name;
    Gpu *gpu;
    size_t element, width, rows, slices;
    bool is_array;
    cudaArray_t array;
    cudaPitchedPtr memory;
    // Packed: what it should hold.
    std::vector<unsigned char> want;
    cudaEvent_t used;

    unsigned char *wanted(size_t x, size_t y, size_t z) { return &want[((z * rows + y) * width + x) * element]; }
};

static void use(const Gpu &gpu) { CHECK(cudaSetDevice(gpu.device)); }

// A whole box from or to packed host memory, by itself.
static void whole(Box &box, void *packed, bool out) {
    cudaMemcpy3DParms p = {};
    const size_t bytes = box.width * box.element;
    const cudaPitchedPtr host = make_cudaPitchedPtr(packed, bytes, bytes, box.rows);
    if (box.is_array) (out ? p.srcArray : p.dstArray) = box.array;
    else (out ? p.srcPtr : p.dstPtr) = box.memory;
    (out ? p.dstPtr : p.srcPtr) = host;
    p.extent = make_cudaExtent(box.is_array ? box.width : bytes, box.rows, box.slices);
    p.kind = cudaMemcpyDefault;
    CHECK(cudaMemcpy3D(&p));
}

static Box make(const char *name, Gpu *gpu, bool is_array, size_t element, size_t width, size_t rows, size_t slices, size_t between) {
    Box box = {};
    box.name = name, box.gpu = gpu, box.is_array = is_array;
    box.element = element, box.width = width, box.rows = rows, box.slices = slices;
    use(gpu != nullptr ? *gpu : gpus[0]);
    if (is_array) {
        const int bits = static_cast<int>(element > 4 ? 32 : element * 8);
        const cudaChannelFormatDesc format = cudaCreateChannelDesc(bits, element > 4 ? 32 : 0, 0, 0, cudaChannelFormatKindUnsigned);
        CHECK(cudaMalloc3DArray(&box.array, &format, make_cudaExtent(width, rows > 1 || slices > 1 ? rows : 0, slices > 1 ? slices : 0)));
    } else {
        const size_t pitch = width * element + between;
        void *at;
        if (gpu != nullptr) CHECK(cudaMalloc(&at, pitch * rows * slices));
        else CHECK(cudaMallocHost(&at, pitch * rows * slices));
        CHECK(cudaMemset(at, 0, pitch * rows * slices));
        box.memory = make_cudaPitchedPtr(at, pitch, width * element, rows);
    }
    box.want.resize(width * element * rows * slices);
    for (size_t i = 0; i < box.want.size(); i++) box.want[i] = static_cast<unsigned char>(program::mix(i + between + width));
    whole(box, box.want.data(), false);
    CHECK(cudaEventCreateWithFlags(&box.used, cudaEventDisableTiming));
    return box;
}

// An event is recorded on the device where it was created.
static void done_with(Box &box, const Gpu &by) {
    use(by);
    CHECK(cudaEventDestroy(box.used));
    CHECK(cudaEventCreateWithFlags(&box.used, cudaEventDisableTiming));
    CHECK(cudaEventRecord(box.used, by.stream));
}

// The ends of a copy. Positions in memory have units that depend on the other end, so they are part of the pointer.
template <class Parms> static void describe(Parms &p, Box &from, size_t fx, size_t fy, size_t fz, Box &to, size_t tx, size_t ty, size_t tz) {
    const auto moved = [](const Box &box, size_t x) {
        return make_cudaPitchedPtr(static_cast<unsigned char *>(box.memory.ptr) + x * box.element, box.memory.pitch, box.memory.xsize, box.rows);
    };
    if (from.is_array) p.srcArray = from.array;
    else p.srcPtr = moved(from, fx);
    if (to.is_array) p.dstArray = to.array;
    else p.dstPtr = moved(to, tx);
    p.srcPos = make_cudaPos(from.is_array ? fx : 0, fy, fz);
    p.dstPos = make_cudaPos(to.is_array ? tx : 0, ty, tz);
}

static void copy(Box &from, Box &to, Random &random) {
    Gpu &by = gpus[random.below(GPUS)];
    const size_t width = 1 + random.below(std::min(from.width, to.width)), rows = 1 + random.below(std::min(from.rows, to.rows));
    const size_t slices = 1 + random.below(std::min(from.slices, to.slices)), element = from.element;
    const size_t fx = random.below(from.width - width + 1), fy = random.below(from.rows - rows + 1), fz = random.below(from.slices - slices + 1);
    const size_t tx = random.below(to.width - width + 1), ty = random.below(to.rows - rows + 1), tz = random.below(to.slices - slices + 1);
    const bool waits = random.below(3) == 0;
    use(by);
    if (waits) {
        CHECK(cudaEventSynchronize(from.used));
        CHECK(cudaEventSynchronize(to.used));
    } else {
        CHECK(cudaStreamWaitEvent(by.stream, from.used, 0));
        CHECK(cudaStreamWaitEvent(by.stream, to.used, 0));
    }
    const bool any_array = from.is_array || to.is_array;
    if (!any_array && slices == 1) {
        unsigned char *at = static_cast<unsigned char *>(from.memory.ptr) + (fz * from.rows + fy) * from.memory.pitch + fx * element;
        unsigned char *there = static_cast<unsigned char *>(to.memory.ptr) + (tz * to.rows + ty) * to.memory.pitch + tx * element;
        if (waits) CHECK(cudaMemcpy2D(there, to.memory.pitch, at, from.memory.pitch, width * element, rows, cudaMemcpyDefault));
        else CHECK(cudaMemcpy2DAsync(there, to.memory.pitch, at, from.memory.pitch, width * element, rows, cudaMemcpyDefault, by.stream));
    } else if (from.gpu != nullptr && to.gpu != nullptr) {
        cudaMemcpy3DPeerParms p = {};
        describe(p, from, fx, fy, fz, to, tx, ty, tz);
        p.extent = make_cudaExtent(any_array ? width : width * element, rows, slices);
        p.srcDevice = from.gpu->device, p.dstDevice = to.gpu->device;
        if (waits) CHECK(cudaMemcpy3DPeer(&p));
        else CHECK(cudaMemcpy3DPeerAsync(&p, by.stream));
    } else {
        cudaMemcpy3DParms p = {};
        describe(p, from, fx, fy, fz, to, tx, ty, tz);
        p.extent = make_cudaExtent(any_array ? width : width * element, rows, slices);
        p.kind = cudaMemcpyDefault;
        if (waits) CHECK(cudaMemcpy3D(&p));
        else CHECK(cudaMemcpy3DAsync(&p, by.stream));
    }
    std::vector<unsigned char> held = from.want;
    for (size_t z = 0; z < slices; z++) {
        for (size_t y = 0; y < rows; y++) {
            const unsigned char *at = &held[(((fz + z) * from.rows + fy + y) * from.width + fx) * element];
            std::memcpy(to.wanted(tx, ty + y, tz + z), at, width * element);
        }
    }
    if (waits) {
        // They wait for the order of the default stream, but need not wait for the bytes.
        CHECK(cudaStreamSynchronize(nullptr));
        return;
    }
    done_with(from, by);
    done_with(to, by);
}

static void change(Box &box, Random &random) {
    const unsigned int by = static_cast<unsigned int>(random.below(256));
    use(*box.gpu);
    CHECK(cudaStreamWaitEvent(box.gpu->stream, box.used, 0));
    const size_t width = box.width * box.element, rows = box.rows * box.slices;
    stir<<<4, 64, 0, box.gpu->stream>>>(static_cast<unsigned char *>(box.memory.ptr), box.memory.pitch, width, rows, by);
    CHECK_LAUNCH();
    for (size_t i = 0; i < width * rows; i++) box.want[i] = static_cast<unsigned char>(box.want[i] * 5 + by + i);
    done_with(box, *box.gpu);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 120);
    Random random{4711};
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    for (int g = 0; g < GPUS; g++) {
        gpus[g].device = g % there;
        use(gpus[g]);
        CHECK(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking));
    }
    std::vector<Box> boxes;
    for (size_t element : {1, 8}) {
        for (Gpu &gpu : gpus) {
            const size_t more = &gpu == &gpus[0] ? 0 : 6;
            boxes.push_back(make("line", &gpu, true, element, 1001 + more, 1, 1, 0));
            boxes.push_back(make("plane", &gpu, true, element, 333 - more, 77 + more, 1, 0));
            boxes.push_back(make("volume", &gpu, true, element, 61 + more, 19, 7, 0));
            boxes.push_back(make("pitched", &gpu, false, element, 401 + more, 53, 3, element * 13));
            boxes.push_back(make("packed", &gpu, false, element, 2049, 131 + more, 1, 0));
        }
        boxes.push_back(make("host", nullptr, false, element, 301, 61, 5, element * 3));
    }
    const size_t half = boxes.size() / 2;
    for (long step = 0; step < options.steps; step++) {
        for (int n = 0; n < 4; n++) {
            const size_t first = random.below(2) * half;
            const size_t from = random.below(half), to = (from + 1 + random.below(half - 1)) % half;
            Box &source = boxes[first + from], &target = boxes[first + to];
            if (random.below(5) == 0 && !target.is_array && target.gpu != nullptr) change(target, random);
            else copy(source, target, random);
        }
        options.pace();
    }
    program::Report report;
    for (Box &box : boxes) {
        CHECK(cudaEventSynchronize(box.used));
        use(box.gpu != nullptr ? *box.gpu : gpus[0]);
        std::vector<unsigned char> got(box.want.size());
        whole(box, got.data(), true);
        report.expect(box.name, got.data(), box.want.data(), got.size());
        report.line("box", box.name, got.data(), got.size());
    }
    for (Box &box : boxes) {
        CHECK(cudaEventDestroy(box.used));
        if (box.is_array) CHECK(cudaFreeArray(box.array));
        else if (box.gpu == nullptr) CHECK(cudaFreeHost(box.memory.ptr));
        else CHECK(cudaFree(box.memory.ptr));
    }
    for (Gpu &gpu : gpus) CHECK(cudaStreamDestroy(gpu.stream));
    return report.finish();
}
