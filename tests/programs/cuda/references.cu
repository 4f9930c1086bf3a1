// Texture and surface references: variables of a module, bound by name to memory, rows of memory, arrays and mipmapped arrays, anew
// between launches that nobody waits for. No compiler makes them any more, so the code is PTX, written by hand.
// Texels and coordinates are such that every weighed sum is exact (textures.cu).
#include "program.cuh"
#include "driver.cuh"
#include "texels.cuh"

constexpr int BLOCK = 128, POINTS = 1024, KINDS = 9;

enum Kind { LINE, SHEET, PLANE, VOLUME, COLOURS, LEVELS, SHORTS, BOARD, SLAB };

static const char *CODE = R"(.version 6.4
.target sm_52
.address_size 64
.global .texref line;
.global .texref sheet;
.global .texref plane;
.global .texref volume;
.global .texref colours;
.global .texref levels;
.global .texref shorts;
.global .surfref board;
.global .surfref slab;
.visible .global .align 4 .u32 launches = 0;
.visible .entry look(.param .u64 out, .param .u32 seed)
{
    .reg .b32 %r<80>;
    .reg .f32 %f<80>;
    .reg .b64 %rd<8>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [seed];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 36;
    add.s64 %rd4, %rd2, %rd3;
    // Where the point lies: in sixteenths of a texel.
    xor.b32 %r6, %r5, %r1;
    mul.lo.u32 %r6, %r6, 0x9E3779B1;
    shr.u32 %r7, %r6, 15;
    xor.b32 %r6, %r6, %r7;
    mul.lo.u32 %r6, %r6, 0x85EBCA77;
    shr.u32 %r7, %r6, 13;
    xor.b32 %r6, %r6, %r7;
    and.b32 %r8, %r6, 2047;
    sub.s32 %r8, %r8, 256;
    shr.u32 %r9, %r6, 11;
    and.b32 %r9, %r9, 1023;
    sub.s32 %r9, %r9, 192;
    shr.u32 %r10, %r6, 21;
    and.b32 %r10, %r10, 511;
    sub.s32 %r10, %r10, 64;
    cvt.rn.f32.s32 %f1, %r8;
    mul.f32 %f1, %f1, 0f3D800000;
    cvt.rn.f32.s32 %f2, %r9;
    mul.f32 %f2, %f2, 0f3D800000;
    // Memory.
    and.b32 %r11, %r6, 4095;
    tex.1d.v4.u32.s32 {%r12, %r13, %r14, %r15}, [line, {%r11}];
    mul.lo.u32 %r13, %r13, 3;
    xor.b32 %r12, %r12, %r13;
    st.global.u32 [%rd4], %r12;
    // Rows of memory.
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [sheet, {%f1, %f2}];
    st.global.f32 [%rd4+4], %f3;
    // An array that repeats.
    mul.f32 %f7, %f1, 0f3C800000;
    mul.f32 %f8, %f2, 0f3D000000;
    tex.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}, [plane, {%f7, %f8}];
    st.global.f32 [%rd4+8], %f9;
    // A volume.
    shr.s32 %r16, %r8, 4;
    shr.s32 %r17, %r9, 4;
    shr.s32 %r18, %r10, 2;
    cvt.rn.f32.s32 %f13, %r16;
    cvt.rn.f32.s32 %f14, %r17;
    cvt.rn.f32.s32 %f15, %r18;
    mul.f32 %f13, %f13, 0f3E800000;
    mul.f32 %f14, %f14, 0f3E800000;
    mul.f32 %f15, %f15, 0f3E800000;
    tex.3d.v4.f32.f32 {%f16, %f17, %f18, %f19}, [volume, {%f13, %f14, %f15, %f15}];
    st.global.f32 [%rd4+12], %f16;
    // Bytes as numbers from 0 to 1.
    tex.2d.v4.f32.f32 {%f20, %f21, %f22, %f23}, [colours, {%f1, %f2}];
    mul.f32 %f20, %f20, 0f437F0000;
    mul.f32 %f21, %f21, 0f437F0000;
    mul.f32 %f22, %f22, 0f437F0000;
    mul.f32 %f23, %f23, 0f437F0000;
    cvt.rni.u32.f32 %r20, %f20;
    cvt.rni.u32.f32 %r21, %f21;
    cvt.rni.u32.f32 %r22, %f22;
    cvt.rni.u32.f32 %r23, %f23;
    shl.b32 %r21, %r21, 8;
    shl.b32 %r22, %r22, 16;
    shl.b32 %r23, %r23, 24;
    or.b32 %r20, %r20, %r21;
    or.b32 %r20, %r20, %r22;
    or.b32 %r20, %r20, %r23;
    st.global.u32 [%rd4+16], %r20;
    // A level of several.
    shr.u32 %r24, %r6, 21;
    rem.u32 %r24, %r24, 5;
    cvt.rn.f32.u32 %f24, %r24;
    add.f32 %f24, %f24, 0f3E800000;
    add.f32 %f25, %f1, 0f3D000000;
    add.f32 %f26, %f2, 0f3D000000;
    mul.f32 %f25, %f25, 0f3C800000;
    mul.f32 %f26, %f26, 0f3D000000;
    tex.level.2d.v4.f32.f32 {%f27, %f28, %f29, %f30}, [levels, {%f25, %f26}], %f24;
    st.global.f32 [%rd4+20], %f27;
    // Integers.
    tex.2d.v4.s32.f32 {%r25, %r26, %r27, %r28}, [shorts, {%f1, %f2}];
    mul.lo.u32 %r25, %r25, 65537;
    add.u32 %r25, %r25, %r26;
    st.global.u32 [%rd4+24], %r25;
    // A cell of a surface of 64 by 16, read and written.
    and.b32 %r30, %r5, 63;
    shl.b32 %r30, %r30, 2;
    shr.u32 %r31, %r5, 6;
    suld.b.2d.b32.trap {%r32}, [board, {%r30, %r31}];
    mad.lo.u32 %r32, %r32, 1664525, %r6;
    sust.b.2d.b32.trap [board, {%r30, %r31}], {%r32};
    st.global.u32 [%rd4+28], %r32;
    // And one of 16 by 8 by 8, of two words.
    and.b32 %r33, %r5, 15;
    shl.b32 %r33, %r33, 3;
    shr.u32 %r34, %r5, 4;
    and.b32 %r34, %r34, 7;
    shr.u32 %r35, %r5, 7;
    suld.b.3d.v2.b32.clamp {%r36, %r37}, [slab, {%r33, %r34, %r35, %r35}];
    mad.lo.u32 %r38, %r37, 22695477, %r6;
    sust.b.3d.v2.b32.clamp [slab, {%r33, %r34, %r35, %r35}], {%r38, %r36};
    xor.b32 %r38, %r38, %r36;
    st.global.u32 [%rd4+32], %r38;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra end;
    atom.global.add.u32 %r39, [launches], 1;
