// A card in software, behind a true build of torch with CUDA: the runtime and the driver, over memory of the host.
//
// Streams are queues; what they hold is done when somebody waits for it (CARD=late, the usual), at once (CARD=early), or by chance, also
// ahead of other streams that they do not wait for (CARD=mixed). Recordings
// follow the rules of CUDA 13 on what may be called meanwhile ("Cross-stream Dependencies and Events", "Prohibited and Unhandled
// Operations" in the CUDA C++ Programming Guide), and a replay does its nodes in any order that their edges allow.
// It is as strict as a card may be. New memory is full of ones. Kernels that take memory of the host or none end the process, and so do
// copies from pages that were unmapped while registered. Nothing waits but what is said to wait. Vectors lie where a card reads them.
// Runs of `benchmarks.gpu --check` have the same digests here over layouts, kills and repeats, with both. What no operation here does:
// `torch.compile`, kernels of attention, depthwise convolutions, and embeddings whose CUDA form takes other arguments.
//
// CARD_GB, CARD_COUNT: what there is; CARD_SEED: of chance; CARD_LOG: a file for what it says; CARD_TRACE=1: says more, such as each wait and
// the lines of Python that wait; CARD_NOW: operations (a pattern) that are done at once; CARD_OPS: a file with a line for each operation and
// its stream. CARD_ERROR: the number of the error for which a kernel fails in place of an assertion; 0 for one that never ends.
// CARD_FAULTS: a file whose lines make errors begin, also in the middle of a run; it is read again whenever it is written.
//     WHAT CODE [card=INDEX] [after=COUNT] [times=COUNT]
// WHAT: kernel (fails with that code, which stays; 0: never ends), start (CUDA does not begin), memory, host, create, export, import, map
// (such a call is refused), reads (what is read of another process's memory arrives with a bit turned), nvml (0: hangs). card: as CARD_COUNT
// counts them. after: so many such calls of a process first. times: so often in all processes together, once by default, and 0 for always.
// Kernels of torch are not run: operations.cpp has its operations on the processor. Those of sums.cu are (host.cpp).
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include "card.h"

