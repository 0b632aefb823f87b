// The kernels of sums.cu on the processor, by their names: what a launch binds.
#include <functional>
#include <string>
#include <tuple>
#include "../numerics/device/host.cpp"

template <typename... Values, size_t... Numbers>
static std::function<void()> bound(void (*kernel)(int, int, Values...), int blocks, void** values, std::index_sequence<Numbers...>) {
    auto given = std::make_tuple(*(Values*)values[Numbers]...);
    return [=] { kernel(blocks, 5, std::get<Numbers>(given)...); };  // a few threads are enough
}
template <typename... Values> static std::function<void()> start(void (*kernel)(int, int, Values...), int blocks, void** values) {
    return bound(kernel, blocks, values, std::make_index_sequence<sizeof...(Values)>{});
}
std::function<void()> host_kernel(const std::string& name, int blocks, void** values) {
#define KERNEL(kernel) if (name == #kernel) return start(run_##kernel, blocks, values)
    KERNEL(add); KERNEL(add_plain); KERNEL(join); KERNEL(finish); KERNEL(differ); KERNEL(absorb); KERNEL(quantize);
    KERNEL(measure); KERNEL(place); KERNEL(pack); KERNEL(unpack);
    return nullptr;
}