end:
    ret;
}
)";

// The textures of one set: those of the second have other texels.
struct Set {
    int first;
    uint2 *line;
    float *sheet;
    size_t pitch;
    cudaArray_t plane, volume, colours, shorts, board, slab;
    cudaMipmappedArray_t levels;
    // What the surfaces should hold.
    std::vector<uint32_t> cells;
    std::vector<uint2> pairs;
};

static void make_memory(Set &set) {
    const int f = set.first;
    std::vector<uint2> line;
    for (long x = 0; x < 4096; x++) line.push_back(make_uint2(static_cast<unsigned>(texel(f, x, 0, 0)), static_cast<unsigned>(texel(f, x, 1, 0))));
    // That of the second set is the host's.
    CHECK(f ? cudaMallocHost(&set.line, 4096 * sizeof(uint2)) : cudaMalloc(&set.line, 4096 * sizeof(uint2)));
    CHECK(cudaMemcpy(set.line, line.data(), 4096 * sizeof(uint2), cudaMemcpyDefault));
}

static void make_plane(Set &set) {
    const int f = set.first;
    set.plane = filled<float>(make_cudaExtent(64, 32, 0), 0, [f](long x, long y, long) { return texel(f + 2, x, y, 0); });
}

static uchar4 colour(int f, long x, long y) {
    auto c = [=](int ch) { return static_cast<unsigned char>(texel(f + 4, x, y, ch)); };
    return make_uchar4(c(0), c(1), c(2), c(3));
}

