// What the two halves of a card in software tell each other: the runtime (runtime.cpp), and torch's operations (operations.cpp).
#pragma once
#include <cuda_runtime_api.h>
#include <functional>
#include <stdexcept>

// Work for a stream, in its turn; what it raises becomes an error of the card, which stays. While the stream is recorded, a node.
cudaError_t card_enqueue(cudaStream_t stream, std::function<void()> work);
bool card_is_recorded(cudaStream_t stream);
// Raised by work that reaches for memory which a card does not have: its error stays, as that of an illegal address.
struct OutOfReach : std::runtime_error { using std::runtime_error::runtime_error; };
void card_has(const void* pointer);      // for a kernel
void card_reaches(const void* pointer);  // for a copy, also in host memory