std::function<void()> host_kernel(const std::string& name, int blocks, void** values);

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace {
using Clock = std::chrono::steady_clock;
const size_t PAGE = 2 << 20;
size_t whole() { static size_t size = (size_t)((getenv("CARD_GB") ? atof(getenv("CARD_GB")) : 16) * (1ull << 30)); return size; }
bool late() { static bool is = !getenv("CARD") || strcmp(getenv("CARD"), "early"); return is; }
std::recursive_mutex all;
std::vector<std::function<void()>> past;  // work that was done and still holds its tensors
int depth = 0;                            // of calls that have the lock

// To let go of a tensor of Python's needs the interpreter, which a thread that waits for this lock may have. So the outermost call
// lets go of what was done once it has given the lock back.
struct Locked {
    Locked() { all.lock(), depth++; }
    ~Locked() {
        std::vector<std::function<void()>> gone;
        if (--depth == 0) gone.swap(past);
        all.unlock();
    }
};
#define LOCKED Locked locked

struct Recording;
struct Event {
    bool timed = true, done = true;
    struct Stream* stream = nullptr;  // where it waits its turn
    unsigned long turn = 0;
    Clock::time_point at = Clock::now();
    std::shared_ptr<Recording> recording;  // it was recorded there
    std::set<int> behind;                  // nodes of it
};
struct Step {
    std::function<void()> work;       // or:
    std::shared_ptr<Event> reached;   // recorded here
    struct Stream* other = nullptr;   // waited for
    unsigned long turn = 0;           // until its turn
};
struct Stream {
    std::deque<Step> steps;
    unsigned long first = 0, next = 0;  // turns of the first step that waits, and of the next to come
    std::shared_ptr<Recording> recording;
    std::set<int> behind;  // the nodes that its next one follows
    int priority = 0;
    bool own = false;  // the default one
};
struct Node {
    std::function<void()> work;
    std::set<int> behind;
};
struct Recording {
    Stream* origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    unsigned long long id;
    bool spoilt = false;
    std::vector<Node> nodes;
    std::set<Stream*> streams;
};
struct Graph { std::vector<Node> nodes; };

Stream own_stream;
std::set<std::shared_ptr<Recording>> recordings;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last = cudaSuccess;
thread_local int current_device = 0;
cudaError_t broken = cudaSuccess;  // an error of the card that stays
std::map<char*, size_t> device_memory, host_memory;
struct Registered { size_t size; std::string pages; };
std::map<char*, Registered> registered;  // pages: the file behind them, when they were
size_t taken = 0;
unsigned long long recorded = 0;
std::map<void*, std::shared_ptr<Event>> events;
std::mt19937 chance(getenv("CARD_SEED") ? atoi(getenv("CARD_SEED")) : 1);

void note(const char* format, ...) {
    va_list values;
    va_start(values, format);
    FILE* file = getenv("CARD_LOG") ? fopen(getenv("CARD_LOG"), "a") : stderr;
    fprintf(file, "card in software, process %d: ", getpid());
    vfprintf(file, format, values);
    fprintf(file, "\n");
    if (file != stderr) fclose(file);
    va_end(values);
}
// Who waits: the innermost calls of this thread's Python, which need not hold the interpreter's lock to be read.
std::string python_here() {
    static auto dump = (void (*)(int, void*))dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
    static auto thread = (void* (*)())dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    void* state = dump && thread ? thread() : nullptr;
    if (!state) return "";
    const int file = memfd_create("trace", 0);
    dump(file, state);
    std::string text(1 << 14, 0), found;
    const ssize_t size = pread(file, text.data(), text.size(), 0);
    close(file);
    text.resize(size > 0 ? size : 0);
    size_t at = 0;
    for (int calls = 0; calls < 6 && (at = text.find("File \"", at)) != std::string::npos; calls++) {
        const size_t end = text.find('\n', at), name = text.rfind('/', text.find("\", line", at)) + 1;
        found += " < " + text.substr(name, end - name);
        at = end;
    }
    return found;
}
void note_wait(const char* what) {
    if (getenv("CARD_TRACE")) note("waits for %s%s", what, python_here().c_str());
}
cudaError_t failed(cudaError_t error) {
    if (getenv("CARD_TRACE")) note("error %d", error);
    return last = error;
}
Stream* of(cudaStream_t stream) { return (uintptr_t)stream <= 2 ? (own_stream.own = true, &own_stream) : (Stream*)stream; }

int fault(const char* what, bool of_a_card = true);
void read_wrongly(const std::function<void()>& work);
void do_until(Stream* stream, unsigned long turn) {
    while (stream->first < turn && !stream->steps.empty()) {
        Step step = std::move(stream->steps.front());
        stream->steps.pop_front();
        if (step.other) do_until(step.other, step.turn);
        if (step.work && broken == cudaSuccess) {
            try {
                if (const int code = fault("kernel"); code >= 0) {
                    while (!code) std::this_thread::sleep_for(std::chrono::seconds(1));
                    broken = (cudaError_t)code;
                } else {
                    read_wrongly(step.work);
                }
            } catch (const OutOfReach& error) {
                note("%.600s", error.what());
                broken = cudaErrorIllegalAddress;
            } catch (const std::exception& error) {
                note("an assertion of a kernel: %.600s", error.what());
                broken = (cudaError_t)(getenv("CARD_ERROR") ? atoi(getenv("CARD_ERROR")) : cudaErrorAssert);
                while (!broken) std::this_thread::sleep_for(std::chrono::seconds(1));
            }
        }
        if (step.work) past.push_back(std::move(step.work));
        if (step.reached) step.reached->done = true, step.reached->at = Clock::now();
        stream->first++;
    }
}
void do_all(Stream* stream) { do_until(stream, stream->next); }
std::set<Stream*>& streams() { static std::set<Stream*> known{&own_stream}; return known; }
void do_everything() { for (Stream* stream : streams()) do_all(stream); }
void add(Stream* stream, Step step) {
    stream->steps.push_back(std::move(step));
    stream->next++;
    if (!late() || stream->steps.size() > 5000) return do_all(stream);
    static const bool mixed = getenv("CARD") && !strcmp(getenv("CARD"), "mixed");
    if (!mixed) return;
    for (Stream* each : streams()) {
        if (each->own ? chance() % 50 == 0 : chance() % 2 == 0) do_until(each, each->first + chance() % (each->steps.size() + 1));
    }
}

cudaError_t spoilt(const std::shared_ptr<Recording>& recording, cudaError_t error) {
    recording->spoilt = true;
    return failed(error);
}
// Calls that may not be made while something is recorded, as this thread has it (cudaThreadExchangeStreamCaptureMode).
cudaError_t unsafe() {
    LOCKED;
    if (broken != cudaSuccess) return failed(broken);
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    cudaError_t found = cudaSuccess;
    for (auto& recording : recordings) {
        const bool mine = recording->thread == std::this_thread::get_id();
        const bool counts = mine ? recording->mode != cudaStreamCaptureModeRelaxed
                                 : thread_mode == cudaStreamCaptureModeGlobal && recording->mode == cudaStreamCaptureModeGlobal;
        if (counts) found = spoilt(recording, cudaErrorStreamCaptureUnsupported);
    }
    return found;
}
int node(Stream* stream, std::function<void()> work) {
    auto& recording = stream->recording;
    recording->nodes.push_back({std::move(work), stream->behind});
    const int number = recording->nodes.size() - 1;
    stream->behind = {number};
    return number;
}
bool holds(const std::map<char*, size_t>& memory, const void* pointer) {
    auto found = memory.upper_bound((char*)pointer);
    return found != memory.begin() && (--found, (char*)pointer < found->first + found->second);
}
std::map<char*, Registered>::iterator registered_with(const void* pointer) {
    auto found = registered.upper_bound((char*)pointer);
    if (found == registered.begin()) return registered.end();
    --found;
    return (char*)pointer < found->first + found->second.size ? found : registered.end();
}
// Device and file of the memory that is mapped there now.
std::string pages_at(const void* pointer) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long start, end, offset, inode;
        char flags[8], device[16];
        if (sscanf(line.c_str(), "%lx-%lx %7s %lx %15s %lu", &start, &end, flags, &offset, device, &inode) == 6 && (uintptr_t)pointer >= start && (uintptr_t)pointer < end)
            return std::string(device) + ":" + std::to_string(inode);
    }
    return "";
}
bool pageable(const void* pointer) {
    LOCKED;
    return !holds(device_memory, pointer) && !holds(host_memory, pointer) && registered_with(pointer) == registered.end();
}
// What CUDA_VISIBLE_DEVICES said when CUDA began in this process.
bool has_begun = false;
std::vector<std::string> seen_then;
std::vector<std::string> visible() {
    if (has_begun) return seen_then;
    const int there = getenv("CARD_COUNT") ? atoi(getenv("CARD_COUNT")) : 1;
    std::vector<std::string> names;
    for (int i = 0; i < there; i++) names.push_back(std::to_string(i));
    const char* chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (!chosen) return names;
    std::vector<std::string> found;
    std::string rest = chosen;
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        std::string one = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        bool known = false;
        for (int i = 0; i < there; i++) {
            char uuid[64];
            snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012d", i + 1);
            if (one == names[i] || (one.size() > 4 && !strncmp(uuid, one.c_str(), one.size()))) found.push_back(names[i]), known = true;
        }
        if (!known) break;
    }
    return found;
}

// ---- faults -------------------------------------------------------------------------------------------------------------