static short2 pair_of_shorts(int f, long x, long y) {
    return make_short2(static_cast<short>(texel(f + 5, x, y, 0) - 100), static_cast<short>(texel(f + 5, x, y, 1) - 100));
}

static Set make_set(int f) {
    Set set = {};
    set.first = f;
    make_memory(set);
    make_plane(set);
    std::vector<float> sheet;
    for (long y = 0; y < 32; y++)
        for (long x = 0; x < 64; x++) sheet.push_back(texel(f + 1, x, y, 0));
    CHECK(cudaMallocPitch(&set.sheet, &set.pitch, 64 * sizeof(float), 32));
    CHECK(cudaMemcpy2D(set.sheet, set.pitch, sheet.data(), 64 * sizeof(float), 64 * sizeof(float), 32, cudaMemcpyHostToDevice));
    set.volume = filled<float>(make_cudaExtent(16, 16, 16), 0, [f](long x, long y, long z) { return texel(f + 3, x, y, z); });
    set.colours = filled<uchar4>(make_cudaExtent(40, 30, 0), 0, [f](long x, long y, long) { return colour(f, x, y); });
    set.shorts = filled<short2>(make_cudaExtent(40, 30, 0), 0, [f](long x, long y, long) { return pair_of_shorts(f, x, y); });
    const cudaChannelFormatDesc one = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocMipmappedArray(&set.levels, &one, make_cudaExtent(64, 32, 0), 5));
    for (unsigned n = 0; n < 5; n++) {
        cudaArray_t level;
        CHECK(cudaGetMipmappedArrayLevel(&level, set.levels, n));
        std::vector<float> texels;
        for (long y = 0; y < 32 >> n; y++)
            for (long x = 0; x < 64 >> n; x++) texels.push_back(texel(f + 6 + static_cast<int>(n), x, y, 0));
        CHECK(cudaMemcpy2DToArray(level, 0, 0, texels.data(), (64 >> n) * 4, (64 >> n) * 4, 32 >> n, cudaMemcpyHostToDevice));
    }
    set.cells.assign(POINTS, static_cast<uint32_t>(f));
    set.pairs.assign(POINTS, make_uint2(static_cast<unsigned>(f), static_cast<unsigned>(f) + 1));
    set.board = filled<unsigned>(make_cudaExtent(64, 16, 0), cudaArraySurfaceLoadStore, [f](long, long, long) { return static_cast<unsigned>(f); });
    set.slab = filled<uint2>(make_cudaExtent(16, 8, 8), cudaArraySurfaceLoadStore, [f](long, long, long) { return make_uint2(static_cast<unsigned>(f), static_cast<unsigned>(f) + 1); });
    return set;
}

