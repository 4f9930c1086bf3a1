// Which of a module's variables can be found by name, and what copies to and from them allow.
#include "facts.h"

#include <elf.h>

static CUmodule module;
static CUdeviceptr out;

static CUresult raw_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    unsigned long long words = bytes / 8;
    CUresult result = launch(kernel(module, "raw_copy"), 1, 32, 0, (void *[]){&to, &from, &words});
    return result ? result : cuCtxSynchronize();
}

static CUdeviceptr global(const char *name) {
    CUdeviceptr at;
    size_t size;
    CK(cuModuleGetGlobal(&at, &size, module, name));
    return at;
}

int main(void) {
    CUmemGenericAllocationHandle handle;
    first_context();
    CK(cuMemAddressReserve(&out, ARENA, 0, OWN_AT, 0));
    CK(back(out, 2 << 20, &handle));
    size_t bytes;
    char *cubin = image("module1.cubin", &bytes);
    CK(cuModuleLoadData(&module, cubin));
    int with_heap = 0;
    unsigned long long seen[12];
    CK(launch(kernel(module, "probe"), 1, 1, 0, (void *[]){&out, &with_heap}));
    CK(cuMemcpyDtoH(seen, out, sizeof seen));

    // Our own build's file: its headers are trusted.
    Elf64_Ehdr *file = (Elf64_Ehdr *)cubin;
    Elf64_Shdr *sections = (Elf64_Shdr *)(cubin + file->e_shoff);
    const char *section_names = cubin + sections[file->e_shstrndx].sh_offset;
    int asked = 0, found = 0;
    CUdeviceptr section_at[256] = {0};
    for (int s = 0; s < file->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        Elf64_Sym *symbols = (Elf64_Sym *)(cubin + sections[s].sh_offset);
        const char *names = cubin + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            Elf64_Sym *symbol = &symbols[i];
            if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || symbol->st_shndx >= file->e_shnum) continue;
            const char *name = names + symbol->st_name, *in = section_names + sections[symbol->st_shndx].sh_name;
            CUdeviceptr at = 0;
            size_t size = 0;
            CUresult result = cuModuleGetGlobal(&at, &size, module, name);
            char answer[64] = "";
            unsigned char byte;
            asked++;
            if (!result) {
                found++;
                CUdeviceptr base = at - symbol->st_value, *known = &section_at[symbol->st_shndx & 255];
                snprintf(answer, sizeof answer, "size %s, section base %s, copy error %d", size == symbol->st_size ? "right" : "WRONG",
                         !*known || *known == base ? "the same" : "DIFFERENT", cuMemcpyDtoH(&byte, at, 1));
                *known = base;
            }
            char what[160];
            snprintf(what, sizeof what, "%s (%s, %s)", name, in, ELF64_ST_BIND(symbol->st_info) == STB_LOCAL ? "local" : "global");
            ROW("9", what, "error %d %s", result, answer);
        }
    }
    ROW("9", "data symbols in the cubin / found by name", "%d / %d", asked, found);
    for (int s = 0; s < file->e_shnum && s < 256; s++) {
        const char *in = section_names + sections[s].sh_name;
        if (strncmp(in, ".nv.global", 10) && strncmp(in, ".nv.constant", 12)) continue;
        CUdeviceptr range = 0;
        size_t size = 0;
        CUresult result = section_at[s] ? cuMemGetAddressRange(&range, &size, section_at[s]) : CUDA_ERROR_NOT_FOUND;
        char what[80];
        snprintf(what, sizeof what, "section %s, %zu bytes", in, (size_t)sections[s].sh_size);
        ROW("9", what, "at %llx; cuMemGetAddressRange error %d %llx+%zx", section_at[s], result, range, size);
    }

    static const char *names[] = {"counter", "zeroed", "filled", "constants", "hidden", "op0 (code)", "op1 (code)", "vtable", "static", "text"};
    for (int i = 0; i < 10; i++) {
        unsigned word = 0;
        CUdeviceptr range = 0;
        size_t size = 0;
        CUresult copied = cuMemcpyDtoH(&word, seen[i], 4), ranged = cuMemGetAddressRange(&range, &size, seen[i]);
        char what[80];
        snprintf(what, sizeof what, "%s at %llx by raw address", names[i], seen[i]);
        ROW("9", what, "cuMemcpyDtoH error %d (%x), range error %d %llx+%zx", copied, word, ranged, range, size);
    }

    // Past a symbol's end, and over a whole section.
    static char buffer[1 << 20];
    ROW("9", "copy past the end of the 4-byte counter: 8 / 64 / 4096 / 65536 B", "error %d / %d / %d / %d", cuMemcpyDtoH(buffer, global("counter"), 8),
        cuMemcpyDtoH(buffer, global("counter"), 64), cuMemcpyDtoH(buffer, global("counter"), 4096), cuMemcpyDtoH(buffer, global("counter"), 65536));

    // Constants: by the driver's copy, and by a kernel through the generic address.
    CUdeviceptr constants = global("constants");
    unsigned written[4] = {21, 22, 23, 24}, got = 0;
    int index = 1;
    CUresult to = cuMemcpyHtoD(constants, written, sizeof written), from = cuMemcpyDtoH(buffer, constants, sizeof written);
    CK(launch(kernel(module, "read_constant"), 1, 1, 0, (void *[]){&out, &index}));
    CK(cuMemcpyDtoH(&got, out, 4));
    ROW("9", "constant: driver's copies in and out; then read by a kernel", "error %d, error %d, %s; seen by device code at the same address: %s", to, from, got == 22 ? "new value" : "OLD value", seen[3] == constants ? "yes" : "no");
    written[1] = 32;
    CK(cuMemcpyHtoD(out + 4096, written, sizeof written));
    CUresult raw = raw_copy(constants, out + 4096, sizeof written);
    if (raw) {
        ROW("9", "constant written by a kernel through its generic address", "error %d", raw);
        return 0;
    }
    CK(launch(kernel(module, "read_constant"), 1, 1, 0, (void *[]){&out, &index}));
    CK(cuMemcpyDtoH(&got, out, 4));
    CK(cuMemcpyDtoH(buffer, constants, sizeof written));
    ROW("9", "constant written by a kernel through its generic address", "error 0, next kernel reads %u (wrote 32), driver's copy gives %u", got, ((unsigned *)buffer)[1]);
    ROW("9", "variable read by raw kernel copy: counter", "error %d", raw_copy(out + 8192, global("counter") & ~7ull, 8));
    ROW("9", "code read by raw kernel copy", "error %d", raw_copy(out + 8192, seen[5] & ~7ull, 8));
    return 0;
}