int card_here() {
    auto names = visible();
    return current_device < (int)names.size() ? atoi(names[current_device].c_str()) : -1;
}
struct Fault {
    std::string what, line;
    int code = 0, card = -1, times = 1;
    long after = 0;
};
// The code of a fault that comes now, at a call of this kind; -1: none does.
int fault(const char* what, bool of_a_card) {
    static const char* path = getenv("CARD_FAULTS");
    static std::mutex once;
    static std::vector<Fault> known;
    static struct timespec written{};
    static std::map<std::string, long> calls;  // by line, since it is there
    struct stat now;
    if (!path || stat(path, &now)) return -1;
    std::lock_guard<std::mutex> alone(once);
    if (now.st_mtim.tv_sec != written.tv_sec || now.st_mtim.tv_nsec != written.tv_nsec) {
        written = now.st_mtim;
        known.clear();
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) {
            std::istringstream words(line);
            Fault found;
            found.line = line;
            words >> found.what >> found.code;
            for (std::string word; words >> word;) {
                const long value = atol(word.c_str() + word.find('=') + 1);
                if (!word.rfind("card=", 0)) found.card = value;
                else if (!word.rfind("after=", 0)) found.after = value;
                else if (!word.rfind("times=", 0)) found.times = value;
                else note("no word of a fault: %s", word.c_str());
            }
            known.push_back(found);
        }
    }
    for (Fault& each : known) {
        if (each.what != what || (each.card >= 0 && of_a_card && each.card != card_here()) || calls[each.line]++ < each.after) continue;
        bool mine = !each.times;
        for (int i = 0; i < each.times && !mine; i++) {  // whoever makes the file has it
            const std::string name = std::string(path) + "." + std::to_string(std::hash<std::string>{}(each.line)) + "." + std::to_string(i);
            const int file = open(name.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            mine = file >= 0;
            if (mine) close(file);
        }
        if (!mine) continue;
        note("a fault on card %d: %s", card_here(), each.line.c_str());
        return each.code;
    }
    return -1;
}
}  // namespace

__attribute__((visibility("default"))) void card_reaches(const void* pointer) {
    if (!pointer || holds(device_memory, pointer)) return;
    auto found = registered_with(pointer);
    if (found == registered.end() || found->second.pages == pages_at(pointer)) return;
    throw OutOfReach("the card copies from or to the pages that were at an address when it was registered; others are there now");
}
__attribute__((visibility("default"))) void card_has(const void* pointer) {
    if (pointer && !holds(device_memory, pointer)) throw OutOfReach("a kernel takes memory that is not the card's, or not any more");
}
__attribute__((visibility("default"))) bool card_is_recorded(cudaStream_t stream) { LOCKED; return (bool)of(stream)->recording; }
__attribute__((visibility("default"))) cudaError_t card_enqueue(cudaStream_t stream, std::function<void()> work) {
    LOCKED;
    if (broken != cudaSuccess) return failed(broken);
    Stream* own = of(stream);
    if (own->recording) {
        if (own->recording->spoilt) return failed(cudaErrorStreamCaptureInvalidated);
        node(own, std::move(work));
    } else {
        add(own, {std::move(work)});
    }
    return broken == cudaSuccess ? cudaSuccess : failed(broken);
}

// ---- devices ------------------------------------------------------------------------------------------------------------

static void load_operations() {
    static std::once_flag once;
    std::call_once(once, [] {
        Dl_info here;
        dladdr((void*)&load_operations, &here);
        const std::string path = here.dli_fname;
        const std::string file = path.substr(0, path.rfind('/') + 1) + "operations.so";
        if (access(file.c_str(), R_OK) == 0 && !dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL)) note("%s", dlerror());
    });
}
// Asked once: whether CUDA begins in a process is settled then. Where it has begun, a fork of the process has none.
static int cannot_start() {
    static int code = fault("start");
    static pid_t process = getpid();
    if (!has_begun) seen_then = visible(), has_begun = true;
    if (process != getpid()) return note("CUDA had begun before this process was forked"), cudaErrorInitializationError;
    return code;
}
SHOWN cudaError_t cudaGetDeviceCount(int* count) {
    if (const int code = cannot_start(); code > 0) return *count = 0, failed((cudaError_t)code);
    *count = visible().size();
    return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}
SHOWN cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= (int)visible().size()) return failed(cudaErrorInvalidDevice);
    load_operations();
    current_device = device;
    return broken == cudaSuccess ? cudaSuccess : failed(broken);
}
SHOWN cudaError_t cudaGetDevice(int* device) {
    if (const int code = cannot_start(); code > 0) return failed((cudaError_t)code);
    if (visible().empty()) return failed(cudaErrorNoDevice);
    *device = current_device;
    return cudaSuccess;
}
SHOWN cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    load_operations();
    auto names = visible();
    if (device < 0 || device >= (int)names.size()) return failed(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "Card in software");
    char digits[16];
    snprintf(digits, sizeof digits, "%012d", atoi(names[device].c_str()) + 1);
    for (int i = 0; i < 6; i++) properties->uuid.bytes[10 + i] = strtol(std::string(digits + 2 * i, 2).c_str(), nullptr, 16);
    properties->totalGlobalMem = whole();
    properties->major = 9;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->regsPerMultiprocessor = properties->regsPerBlock = 65536;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = properties->sharedMemPerMultiprocessor = 227 << 10;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024, properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647, properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->unifiedAddressing = properties->concurrentKernels = 1;
    properties->l2CacheSize = 50 << 20;
    properties->asyncEngineCount = 3;
    properties->memoryBusWidth = 5120;
    properties->textureAlignment = 512;
    return cudaSuccess;
}
SHOWN cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
        case cudaDevAttrUnifiedAddressing: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