// All that textures show of a set is what it was.
static void compare_set(const Set &set, program::Report &report) {
    const int f = set.first;
    auto number = [f](int which) { return [=](long x, long y, long z) { return texel(f + which, x, y, z); }; };
    expect_filled<uint2>(report, "line", {nullptr, set.line, 4096 * sizeof(uint2)}, make_cudaExtent(4096, 0, 0), [f](long x, long, long) {
        return make_uint2(static_cast<unsigned>(texel(f, x, 0, 0)), static_cast<unsigned>(texel(f, x, 1, 0)));
    });
    expect_filled<float>(report, "sheet", {nullptr, set.sheet, set.pitch}, make_cudaExtent(64, 32, 0), number(1));
    expect_filled<float>(report, "plane", {set.plane, nullptr, 0}, make_cudaExtent(64, 32, 0), number(2));
    expect_filled<float>(report, "volume", {set.volume, nullptr, 0}, make_cudaExtent(16, 16, 16), number(3));
    expect_filled<uchar4>(report, "colours", {set.colours, nullptr, 0}, make_cudaExtent(40, 30, 0), [f](long x, long y, long) { return colour(f, x, y); });
    expect_filled<short2>(report, "shorts", {set.shorts, nullptr, 0}, make_cudaExtent(40, 30, 0), [f](long x, long y, long) { return pair_of_shorts(f, x, y); });
    expect_levels(report, set.levels, 64, 32, 5, f + 6);
}

static void end_set(Set &set) {
    CHECK(set.first ? cudaFreeHost(set.line) : cudaFree(set.line));
    CHECK(cudaFree(set.sheet));
    for (cudaArray_t array : {set.plane, set.volume, set.colours, set.shorts, set.board, set.slab}) CHECK(cudaFreeArray(array));
    CHECK(cudaFreeMipmappedArray(set.levels));
}

// A module with its references.
struct Code {
    CUmodule module;
    CUfunction look;
    CUtexref textures[7];
    CUsurfref surfaces[2];
};

static const char *const NAMES[KINDS] = {"line", "sheet", "plane", "volume", "colours", "levels", "shorts", "board", "slab"};

// How the textures are sampled in a step.
struct How {
    bool linear, border;
};

static CUDA_ARRAY_DESCRIPTOR rows(size_t width, CUarray_format format, unsigned channels) {
    CUDA_ARRAY_DESCRIPTOR what = {};
    what.Width = width;
    what.Height = 32;
    what.Format = format;
    what.NumChannels = channels;
    return what;
}

// The format of the line comes with rows that it sees for a moment, and stays: saying it again changes nothing.
static void bring_format(const Code &code, const Set &set) {
    DRIVER(cuTexRefSetFormat, code.textures[LINE], CU_AD_FORMAT_FLOAT, 1);
    const CUDA_ARRAY_DESCRIPTOR pairs = rows(32, CU_AD_FORMAT_UNSIGNED_INT32, 2);
    DRIVER(cuTexRefSetAddress2D, code.textures[LINE], &pairs, reinterpret_cast<CUdeviceptr>(set.sheet), set.pitch);
    DRIVER(cuTexRefSetFormat, code.textures[LINE], CU_AD_FORMAT_UNSIGNED_INT32, 2);
}

