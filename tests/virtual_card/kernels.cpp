// The kernels of sums.cu on the processor, by their names: what a launch binds.
#include <functional>
#include <string>
#include <tuple>
#include "../numerics/device/host.cpp"

void card_has(const void* pointer);  // as card.h says, whose vectors are those of host.cpp

// An argument of a launch may begin at any address.
template <typename Value> static Value read(const void* from) {
    Value value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <typename Value> static void look(Value value) {
    if constexpr (std::is_pointer_v<Value>) card_has(value);
}
// The addresses that are in memory, in place of those that a launch is given.
static void look_at_addresses(const std::string& name, int blocks, void** values) {
    if (name == "quantize") {
        const i64* table = *(const i64**)values[0];
        for (int i = 0; i < *(int*)values[1]; i++) card_has((void*)table[6 * i]), card_has((void*)table[6 * i + 1]);
    } else if (name == "add" || name == "add_plain") {
        const i64* addresses = *(const i64**)values[0];
        const int* slots = *(const int**)values[2];
        for (int piece = 0; piece < blocks; piece++) card_has((void*)addresses[slots[piece]]);
    }
}
template <typename... Values, size_t... Numbers>
static std::function<void()> bound(const std::string& name, void (*kernel)(int, int, Values...), int blocks, void** values, std::index_sequence<Numbers...>) {
    auto given = std::make_tuple(read<Values>(values[Numbers])...);
    return [=]() mutable {
        (look(std::get<Numbers>(given)), ...);
        void* again[] = {&std::get<Numbers>(given)...};
        look_at_addresses(name, blocks, again);
        kernel(blocks, 5, std::get<Numbers>(given)...);  // a few threads are enough
    };
}
template <typename... Values> static std::function<void()> start(const std::string& name, void (*kernel)(int, int, Values...), int blocks, void** values) {
    return bound(name, kernel, blocks, values, std::make_index_sequence<sizeof...(Values)>{});
}
std::function<void()> host_kernel(const std::string& name, int blocks, void** values) {
#define KERNEL(kernel) if (name == #kernel) return start(name, run_##kernel, blocks, values)
    KERNEL(add); KERNEL(add_plain); KERNEL(join); KERNEL(finish); KERNEL(differ); KERNEL(absorb); KERNEL(quantize);
    KERNEL(measure); KERNEL(place); KERNEL(pack); KERNEL(unpack);
    return nullptr;
}