SHOWN cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
SHOWN cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
SHOWN cudaError_t cudaDeviceGetPCIBusId(char* into, int length, int device) { return snprintf(into, length, "0000:%02d:00.0", device + 1), cudaSuccess; }
SHOWN cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
SHOWN cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
SHOWN cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
SHOWN cudaError_t cudaProfilerStart() { return cudaSuccess; }
SHOWN cudaError_t cudaProfilerStop() { return cudaSuccess; }
SHOWN cudaError_t cudaGetLastError() {
    const cudaError_t error = broken != cudaSuccess ? broken : last;
    return last = cudaSuccess, error;
}
SHOWN cudaError_t cudaPeekAtLastError() { return broken != cudaSuccess ? broken : last; }
static const std::map<int, std::pair<const char*, const char*>> TOLD = {
    {0, {"cudaSuccess", "no error"}}, {1, {"cudaErrorInvalidValue", "invalid argument"}},
    {2, {"cudaErrorMemoryAllocation", "out of memory"}}, {100, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
    {101, {"cudaErrorInvalidDevice", "invalid device ordinal"}}, {600, {"cudaErrorNotReady", "device not ready"}},
    {400, {"cudaErrorInvalidResourceHandle", "invalid resource handle"}}, {700, {"cudaErrorIllegalAddress", "an illegal memory access was encountered"}},
    {710, {"cudaErrorAssert", "device-side assert triggered"}}, {214, {"cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"}},
    {46, {"cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"}}, {999, {"cudaErrorUnknown", "unknown error"}},
    {3, {"cudaErrorInitializationError", "initialization error"}}, {35, {"cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"}},
    {220, {"cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"}}, {702, {"cudaErrorLaunchTimeout", "the launch timed out and was terminated"}},
    {714, {"cudaErrorHardwareStackError", "hardware stack error"}}, {715, {"cudaErrorIllegalInstruction", "an illegal instruction was encountered"}},
    {716, {"cudaErrorMisalignedAddress", "misaligned address"}}, {717, {"cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"}},
    {718, {"cudaErrorInvalidPc", "invalid program counter"}}, {802, {"cudaErrorSystemNotReady", "system not yet initialized"}},
    {803, {"cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination"}},
    {719, {"cudaErrorLaunchFailure", "unspecified launch failure"}}, {801, {"cudaErrorNotSupported", "operation not supported"}},
    {712, {"cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"}},
    {713, {"cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"}},
    {900, {"cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"}},
    {901, {"cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"}},
    {904, {"cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"}},
    {905, {"cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"}},
    {907, {"cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"}},
    {908, {"cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"}},
    {401, {"cudaErrorIllegalState", "the operation cannot be performed in the present state"}},
};
SHOWN const char* cudaGetErrorString(cudaError_t error) { auto found = TOLD.find(error); return found == TOLD.end() ? "unknown error" : found->second.second; }
SHOWN const char* cudaGetErrorName(cudaError_t error) { auto found = TOLD.find(error); return found == TOLD.end() ? "cudaErrorUnknown" : found->second.first; }

// ---- memory -------------------------------------------------------------------------------------------------------------

SHOWN cudaError_t cudaMalloc(void** address, size_t size) {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    const size_t pages = (size + PAGE - 1) / PAGE * PAGE;
    if (taken + pages > whole() || fault("memory") >= 0) return failed(cudaErrorMemoryAllocation);
    const int file = memfd_create("card", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, pages)) return failed(cudaErrorMemoryAllocation);
    *address = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    memset(*address, 0xff, pages);
    device_memory[(char*)*address] = pages;
    taken += pages;
    return cudaSuccess;
}
SHOWN cudaError_t cudaFree(void* address) {
    if (!address) return cudaSuccess;
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    auto found = device_memory.find((char*)address);
    if (found == device_memory.end()) return failed(cudaErrorInvalidValue);
    do_everything();
    munmap(address, found->second);
    taken -= found->second;
    device_memory.erase(found);
    return cudaSuccess;
}
SHOWN cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) { return cudaMalloc(address, size); }
SHOWN cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
// Bytes of the card that any process of this machine has mapped, or has open.
static size_t taken_by_all() {
    std::map<std::string, size_t> sizes;
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
        const std::string name = process.path().filename();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        std::ifstream maps(process.path() / "maps");
        for (std::string line; std::getline(maps, line);) {
            if (line.find("/memfd:card (deleted)") == std::string::npos) continue;
            unsigned long start, end, offset, inode;
            char flags[8], device[16];
            if (sscanf(line.c_str(), "%lx-%lx %7s %lx %15s %lu", &start, &end, flags, &offset, device, &inode) != 6) continue;
            auto& size = sizes[std::to_string(inode)];
            size = std::max(size, offset + end - start);
        }
        std::error_code gone;
        for (std::filesystem::directory_iterator open(process.path() / "fd", gone), last; !gone && open != last; open.increment(gone)) {
            struct stat told;
            if (std::filesystem::read_symlink(open->path(), gone) == "/memfd:card (deleted)" && !stat(open->path().c_str(), &told)) sizes[std::to_string(told.st_ino)] = told.st_size;
        }
    }
    size_t sum = 0;
    for (const auto& each : sizes) sum += each.second;
    return sum;
}
SHOWN cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    LOCKED;
    if (broken != cudaSuccess) return failed(broken);
    return *total = whole(), *free = whole() - std::min(whole(), taken_by_all()), cudaSuccess;
}
SHOWN cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
    if (cudaError_t no = unsafe()) return no;
    if (fault("host") >= 0) return failed(cudaErrorMemoryAllocation);
    LOCKED;
    if (posix_memalign(address, 4096, std::max<size_t>(size, 1))) return failed(cudaErrorMemoryAllocation);
    host_memory[(char*)*address] = size;
    return cudaSuccess;
}
SHOWN cudaError_t cudaFreeHost(void* address) {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    auto found = host_memory.find((char*)address);
    if (found == host_memory.end()) return failed(cudaErrorInvalidValue);
    memset(address, 0xff, found->second);  // a copy that is not done yet takes this
    host_memory.erase(found);
    free(address);
    return cudaSuccess;
}
SHOWN cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    if (!address || !size) return failed(cudaErrorInvalidValue);
    const uintptr_t page = 4096, start = (uintptr_t)address / page * page, end = ((uintptr_t)address + size + page - 1) / page * page;
    for (auto& each : registered)  // whole pages are
        if ((uintptr_t)each.first / page * page < end && start < (uintptr_t)each.first + each.second.size) return failed(cudaErrorHostMemoryAlreadyRegistered);
    registered[(char*)address] = {size, pages_at(address)};
    return cudaSuccess;
}
SHOWN cudaError_t cudaHostUnregister(void* address) {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    return registered.erase((char*)address) ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}
SHOWN cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* into, const void* pointer) {
    LOCKED;
    memset(into, 0, sizeof *into);
    if (holds(device_memory, pointer)) into->type = cudaMemoryTypeDevice, into->devicePointer = (void*)pointer;
    else if (holds(host_memory, pointer) || registered_with(pointer) != registered.end()) into->type = cudaMemoryTypeHost, into->hostPointer = into->devicePointer = (void*)pointer;
    else into->type = cudaMemoryTypeUnregistered, into->device = -2, into->hostPointer = (void*)pointer;
    return cudaSuccess;
}
SHOWN cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    const cudaError_t error = card_enqueue(stream, [=] { card_reaches(to), card_reaches(from), memmove(to, from, size); });
    if (error == cudaSuccess && !card_is_recorded(stream) && (pageable(to) || pageable(from))) {
        LOCKED;
        note_wait("a copy of memory that is not page-locked");
        do_all(of(stream));
    }
    return error;
}
SHOWN cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}
SHOWN cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    const cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr);
    do_all(&own_stream);
    return error;
}
SHOWN cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
    return card_enqueue(stream, [=] { for (size_t i = 0; i < height; i++) memmove((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width); });
}
SHOWN cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) { return card_enqueue(stream, [=] { memset(to, value, size); }); }
SHOWN cudaError_t cudaMemset(void* to, int value, size_t size) {
    if (cudaError_t no = unsafe()) return no;
    return cudaMemsetAsync(to, value, size, nullptr);
}
SHOWN cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
SHOWN cudaError_t cudaGetSymbolAddress(void**, const void*) { return failed(cudaErrorNotSupported); }