static Code load(const Set &set) {
    Code code;
    DRIVER(cuModuleLoadData, &code.module, CODE);
    DRIVER(cuModuleGetFunction, &code.look, code.module, "look");
    for (int k = 0; k < 7; k++) DRIVER(cuModuleGetTexRef, &code.textures[k], code.module, NAMES[k]);
    for (int k = 0; k < 2; k++) DRIVER(cuModuleGetSurfRef, &code.surfaces[k], code.module, NAMES[7 + k]);
    // What does not change any more.
    bring_format(code, set);
    DRIVER(cuTexRefSetFlags, code.textures[LINE], CU_TRSF_READ_AS_INTEGER);
    DRIVER(cuTexRefSetFormat, code.textures[SHEET], CU_AD_FORMAT_FLOAT, 1);
    for (int d = 0; d < 2; d++) {
        DRIVER(cuTexRefSetAddressMode, code.textures[SHEET], d, CU_TR_ADDRESS_MODE_CLAMP);
        DRIVER(cuTexRefSetAddressMode, code.textures[PLANE], d, CU_TR_ADDRESS_MODE_WRAP);
        DRIVER(cuTexRefSetAddressMode, code.textures[LEVELS], d, CU_TR_ADDRESS_MODE_CLAMP);
        DRIVER(cuTexRefSetAddressMode, code.textures[SHORTS], d, CU_TR_ADDRESS_MODE_CLAMP);
    }
    for (int d = 0; d < 3; d++) DRIVER(cuTexRefSetAddressMode, code.textures[VOLUME], d, CU_TR_ADDRESS_MODE_CLAMP);
    DRIVER(cuTexRefSetFlags, code.textures[PLANE], CU_TRSF_NORMALIZED_COORDINATES);
    DRIVER(cuTexRefSetFilterMode, code.textures[PLANE], CU_TR_FILTER_MODE_LINEAR);
    DRIVER(cuTexRefSetFilterMode, code.textures[VOLUME], CU_TR_FILTER_MODE_LINEAR);
    DRIVER(cuTexRefSetFilterMode, code.textures[COLOURS], CU_TR_FILTER_MODE_POINT);
    DRIVER(cuTexRefSetFlags, code.textures[COLOURS], 0);
    float border[4] = {1, 0, 1, 0};
    DRIVER(cuTexRefSetBorderColor, code.textures[COLOURS], border);
    DRIVER(cuTexRefSetFlags, code.textures[LEVELS], CU_TRSF_NORMALIZED_COORDINATES);
    DRIVER(cuTexRefSetFilterMode, code.textures[LEVELS], CU_TR_FILTER_MODE_POINT);
    DRIVER(cuTexRefSetMipmapFilterMode, code.textures[LEVELS], CU_TR_FILTER_MODE_POINT);
    DRIVER(cuTexRefSetMipmapLevelClamp, code.textures[LEVELS], 0, 10);
    DRIVER(cuTexRefSetMipmapLevelBias, code.textures[LEVELS], 0);
    DRIVER(cuTexRefSetMaxAnisotropy, code.textures[LEVELS], 1);
    DRIVER(cuTexRefSetFilterMode, code.textures[SHORTS], CU_TR_FILTER_MODE_POINT);
    DRIVER(cuTexRefSetFlags, code.textures[SHORTS], CU_TRSF_READ_AS_INTEGER);
    return code;
}

static CUarray driver(cudaArray_t array) { return reinterpret_cast<CUarray>(array); }

static void bind(const Code &code, const Set &set, How how) {
    DRIVER(cuTexRefSetAddress, nullptr, code.textures[LINE], reinterpret_cast<CUdeviceptr>(set.line), 4096 * sizeof(uint2));
    const CUDA_ARRAY_DESCRIPTOR sheet = rows(64, CU_AD_FORMAT_FLOAT, 1);
    DRIVER(cuTexRefSetAddress2D, code.textures[SHEET], &sheet, reinterpret_cast<CUdeviceptr>(set.sheet), set.pitch);
    DRIVER(cuTexRefSetFilterMode, code.textures[SHEET], how.linear ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT);
    DRIVER(cuTexRefSetArray, code.textures[PLANE], driver(set.plane), CU_TRSA_OVERRIDE_FORMAT);
    DRIVER(cuTexRefSetArray, code.textures[VOLUME], driver(set.volume), CU_TRSA_OVERRIDE_FORMAT);
    DRIVER(cuTexRefSetArray, code.textures[COLOURS], driver(set.colours), CU_TRSA_OVERRIDE_FORMAT);
    for (int d = 0; d < 2; d++) {
        DRIVER(cuTexRefSetAddressMode, code.textures[COLOURS], d, how.border ? CU_TR_ADDRESS_MODE_BORDER : CU_TR_ADDRESS_MODE_CLAMP);
    }
    DRIVER(cuTexRefSetMipmappedArray, code.textures[LEVELS], reinterpret_cast<CUmipmappedArray>(set.levels), CU_TRSA_OVERRIDE_FORMAT);
    DRIVER(cuTexRefSetArray, code.textures[SHORTS], driver(set.shorts), CU_TRSA_OVERRIDE_FORMAT);
    DRIVER(cuSurfRefSetArray, code.surfaces[0], driver(set.board), 0);
    DRIVER(cuSurfRefSetArray, code.surfaces[1], driver(set.slab), 0);
}

