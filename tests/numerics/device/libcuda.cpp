// A driver without a card, behind the true `cuda.bindings`: what they pass on is looked at as the driver's header has it. Memory of
// the card is memory of files, and kernels run on the processor (host.cpp). Calls that nobody makes are not there.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <string>
#include "../../virtual_card/kernels.cpp"

void card_has(const void*) {}  // tensors stand in for memory of the card

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
struct Location { int type, id; };
struct Properties { int type, handles; Location location; void* windows; unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; };
struct Access { Location location; int flags; };
static const size_t PAGE = 2 << 20;
static const int FIRST = 1000;  // handles are descriptors, and this
static thread_local void* current = nullptr;

static bool here(Location location) { return location.type == 1 && location.id == 0; }

extern "C" {
Result cuCtxGetCurrent(void** context) { return *context = current, SUCCESS; }
Result cuCtxSetCurrent(void* context) { return current = context, SUCCESS; }

Result cuMemGetAllocationGranularity(size_t* granularity, const Properties* asked, int option) {
    *granularity = PAGE;
    return asked->type == 1 && asked->handles == 1 && here(asked->location) && option == 0 ? SUCCESS : INVALID_VALUE;
}
Result cuMemCreate(u64* handle, size_t size, const Properties* asked, u64 flags) {
    const bool plain = !asked->windows && !asked->compression && !asked->rdma && !asked->usage && !flags;
    if (asked->type != 1 || asked->handles != 1 || !here(asked->location) || !plain || size % PAGE) return INVALID_VALUE;
    if (size > (size_t)1 << 40) return OUT_OF_MEMORY;
    const int file = memfd_create("card", 0);
    *handle = FIRST + file;
    return ftruncate(file, size) ? OUT_OF_MEMORY : SUCCESS;
}
Result cuMemExportToShareableHandle(void* descriptor, u64 handle, int kind, u64 flags) {
    *(int*)descriptor = dup(handle - FIRST);
    return kind == 1 && !flags ? SUCCESS : INVALID_VALUE;
}
Result cuMemImportFromShareableHandle(u64* handle, void* descriptor, int kind) {
    const int file = dup((int)(i64)descriptor);
    *handle = FIRST + file;
    return kind == 1 && file >= 0 ? SUCCESS : INVALID_VALUE;
}
Result cuMemAddressReserve(u64* address, size_t size, size_t alignment, u64 wanted, u64 flags) {
    if (alignment || wanted || flags || size % PAGE) return INVALID_VALUE;
    *address = (u64)mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return SUCCESS;
}
Result cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
    if (offset || flags || (size_t)lseek(handle - FIRST, 0, SEEK_END) < size) return INVALID_VALUE;
    void* mapped = mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handle - FIRST, 0);
    return mapped == (void*)address ? SUCCESS : INVALID_VALUE;
}
Result cuMemSetAccess(u64 address, size_t size, const Access* access, size_t count) {
    if (count != 1 || !here(access->location)) return INVALID_VALUE;
    if (access->flags == 1 && getenv("CARD_WRITES_ALWAYS")) return NOT_SUPPORTED;
    return mprotect((void*)address, size, access->flags == 1 ? PROT_READ : PROT_READ | PROT_WRITE) ? INVALID_VALUE : SUCCESS;
}
Result cuMemUnmap(u64 address, size_t size) {
    return mmap((void*)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ? SUCCESS : INVALID_VALUE;
}
Result cuMemAddressFree(u64 address, size_t size) { return munmap((void*)address, size) ? INVALID_VALUE : SUCCESS; }
Result cuMemRelease(u64 handle) { return close(handle - FIRST) ? INVALID_VALUE : SUCCESS; }

Result cuModuleLoadData(void** module, const void* code) {
    *module = (void*)code;
    return memcmp(code, "\x7f" "ELF", 4) ? NOT_SUPPORTED : SUCCESS;
}
Result cuModuleGetFunction(void** function, void*, const char* name) {
    *function = new std::string(name);
    return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), (std::string("run_") + name).c_str()) ? SUCCESS : NOT_FOUND;
}
}  // extern "C"

extern "C" {
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c, unsigned shared,
                      void*, void** values, void** extra) {
    if (!current) return INVALID_CONTEXT;
    if (!x || y != 1 || z != 1 || threads != 256 || b != 1 || c != 1 || shared || extra) return INVALID_VALUE;
    const std::string& name = *(std::string*)function;
    auto work = host_kernel(name, x, values);
    return work ? (work(), SUCCESS) : NOT_FOUND;
}

Result cuGetProcAddress_v2(const char* name, void** place, int, u64, int* found) {
    *place = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
    if (found) *found = *place ? 0 : 1;
    return *place ? SUCCESS : NOT_FOUND;
}
}  // extern "C"