// ---- streams and events -------------------------------------------------------------------------------------------------

SHOWN cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
    LOCKED;
    auto* made = new Stream;
    made->priority = priority;
    streams().insert(made);
    *stream = (cudaStream_t)made;
    return cudaSuccess;
}
SHOWN cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
SHOWN cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
SHOWN cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { return *priority = of(stream)->priority, cudaSuccess; }
static cudaError_t waited(Stream* stream) {
    if (stream->recording) return spoilt(stream->recording, cudaErrorStreamCaptureUnsupported);
    do_all(stream);
    return broken == cudaSuccess ? cudaSuccess : failed(broken);
}
SHOWN cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCKED;
    note_wait("a stream");
    if (of(stream)->own)
        if (cudaError_t no = unsafe()) return no;
    return waited(of(stream));
}
SHOWN cudaError_t cudaStreamQuery(cudaStream_t stream) {
    LOCKED;
    Stream* own = of(stream);
    if (own->recording) return spoilt(own->recording, cudaErrorStreamCaptureUnsupported);
    do_until(own, own->first + chance() % (own->steps.size() + 1));
    if (broken != cudaSuccess) return failed(broken);
    return own->steps.empty() ? cudaSuccess : cudaErrorNotReady;
}
SHOWN cudaError_t cudaDeviceSynchronize() {
    if (cudaError_t no = unsafe()) return no;
    LOCKED;
    note_wait("the card");
    do_everything();
    return broken == cudaSuccess ? cudaSuccess : failed(broken);
}
SHOWN cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    LOCKED;
    auto made = std::make_shared<Event>();
    made->timed = !(flags & cudaEventDisableTiming);
    events[made.get()] = made;
    *event = (cudaEvent_t)made.get();
    return cudaSuccess;
}
SHOWN cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
SHOWN cudaError_t cudaEventDestroy(cudaEvent_t event) { LOCKED; return events.erase((void*)event) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle); }
SHOWN cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    LOCKED;
    if (broken != cudaSuccess) return failed(broken);
    auto found = events.find((void*)event);
    if (found == events.end()) return failed(cudaErrorInvalidResourceHandle);
    auto known = found->second;
    Stream* own = of(stream);
    if (own->recording) {
        if (flags & cudaEventRecordExternal) {
            node(own, [known] { known->done = true, known->at = Clock::now(); });
            return cudaSuccess;
        }
        known->recording = own->recording, known->behind = own->behind;
        return cudaSuccess;
    }
    known->recording = nullptr;
    known->done = false, known->stream = own;
    Step step;
    step.reached = known;
    add(own, std::move(step));
    known->turn = own->next;
    return cudaSuccess;
}
SHOWN cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
SHOWN cudaError_t cudaEventQuery(cudaEvent_t event) {
    LOCKED;
    if (cudaError_t no = unsafe()) return no;
    auto found = events.find((void*)event);
    if (found == events.end()) return failed(cudaErrorInvalidResourceHandle);
    Event& known = *found->second;
    if (known.recording) return spoilt(known.recording, cudaErrorCapturedEvent);
    if (!known.done && known.stream) do_until(known.stream, known.stream->first + chance() % (known.stream->steps.size() + 1));
    if (broken != cudaSuccess) return failed(broken);
    return known.done ? cudaSuccess : cudaErrorNotReady;
}
SHOWN cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LOCKED;
    if (cudaError_t no = unsafe()) return no;
    note_wait("an event");
    auto found = events.find((void*)event);
    if (found == events.end()) return failed(cudaErrorInvalidResourceHandle);
    Event& known = *found->second;
    if (known.recording) return spoilt(known.recording, cudaErrorCapturedEvent);
    if (!known.done && known.stream) do_until(known.stream, known.turn);
    return broken == cudaSuccess ? cudaSuccess : failed(broken);
}
SHOWN cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    LOCKED;
    auto first = events.find((void*)start), second = events.find((void*)end);
    if (first == events.end() || second == events.end() || !first->second->timed || !second->second->timed) return failed(cudaErrorInvalidResourceHandle);
    if (!first->second->done || !second->second->done) return failed(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(second->second->at - first->second->at).count();
    return cudaSuccess;
}
SHOWN cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    LOCKED;
    auto found = events.find((void*)event);
    if (found == events.end()) return failed(cudaErrorInvalidResourceHandle);
    Event& known = *found->second;
    Stream* own = of(stream);
    if (known.recording && recordings.count(known.recording)) {
        if (own->recording && own->recording != known.recording) return spoilt(own->recording, cudaErrorStreamCaptureIsolation);
        if (!own->recording) own->recording = known.recording, own->behind.clear(), known.recording->streams.insert(own);
        own->behind.insert(known.behind.begin(), known.behind.end());
        return cudaSuccess;
    }
    if (own->recording) return flags & cudaEventWaitExternal ? cudaSuccess : spoilt(own->recording, cudaErrorStreamCaptureIsolation);
    if (!known.done && known.stream) {
        Step step;
        step.other = known.stream, step.turn = known.turn;
        add(own, std::move(step));
    }
    return cudaSuccess;
}
SHOWN cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) { return card_enqueue(stream, [=] { function(data); }); }
SHOWN cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    return card_enqueue(stream, [=] { function(stream, cudaSuccess, data); });
}