// The program is told what it has set.
static void ask(const Code &code, const Set &set, How how, program::Report &report) {
    CUtexref again;
    DRIVER(cuModuleGetTexRef, &again, code.module, "volume");
    report.expect_value("the same reference", again == code.textures[VOLUME], 1);
    CUsurfref surface;
    DRIVER(cuModuleGetSurfRef, &surface, code.module, "slab");
    report.expect_value("the same surface reference", surface == code.surfaces[1], 1);
    CUdeviceptr address = 0;
    DRIVER(cuTexRefGetAddress, &address, code.textures[LINE]);
    report.expect_value("address", address == reinterpret_cast<CUdeviceptr>(set.line), 1);
    CUarray array = nullptr;
    DRIVER(cuTexRefGetArray, &array, code.textures[PLANE]);
    report.expect_value("array", array == driver(set.plane), 1);
    DRIVER(cuSurfRefGetArray, &array, code.surfaces[0]);
    report.expect_value("array of a surface", array == driver(set.board), 1);
    CUmipmappedArray levels = nullptr;
    DRIVER(cuTexRefGetMipmappedArray, &levels, code.textures[LEVELS]);
    report.expect_value("mipmapped array", levels == reinterpret_cast<CUmipmappedArray>(set.levels), 1);
    CUaddress_mode mode;
    DRIVER(cuTexRefGetAddressMode, &mode, code.textures[COLOURS], 1);
    report.expect_value("address mode", mode, how.border ? CU_TR_ADDRESS_MODE_BORDER : CU_TR_ADDRESS_MODE_CLAMP);
    CUfilter_mode filter;
    DRIVER(cuTexRefGetFilterMode, &filter, code.textures[SHEET]);
    report.expect_value("filter mode", filter, how.linear ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT);
    CUarray_format format;
    int channels = 0;
    DRIVER(cuTexRefGetFormat, &format, &channels, code.textures[COLOURS]);
    report.expect_value("format", format, CU_AD_FORMAT_UNSIGNED_INT8);
    report.expect_value("channels", channels, 4);
    unsigned flags = 0;
    DRIVER(cuTexRefGetFlags, &flags, code.textures[SHORTS]);
    report.expect_value("flags", flags, CU_TRSF_READ_AS_INTEGER);
    DRIVER(cuTexRefGetMipmapFilterMode, &filter, code.textures[LEVELS]);
    report.expect_value("filter mode of levels", filter, CU_TR_FILTER_MODE_POINT);
    float low = 7, high = 7, colour[4] = {};
    DRIVER(cuTexRefGetMipmapLevelBias, &low, code.textures[LEVELS]);
    report.expect_value("bias", raw(low), raw(0));
    DRIVER(cuTexRefGetMipmapLevelClamp, &low, &high, code.textures[LEVELS]);
    report.expect_value("levels", raw(low) == raw(0) && raw(high) == raw(10), 1);
    DRIVER(cuTexRefGetBorderColor, colour, code.textures[COLOURS]);
    report.expect_value("border", colour[0] == 1 && colour[1] == 0 && colour[2] == 1 && colour[3] == 0, 1);
    int most = 7;
    DRIVER(cuTexRefGetMaxAnisotropy, &most, code.textures[LEVELS]);
    report.expect_value("anisotropy", most, 1);
}

// A reference of no module: it can be set, and no kernel names it.
static void alone(const Code &code, const Set &set, program::Report &report) {
    CUtexref made;
    DRIVER(cuTexRefCreate, &made);
    DRIVER(cuTexRefSetFormat, made, CU_AD_FORMAT_UNSIGNED_INT32, 2);
    DRIVER(cuTexRefSetAddress, nullptr, made, reinterpret_cast<CUdeviceptr>(set.line), 4096 * sizeof(uint2));
    CUdeviceptr address = 0;
    DRIVER(cuTexRefGetAddress, &address, made);
    report.expect_value("address alone", address == reinterpret_cast<CUdeviceptr>(set.line), 1);
    DRIVER(cuTexRefDestroy, made);
    DRIVER(cuParamSetTexRef, code.look, CU_PARAM_TR_DEFAULT, code.textures[LINE]);
}