// ---- recordings ---------------------------------------------------------------------------------------------------------

SHOWN cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    LOCKED;
    if (broken != cudaSuccess) return failed(broken);
    Stream* own = of(stream);
    if (own->own) return failed(cudaErrorStreamCaptureUnsupported);
    if (own->recording) return failed(cudaErrorIllegalState);
    auto made = std::make_shared<Recording>();
    made->origin = own, made->mode = mode, made->thread = std::this_thread::get_id(), made->id = ++recorded;
    made->streams.insert(own);
    own->recording = made, own->behind.clear();
    recordings.insert(made);
    return cudaSuccess;
}
SHOWN cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    LOCKED;
    *graph = nullptr;
    Stream* own = of(stream);
    auto recording = own->recording;
    if (!recording) return failed(cudaErrorIllegalState);
    if (recording->origin != own) return spoilt(recording, (cudaError_t)903);
    if (recording->mode != cudaStreamCaptureModeRelaxed && recording->thread != std::this_thread::get_id()) return failed(cudaErrorStreamCaptureWrongThread);
    std::set<int> leaves;
    for (size_t i = 0; i < recording->nodes.size(); i++) leaves.insert(i);
    for (auto& each : recording->nodes)
        for (int before : each.behind) leaves.erase(before);
    bool joined = true;
    for (int leaf : leaves) joined = joined && own->behind.count(leaf);
    for (Stream* each : recording->streams) each->recording = nullptr, each->behind.clear();
    recordings.erase(recording);
    if (recording->spoilt) return failed(cudaErrorStreamCaptureInvalidated);
    if (!joined) return failed(cudaErrorStreamCaptureUnjoined);
    *graph = (cudaGraph_t) new Graph{recording->nodes};
    return cudaSuccess;
}
SHOWN cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    LOCKED;
    auto& recording = of(stream)->recording;
    *status = !recording ? cudaStreamCaptureStatusNone : recording->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
SHOWN cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
    LOCKED;
    cudaStreamIsCapturing(stream, status);
    if (*status == cudaStreamCaptureStatusActive && id) *id = of(stream)->recording->id;
    if (graph) *graph = nullptr;
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
SHOWN cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) { return std::swap(*mode, thread_mode), cudaSuccess; }
SHOWN cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
    if (!graph) return failed(cudaErrorInvalidValue);
    *ready = (cudaGraphExec_t) new std::shared_ptr<Graph>(new Graph(*(Graph*)graph));
    return cudaSuccess;
}
static void replayed(const Graph& graph) {
    const size_t count = graph.nodes.size();
    std::vector<int> waits(count);
    std::vector<std::vector<int>> next(count);
    std::vector<int> ready;
    for (size_t i = 0; i < count; i++) {
        waits[i] = graph.nodes[i].behind.size();
        for (int before : graph.nodes[i].behind) next[before].push_back(i);
        if (!waits[i]) ready.push_back(i);
    }
    while (!ready.empty()) {
        const size_t chosen = chance() % ready.size();
        const int number = ready[chosen];
        ready.erase(ready.begin() + chosen);
        graph.nodes[number].work();
        for (int each : next[number])
            if (!--waits[each]) ready.push_back(each);
    }
}
SHOWN cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
    auto graph = *(std::shared_ptr<Graph>*)ready;
    return card_enqueue(stream, [graph] { replayed(*graph); });
}
SHOWN cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete (Graph*)graph, cudaSuccess; }
SHOWN cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return delete (std::shared_ptr<Graph>*)ready, cudaSuccess; }
SHOWN cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) { return *count = ((Graph*)graph)->nodes.size(), cudaSuccess; }
SHOWN cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
SHOWN cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) { return *count = 0, cudaSuccess; }

// ---- kernels ------------------------------------------------------------------------------------------------------------

static std::map<const void*, std::string>& kernels() { static auto* known = new std::map<const void*, std::string>; return *known; }
SHOWN void** __cudaRegisterFatBinary(void*) { static void* handle[16]; return handle; }
SHOWN void __cudaRegisterFatBinaryEnd(void**) {}
SHOWN void __cudaUnregisterFatBinary(void**) {}
SHOWN char __cudaInitModule(void**) { return 1; }
SHOWN void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SHOWN void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) { kernels()[host] = name; }
struct Shape { dim3 grid, block; size_t shared; void* stream; };
static thread_local Shape shape;
SHOWN unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) { return shape = {grid, block, shared, stream}, 0; }
SHOWN cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    return *grid = shape.grid, *block = shape.block, *shared = shape.shared, *(void**)stream = shape.stream, cudaSuccess;
}
static cudaError_t unknown(const void* function) {
    auto found = kernels().find(function);
    note("a kernel without a form on the processor: %.300s", found == kernels().end() ? "?" : found->second.c_str());
    return failed(cudaErrorNotSupported);
}
SHOWN cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { return *kernel = (cudaKernel_t)function, cudaSuccess; }
SHOWN cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) { return unknown((void*)kernel); }
SHOWN cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return unknown(function); }
SHOWN cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return unknown(function); }
SHOWN cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) { return unknown(function); }
SHOWN cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* into, const void*) { return memset(into, 0, sizeof *into), into->maxThreadsPerBlock = 1024, cudaSuccess; }
SHOWN cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
SHOWN cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) { return *blocks = 2, cudaSuccess; }
SHOWN cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) { return *blocks = 2, cudaSuccess; }

// ---- the driver ---------------------------------------------------------------------------------------------------------

static CUresult as_driver(cudaError_t error) { return (CUresult)error; }  // the codes used here are the same in both
struct Pages { int file; size_t size; bool mine, shared; };
static std::map<char*, size_t> reserved;
static std::map<CUmemGenericAllocationHandle, Pages> handles;
static std::map<char*, CUmemGenericAllocationHandle> mapped;
static CUmemGenericAllocationHandle next_handle = 1000;
static bool has_of_others() {
    for (auto& each : mapped)
        if (handles.count(each.second) && !handles[each.second].mine) return true;
    return false;
}
static thread_local CUcontext context = nullptr;
static const CUcontext ONLY = (CUcontext)0x1234;

// What others have written is read once with a bit turned in each page, from copies in place of their memory.
namespace {
void read_wrongly(const std::function<void()>& work) {
    if (!has_of_others() || fault("reads") < 0) return work();
    std::vector<std::pair<char*, Pages>> others;
    for (auto& [address, handle] : mapped)
        if (handles.count(handle) && !handles[handle].mine) others.push_back({address, handles[handle]});
    for (auto& [address, pages] : others) {
        mmap(address, pages.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, pages.file, 0);
        for (size_t at = 0; at < pages.size; at += 4096)
            for (size_t byte = at; byte < at + 4096; byte++)
                if (address[byte]) { address[byte] ^= 1; break; }
    }
    work();
    for (auto& [address, pages] : others) mmap(address, pages.size, PROT_READ, MAP_SHARED | MAP_FIXED, pages.file, 0);
}
}  // namespace

SHOWN CUresult cuInit(unsigned) {
    if (const int code = cannot_start(); code > 0) return (CUresult)code;
    return visible().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
// NVRTC asks for the cache of what was compiled before.
SHOWN CUresult cuGetExportTable(const void** table, const CUuuid*) { return *table = nullptr, CUDA_ERROR_NOT_FOUND; }
SHOWN CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
SHOWN CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, ordinal < (int)visible().size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
SHOWN CUresult cuDeviceGetCount(int* count) { return *count = visible().size(), CUDA_SUCCESS; }
SHOWN CUresult cuDeviceGetName(char* into, int length, CUdevice) { return snprintf(into, length, "Card in software"), CUDA_SUCCESS; }
SHOWN CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED || attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return *value = 1, CUDA_SUCCESS;
    return as_driver(cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device));
}
SHOWN CUresult cuDevicePrimaryCtxRetain(CUcontext* into, CUdevice) { return *into = ONLY, CUDA_SUCCESS; }
SHOWN CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { return *flags = 0, *active = 1, CUDA_SUCCESS; }
SHOWN CUresult cuCtxGetCurrent(CUcontext* into) { return *into = ONLY, CUDA_SUCCESS; }
SHOWN CUresult cuCtxSetCurrent(CUcontext given) { return context = given, CUDA_SUCCESS; }
SHOWN CUresult cuCtxPushCurrent(CUcontext given) { return context = given, CUDA_SUCCESS; }
SHOWN CUresult cuCtxPopCurrent(CUcontext* into) { return *into = ONLY, CUDA_SUCCESS; }
SHOWN CUresult cuGetErrorString(CUresult error, const char** text) { return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS; }
SHOWN CUresult cuGetErrorName(CUresult error, const char** text) { return *text = cudaGetErrorName((cudaError_t)error), CUDA_SUCCESS; }
SHOWN CUresult cuPointerGetAttribute(void* into, CUpointer_attribute attribute, CUdeviceptr) {
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return *(int*)into = 0, CUDA_SUCCESS;
    return CUDA_ERROR_NOT_SUPPORTED;
}
// These are allowed while something is recorded: torch's expandable segments grow then.
static bool here(CUmemLocation location) { return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id < (int)visible().size(); }
SHOWN CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp* asked, CUmemAllocationGranularity_flags) {
    return *size = PAGE, here(asked->location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SHOWN CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* asked, unsigned long long flags) {
    LOCKED;
    if (asked->type != CU_MEM_ALLOCATION_TYPE_PINNED || !here(asked->location) || flags || size % PAGE || !size) return CUDA_ERROR_INVALID_VALUE;
    if (taken + size > whole() || fault("memory") >= 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const int code = fault("create"); code > 0) return (CUresult)code;
    const int file = memfd_create("card", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    static const std::vector<char> dirt(PAGE, '\xff');  // what another one has left there
    for (size_t at = 0; at < size; at += PAGE)
        if (pwrite(file, dirt.data(), PAGE, at) != (ssize_t)PAGE) return close(file), CUDA_ERROR_OUT_OF_MEMORY;
    taken += size;
    handles[*handle = next_handle++] = {file, size, true, (asked->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0};
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType kind, unsigned long long flags) {
    LOCKED;
    if (const int code = fault("export"); code > 0) return (CUresult)code;
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !handles.count(handle) || !handles[handle].shared) return CUDA_ERROR_INVALID_VALUE;
    *(int*)descriptor = dup(handles[handle].file);
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor, CUmemAllocationHandleType kind) {
    LOCKED;
    if (const int code = fault("import"); code > 0) return (CUresult)code;
    const int file = dup((int)(intptr_t)descriptor);
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || file < 0) return CUDA_ERROR_INVALID_VALUE;
    handles[*handle = next_handle++] = {file, (size_t)lseek(file, 0, SEEK_END), false, true};
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long flags) {
    if (flags || size % PAGE || !size) return CUDA_ERROR_INVALID_VALUE;
    char* found = (char*)mmap(nullptr, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    char* even = (char*)(((uintptr_t)found + PAGE - 1) / PAGE * PAGE);
    if (even > found) munmap(found, even - found);
    if (found + PAGE > even) munmap(even + size, found + PAGE - even);
    *address = (CUdeviceptr)even;
    LOCKED;
    reserved[even] = size;
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    LOCKED;
    if (const int code = fault("map"); code > 0) return (CUresult)code;
    if (offset || flags || !handles.count(handle) || handles[handle].size != size) return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[handle].file, 0) != (void*)address) return CUDA_ERROR_INVALID_VALUE;
    device_memory[(char*)address] = size;
    mapped[(char*)address] = handle;
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
    if (count != 1 || !here(access->location)) return CUDA_ERROR_INVALID_VALUE;
    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && getenv("CARD_WRITES_ALWAYS")) return CUDA_ERROR_NOT_SUPPORTED;
    return mprotect((void*)address, size, access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SHOWN CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    LOCKED;  // it waits for nothing, and what is under way must not read there
    if (!mapped.count((char*)address)) return CUDA_ERROR_INVALID_VALUE;
    for (auto& [start, handle] : mapped)  // whole mappings are taken away
        if (start >= (char*)address && start < (char*)address + size && start + device_memory[start] > (char*)address + size) return CUDA_ERROR_INVALID_VALUE;
    for (auto found = device_memory.lower_bound((char*)address); found != device_memory.end() && found->first < (char*)address + size;) {
        mapped.erase(found->first);
        found = device_memory.erase(found);
    }
    return mmap((void*)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == (void*)address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SHOWN CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    LOCKED;
    auto inside = mapped.lower_bound((char*)address);
    auto found = reserved.find((char*)address);
    if (found == reserved.end() || found->second != size || (inside != mapped.end() && inside->first < (char*)address + size)) return CUDA_ERROR_INVALID_VALUE;
    reserved.erase(found);
    return munmap((void*)address, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SHOWN CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    LOCKED;
    auto found = handles.find(handle);
    if (found == handles.end()) return CUDA_ERROR_INVALID_VALUE;
    close(found->second.file);
    if (found->second.mine) taken -= found->second.size;
    handles.erase(found);
    return CUDA_SUCCESS;
}
SHOWN CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) { return CUDA_ERROR_NOT_SUPPORTED; }
SHOWN CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp*, CUmemGenericAllocationHandle) { return CUDA_ERROR_NOT_SUPPORTED; }