// What a point should read, and do to the surfaces.
static void host_look(Set &set, How how, uint32_t seed, int point, uint32_t *to) {
    uint32_t h = (static_cast<uint32_t>(point) ^ seed) * 0x9E3779B1u;
    h = (h ^ h >> 15) * 0x85EBCA77u;
    h ^= h >> 13;
    const int f = set.first;
    const long xs = static_cast<long>(h & 2047) - 256, ys = static_cast<long>(h >> 11 & 1023) - 192, zs = static_cast<long>(h >> 21 & 511) - 64;
    const long x = below(xs, 16), y = below(ys, 16), at = h & 4095;
    auto in_plane = [](long i, int d) { return clamped(i, d ? 32 : 64); };
    auto around = [](long i, int d) { return wrapped(i, d ? 32 : 64); };
    auto sheet = [f](long i, long j) { return texel(f + 1, i, j, 0); };
    auto plane = [f](long i, long j) { return texel(f + 2, i, j, 0); };
    to[LINE] = static_cast<uint32_t>(texel(f, at, 0, 0)) ^ static_cast<uint32_t>(texel(f, at, 1, 0)) * 3;
    to[SHEET] = raw(how.linear ? weighed(xs * 16, ys * 16, in_plane, sheet) : sheet(clamped(x, 64), clamped(y, 32)));
    to[PLANE] = raw(weighed(xs * 16, ys * 16, around, plane));
    const long z = below(zs, 4) * 64, k = below(z - 128, 256);
    const float c = static_cast<float>(z - 128 - k * 256) / 256;
    auto slice = [&](long s) {
        return weighed(below(xs, 16) * 64, below(ys, 16) * 64, [](long i, int) { return clamped(i, 16); }, [=](long i, long j) { return texel(f + 3, i, j, clamped(s, 16)); });
    };
    to[VOLUME] = raw((1 - c) * slice(k) + c * slice(k + 1));
    to[COLOURS] = 0;
    const bool outside = how.border && (x < 0 || x >= 40 || y < 0 || y >= 30);
    for (int ch = 0; ch < 4; ch++) {
        const uint32_t byte = outside ? (ch % 2 ? 0u : 255u) : static_cast<uint32_t>(texel(f + 4, clamped(x, 40), clamped(y, 30), ch));
        to[COLOURS] |= byte << 8 * ch;
    }
    const int level = static_cast<int>((h >> 21) % 5);
    to[LEVELS] = raw(texel(f + 6 + level, clamped(below(xs, 16 << level), 64 >> level), clamped(below(ys, 16 << level), 32 >> level), 0));
    const long sx = clamped(x, 40), sy = clamped(y, 30);
    to[SHORTS] = static_cast<uint32_t>(static_cast<int>(texel(f + 5, sx, sy, 0)) - 100) * 65537u + static_cast<uint32_t>(static_cast<int>(texel(f + 5, sx, sy, 1)) - 100);
    uint32_t &cell = set.cells[point];
    to[BOARD] = cell = cell * 1664525u + h;
    uint2 &pair = set.pairs[point];
    pair = make_uint2(pair.y * 22695477u + h, pair.x);
    to[SLAB] = pair.x ^ pair.y;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    CHECK(cudaFree(nullptr));
    // Two modules of the same code: their references have the same names, and are bound to different things.
    Set sets[2] = {make_set(0), make_set(20)};
    Code codes[2] = {load(sets[0]), load(sets[0])};
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *out;
    constexpr size_t WORDS = POINTS * KINDS;
    CHECK(cudaMalloc(&out, 4 * WORDS * sizeof(uint32_t)));
    std::vector<uint32_t> got(4 * WORDS), want(4 * WORDS);
    uint64_t sum = 0;
    uint32_t launches[2] = {};
    for (long step = 0; step < options.steps; step++) {
        // Four launches, and before each another binding; only the last is waited for.
        for (int n = 0; n < 4; n++) {
            const int which = n % 2, of = (n / 2 + which + static_cast<int>(step)) % 2;
            const How how = {(step + n) % 3 != 0, (step + n) % 2 != 0};
            uint32_t seed = static_cast<uint32_t>(step * 4 + n) * 40503u;
            bind(codes[which], sets[of], how);
            uint32_t *to = out + n * WORDS;
            void *args[] = {&to, &seed};
            DRIVER(cuLaunchKernel, codes[which].look, POINTS / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, args, nullptr);
            launches[which]++;
            ask(codes[which], sets[of], how, report);
            for (int point = 0; point < POINTS; point++) host_look(sets[of], how, seed, point, &want[n * WORDS + point * KINDS]);
        }
        CHECK(cudaMemcpyAsync(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < got.size(); i++) sum = program::mix(sum ^ got[i]);
        for (size_t k = 0; k < KINDS; k++)
            for (size_t i = k; i < got.size(); i += KINDS) {
                if (got[i] == want[i]) continue;
                std::fprintf(stderr, "step %ld, launch %zu, point %zu: ", step, i / WORDS, i % WORDS / KINDS);
                report.expect_value(NAMES[k], got[i], want[i]);
                break;
            }
        // What is bound goes, and something else comes in its place. The reference is bound to nothing good for a while.
        Set &old = sets[step % 2];
        if (step % 4 == 1) {
            CHECK(cudaFreeArray(old.plane));
            CHECK(old.first ? cudaFreeHost(old.line) : cudaFree(old.line));
        }
        options.pace();
        if (step % 4 == 1) {
            make_plane(old);
            make_memory(old);
        }
        // So does a module with its references.
        if (step % 8 == 5) {
            alone(codes[0], sets[0], report);
            uint32_t counted;
            CUdeviceptr at;
            size_t bytes;
            Code &code = codes[step / 8 % 2];
            DRIVER(cuModuleGetGlobal, &at, &bytes, code.module, "launches");
            CHECK(cudaMemcpy(&counted, reinterpret_cast<void *>(at), sizeof counted, cudaMemcpyDeviceToHost));
            report.expect_value("launches", counted, launches[step / 8 % 2]);
            DRIVER(cuModuleUnload, code.module);
            code = load(sets[0]);
            launches[step / 8 % 2] = 0;
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    report.line("texels", "all", &sum, sizeof sum);
    for (Set &set : sets) {
        std::vector<uint32_t> cells(POINTS);
        std::vector<uint2> pairs(POINTS);
        CHECK(cudaMemcpy2DFromArray(cells.data(), 64 * 4, set.board, 0, 0, 64 * 4, 16, cudaMemcpyDeviceToHost));
        cudaMemcpy3DParms p = {};
        p.srcArray = set.slab;
        p.dstPtr = make_cudaPitchedPtr(pairs.data(), 16 * sizeof(uint2), 16, 8);
        p.extent = make_cudaExtent(16, 8, 8);
        p.kind = cudaMemcpyDeviceToHost;
        CHECK(cudaMemcpy3D(&p));
        report.expect("board", cells.data(), set.cells.data(), POINTS * 4);
        report.expect("slab", pairs.data(), set.pairs.data(), POINTS * sizeof(uint2));
        report.line("surface", "board", cells.data(), POINTS * 4);
        report.line("surface", "slab", pairs.data(), POINTS * sizeof(uint2));
        compare_set(set, report);
        end_set(set);
    }
    for (Code &code : codes) DRIVER(cuModuleUnload, code.module);
    CHECK(cudaFree(out));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