SHOWN CUresult cuModuleLoadData(CUmodule* module, const void* code) {
    *module = (CUmodule)code;
    return memcmp(code, "\x7f" "ELF", 4) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
SHOWN CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
SHOWN CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) { return *function = (CUfunction) new std::string(name), CUDA_SUCCESS; }

SHOWN CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c, unsigned shared, CUstream stream, void** values, void** extra) {
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!x || y != 1 || z != 1 || threads != 256 || b != 1 || c != 1 || shared || extra) return CUDA_ERROR_INVALID_VALUE;
    auto work = host_kernel(*(std::string*)function, x, values);
    if (!work) return note("no kernel %s", ((std::string*)function)->c_str()), CUDA_ERROR_NOT_FOUND;
    return as_driver(card_enqueue((cudaStream_t)stream, work));
}

SHOWN CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return as_driver(card_enqueue((cudaStream_t)stream, [=] { std::fill_n((unsigned*)to, count, value); }));
}
SHOWN CUresult cuMemHostUnregister(void* address) { return !context ? CUDA_ERROR_INVALID_CONTEXT : as_driver(cudaHostUnregister(address)); }
SHOWN CUresult cuMemHostRegister_v2(void* address, size_t size, unsigned flags) { return !context ? CUDA_ERROR_INVALID_CONTEXT : as_driver(cudaHostRegister(address, size, flags)); }
// torch looks them up and does not call them here.
#define REFUSED(name) SHOWN CUresult refused_##name() __asm__(#name); CUresult refused_##name() { return note("no %s", #name), CUDA_ERROR_NOT_SUPPORTED; }
#undef cuStreamWriteValue32
#undef cuMemGetAddressRange
REFUSED(cuStreamWriteValue32) REFUSED(cuMulticastAddDevice) REFUSED(cuMulticastBindMem) REFUSED(cuMulticastCreate) REFUSED(cuMulticastUnbind)
REFUSED(cuMemGetAddressRange) REFUSED(cuGreenCtxCreate) REFUSED(cuGreenCtxDestroy) REFUSED(cuGreenCtxStreamCreate) REFUSED(cuCtxFromGreenCtx)
REFUSED(cuDevResourceGenerateDesc) REFUSED(cuDevSmResourceSplitByCount) REFUSED(cuDeviceGetDevResource)

static void* named(const char* name) {
    Dl_info here;
    dladdr((void*)&named, &here);
    void* own = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    void* found = dlsym(own, name);
    return found ? found : dlsym(own, (std::string(name) + "_v2").c_str());
}
SHOWN CUresult cuGetProcAddress_v2(const char* name, void** place, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
    *place = named(name);
    if (found) *found = *place ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *place ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SHOWN cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** place, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
    *place = named(name);
    if (found) *found = *place ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// ---- versions of the other libraries ------------------------------------------------------------------------------------

SHOWN int cublasGetProperty(int kind, int* value) { return *value = kind == 0 ? 13 : kind == 1 ? 1 : 0, 0; }
SHOWN size_t cudnnGetVersion() { return 92000; }
SHOWN size_t cudnnGetCudartVersion() { return 13000; }
SHOWN int ncclGetVersion(int* version) { return *version = 22809, 0; }

// ---- the management library, of which Ray asks how many cards there are --------------------------------------------------

static int begun() {
    const int code = fault("nvml", false);
    while (!code) std::this_thread::sleep_for(std::chrono::seconds(1));
    return std::max(code, 0);
}
SHOWN int nvmlInitWithFlags(unsigned) { return begun(); }
SHOWN int nvmlInit_v2() { return begun(); }
SHOWN int nvmlShutdown() { return 0; }
SHOWN int nvmlDeviceGetCount_v2(unsigned* count) { return *count = getenv("CARD_COUNT") ? atoi(getenv("CARD_COUNT")) : 1, 0; }
SHOWN int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = (void*)(uintptr_t)(index + 1), 0; }
SHOWN int nvmlDeviceGetName(void*, char* into, unsigned length) { return snprintf(into, length, "Card in software"), 0; }
SHOWN int nvmlSystemGetDriverVersion(char* into, unsigned length) { return snprintf(into, length, "580.00"), 0; }
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) { return *device = (void*)(uintptr_t)(atoi(bus + 5)), 0; }
SHOWN int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { return *count = 0, 0; }
SHOWN int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, void*) { return *count = 0, 0; }
SHOWN int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return 3; }
SHOWN int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
SHOWN int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }
SHOWN const char* nvmlErrorString(int) { return "not supported"; }
SHOWN int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, 0; }
