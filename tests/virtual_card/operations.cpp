// torch's operations on a card in software: each, on CUDA tensors, does its work on the processor, in the card's memory and in the
// turn of its stream. What a result looks like is asked of the form for meta tensors, so that nothing is computed before its turn.
// What has no form on the processor is left to its kernel, and the runtime refuses that by name.
#include <cmath>
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>
#include <regex>
#include <unistd.h>
#include <pthread.h>
#include "card.h"

namespace {
using c10::IValue;
using at::Tensor;
using Values = std::vector<IValue>;

bool on_card(const Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// The same memory, as a tensor of the processor. Keeps nothing alive, as a kernel keeps nothing alive.
Tensor on_processor(const Tensor& tensor) {
    if (!on_card(tensor)) return tensor;
    if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
}
Tensor shape_of(const Tensor& tensor) {
    if (!tensor.defined() || (!tensor.is_cuda() && tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number())) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
}

Tensor zeros(const Tensor& tensor) {
    return on_card(tensor) ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false)).zero_() : tensor;
}

IValue with_tensors(const IValue& value, const std::function<Tensor(const Tensor&)>& change, at::Device device) {
    if (value.isTensor()) return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& each : value.toTensorVector()) list.push_back(change(each));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) list.push_back(each ? std::optional<Tensor>(change(*each)) : std::nullopt);
        return list;
    }
    if (value.isDevice()) return IValue(device);
    if (value.isGenerator()) return IValue();
    return value;
}
Values all_with(const Values& values, const std::function<Tensor(const Tensor&)>& change, at::Device device) {
    Values found;
    for (const IValue& value : values) found.push_back(with_tensors(value, change, device));
    return found;
}

bool random_one(const c10::OperatorHandle& op) {
    for (const at::Tag tag : op.getTags())
        if (tag == at::Tag::nondeterministic_seeded) return true;
    for (const auto& argument : op.schema().arguments())
        if (argument.name() == "generator") return true;
    return false;
}

// Whoever waits first does the work, and sums of the processor depend on how many threads that one may use.
extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads();
struct OneThread {
    int before = omp_get_max_threads();
    OneThread() { omp_set_num_threads(1); }
    ~OneThread() { omp_set_num_threads(before); }
};
// A card rounds the square roots of float64, and torch on a processor does not.
Tensor roots(const c10::OperatorHandle& op, const Values& values, at::DispatchKey key) {
    if (key != at::DispatchKey::CPU || op.operator_name().name.rfind("aten::sqrt", 0)) return {};
    if (values[0].toTensor().scalar_type() != at::kDouble) return {};
    Tensor found = values[0].toTensor().clone(at::MemoryFormat::Contiguous);
    double* each = found.data_ptr<double>();
    for (int64_t i = 0; i < found.numel(); i++) each[i] = std::sqrt(each[i]);
    return found;
}
Values call(const c10::OperatorHandle& op, Values values, at::DispatchKey key) {
    OneThread one;
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const Tensor rooted = roots(op, values, key);
    op.redispatchBoxed(c10::DispatchKeySet(key), &values);
    if (rooted.defined()) values[0].toTensor().copy_(rooted);
    return values;
}
struct Seed { at::PhiloxCudaState state; };
void seeded(const std::optional<at::PhiloxCudaState>& state, const std::function<void()>& work) {
    if (!state) return work();
    const bool indirect = state->captured_;
    const uint64_t seed = indirect ? *(uint64_t*)state->seed_.ptr : state->seed_.val;
    const uint64_t offset = indirect ? *(uint64_t*)state->offset_.ptr + state->offset_intragraph_ : state->offset_.val;
    auto generator = at::detail::getDefaultCPUGenerator();
    Tensor before;
    {
        std::lock_guard<std::mutex> locked(generator.mutex());
        before = generator.get_state();
        generator.set_current_seed(seed * 0x9E3779B97F4A7C15ull ^ (offset + 1) * 0xC2B2AE3D27D4EB4Full);
    }
    work();
    std::lock_guard<std::mutex> locked(generator.mutex());
    generator.set_state(before);
}
void into(const IValue& wanted, const IValue& found) {
    if (wanted.isTensor() && wanted.toTensor().defined()) {
        const Tensor& place = wanted.toTensor();
        // Of what nobody reads, the processor's form says less (statistics of a batch where those of all are used).
        if (found.toTensor().numel() == 0 && place.numel() != 0) return;
        if (place.data_ptr() != found.toTensor().data_ptr()) place.copy_(found.toTensor());
    } else if (wanted.isTensorList()) {
        auto places = wanted.toTensorVector(), results = found.toTensorVector();
        for (size_t i = 0; i < places.size(); i++)
            if (places[i].data_ptr() != results[i].data_ptr()) places[i].copy_(results[i]);
    }
}
void check(cudaError_t error) { C10_CUDA_CHECK(error); }
// As torch's own operations wait.
void wait(cudaStream_t stream) {
    if (c10::cuda::warning_state().get_sync_debug_mode() != c10::cuda::SyncDebugMode::L_DISABLED) c10::cuda::warn_or_error_on_sync();
    check(cudaStreamSynchronize(stream));
}
// The addresses on the card of what is given.
void take_addresses(const IValue& value, std::vector<const void*>& addresses) {
    auto take = [&](const Tensor& tensor) { if (on_card(tensor) && tensor.numel()) addresses.push_back(tensor.data_ptr()); };
    if (value.isTensor()) take(value.toTensor());
    if (value.isTensorList()) for (const Tensor& each : value.toTensorVector()) take(each);
    if (value.isOptionalTensorList()) for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) if (each) take(*each);
}
std::vector<const void*> addresses_of(const Values& given, const Values& more = {}) {
    std::vector<const void*> found;
    for (const IValue& value : given) take_addresses(value, found);
    for (const IValue& value : more) take_addresses(value, found);
    return found;
}

// What the results look like. What has no form for meta tensors is computed of zeros for it.
Values shapes(const c10::OperatorHandle& op, const Values& given) {
    if (op.hasComputedKernelForDispatchKey(at::DispatchKey::Meta)) {
        try {
            return call(op, all_with(given, shape_of, at::kMeta), at::DispatchKey::Meta);
        } catch (const c10::NotImplementedError&) {
        }
    }
    return all_with(call(op, all_with(given, zeros, at::kCPU), at::DispatchKey::CPU), shape_of, at::kMeta);
}

void now(const std::string& name, cudaStream_t stream) {
    if (getenv("CARD_OPS")) { FILE* f = fopen(getenv("CARD_OPS"), "a"); fprintf(f, "%d %p %lx %s\n", getpid(), stream, (unsigned long)pthread_self(), name.c_str()); fclose(f); }
    static const char* which = getenv("CARD_NOW");
    if (which && std::regex_search(name, std::regex(which)) && !card_is_recorded(stream)) cudaStreamSynchronize(stream);
}
// A kernel takes tensors of its own device. Of others it takes single numbers, and these take places and lengths of the processor.
const std::set<std::string> TAKE_OTHERS = {
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward",
    "aten::_foreach_copy_",
};
void on_one_device(const c10::OperatorHandle& op, const Values& given) {
    if (TAKE_OTHERS.count(op.operator_name().name)) return;
    std::optional<at::Device> device;
    auto look = [&](const Tensor& tensor, bool single) {
        if (!tensor.defined() || (single && tensor.dim() == 0 && tensor.is_cpu())) return;
        if (!device) device = tensor.device();
        TORCH_CHECK(tensor.device() == *device, "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                    tensor.device(), "! (card in software: ", toString(op.operator_name()), ")");
    };
    const bool each = op.operator_name().name.rfind("aten::_foreach_", 0) == 0;
    for (const IValue& value : given) {
        if (value.isTensor()) look(value.toTensor(), true);
        if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) look(tensor, each);
        if (value.isOptionalTensorList()) for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) if (tensor) look(*tensor, false);
    }
}
// Operations whose kernels vary are refused by the kernels, where only deterministic ones are allowed: those of `torch.use_deterministic_algorithms`.
const std::set<std::string> VARY = {
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward",
    "fractional_max_pool2d_backward", "fractional_max_pool3d_backward", "max_pool3d_with_indices_backward", "max_unpool2d", "max_unpool3d",
    "reflection_pad1d_backward", "reflection_pad3d_backward", "upsample_linear1d_backward", "upsample_bicubic2d_backward",
    "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward", "nll_loss2d_forward", "_ctc_loss_backward", "grid_sampler_2d_backward",
    "grid_sampler_3d_backward", "put_", "histc", "kthvalue",
};
// Kernels for lists of tensors are not made for these types.
void has_types(const c10::OperatorHandle& op, const Values& given) {
    if (op.operator_name().name.rfind("aten::_foreach_", 0)) return;
    for (const IValue& value : given)
        if (value.isTensorList())
            for (const Tensor& each : value.toTensorVector())
                TORCH_CHECK_NOT_IMPLEMENTED(!at::isBarebonesUnsignedType(each.scalar_type()) && each.scalar_type() != at::kComplexHalf, op.operator_name().name, " not implemented for '", each.scalar_type(), "'");
}
void repeats(const c10::OperatorHandle& op, const Values& given) {
    const auto& name = op.operator_name();
    const std::string base = name.name.substr(6);
    const auto is_float = [&] { return given[0].isTensor() && (given[0].toTensor().is_floating_point() || given[0].toTensor().is_complex()); };
    const bool varies = VARY.count(base) || (base == "median" && name.overload_name.rfind("dim", 0) == 0) || ((base == "cumsum" || base == "cumsum_") && is_float()) ||
                        (base == "bincount" && given[1].isTensor() && given[1].toTensor().defined()) || (base == "scatter_reduce" && given[4].toStringView() == "prod");
    if (varies) at::globalContext().alertNotDeterministic(base + "_cuda");
}
// What is taken by places has their shape; how much is taken by a mask is known only once that is looked at.
bool by_places(const c10::OperatorHandle& op, const Values& given) {
    if (op.operator_name().name != "aten::index" || !given[1].isOptionalTensorList()) return false;
    for (const std::optional<Tensor>& places : given[1].toOptionalTensorVector())
        if (places && places->defined() && (places->scalar_type() == at::kBool || places->scalar_type() == at::kByte)) return false;
    return true;
}
void performed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    Values given(stack->end() - count, stack->end());
    on_one_device(op, given);
    repeats(op, given);
    has_types(op, given);
    stack->erase(stack->end() - count, stack->end());
    at::AutoDispatchBelowADInplaceOrView below;
    at::Device device(at::kCUDA, c10::cuda::current_device());
    std::function<void(const IValue&)> find_device = [&](const IValue& value) {
        if (value.isTensor() && on_card(value.toTensor())) device = value.toTensor().device();
        if (value.isTensorList()) for (const Tensor& each : value.toTensorVector()) if (on_card(each)) device = each.device();
    };
    for (const IValue& value : given) find_device(value);
    c10::cuda::CUDAGuard guard(device);
    const auto stream = c10::cuda::getCurrentCUDAStream();
    std::optional<at::PhiloxCudaState> state;
    if (random_one(op)) {
        auto generator = at::cuda::detail::getDefaultCUDAGenerator();
        for (const IValue& value : given) if (value.isGenerator()) generator = value.toGenerator();
        std::lock_guard<std::mutex> locked(generator.mutex());
        state = at::check_generator<at::CUDAGeneratorImpl>(generator)->philox_cuda_state(4);
    }

    bool direct = false;
    for (const auto& result : schema.returns())
        direct = direct || !(result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->kind() == c10::TypeKind::ListType);
    // Into host memory a list is copied tensor by tensor, and each copy is waited for.
    if (op.operator_name().name == "aten::_foreach_copy_")
        for (const Tensor& each : given[0].toTensorVector()) direct = direct || !on_card(each);
    for (const at::Tag tag : op.getTags()) direct = direct || (tag == at::Tag::dynamic_output_shape && !by_places(op, given)) || tag == at::Tag::data_dependent_output;
    Values looks;
    if (!direct) looks = shapes(op, given);
    if (direct && card_is_recorded(stream)) {
        // Its results depend on values, or are a value: it waits, as its kernel does.
        if (getenv("CARD_TRACE")) fprintf(stderr, "card in software: %s waits\n", toString(op.operator_name()).c_str());
        check(cudaStreamSynchronize(stream));
    }
    std::function<Tensor(const Tensor&)> on_it = [&](const Tensor& look) {
        return look.defined() ? at::empty_strided(look.sizes(), look.strides(), look.options().device(device)) : look;
    };
    if (direct) {
        wait(stream);
        for (const void* each : addresses_of(given)) card_has(each);
        Values results;
        seeded(state, [&] { results = call(op, all_with(given, on_processor, at::kCPU), at::DispatchKey::CPU); });
        for (size_t i = 0; i < results.size(); i++) {
            IValue made = with_tensors(results[i], on_it, device);
            // In its turn: new memory may be filled before, as `fill_uninitialized_memory` has it.
            check(card_enqueue(stream, [place = with_tensors(made, on_processor, at::kCPU), found = results[i]] { into(place, found); }));
            looks.push_back(made);
        }
        // in place, and into what is given: those tensors themselves
    }
    Values results;
    for (size_t i = 0; i < schema.returns().size(); i++) {
        const auto* info = schema.returns()[i].alias_info();
        const IValue* same = nullptr;
        if (info && info->isWrite())
            for (size_t j = 0; j < count; j++)
                if (const auto* other = schema.arguments()[j].alias_info(); other && other->isWrite() && other->beforeSets() == info->beforeSets()) same = &given[j];
        if (same) {
            if (same->isTensor() && looks[i].isTensor() && same->toTensor().sizes() != looks[i].toTensor().sizes()) {
                TORCH_CHECK(!direct, "card in software: ", toString(op.operator_name()), " gives its result another size");
                same->toTensor().resize_(looks[i].toTensor().sizes());
            }
            results.push_back(*same);
        } else {
            results.push_back(direct ? looks[i] : with_tensors(looks[i], on_it, device));
        }
    }
    if (!direct) {
        Values arguments = all_with(given, on_processor, at::kCPU), places = all_with(results, on_processor, at::kCPU);
        check(card_enqueue(stream, [op, arguments, places, state, addresses = addresses_of(given, results)] {
            for (const void* each : addresses) card_has(each);
            Values found;
            seeded(state, [&] { found = call(op, arguments, at::DispatchKey::CPU); });
            for (size_t i = 0; i < places.size(); i++) into(places[i], found[i]);
        }));
    }
    now(toString(op.operator_name()), stream);
    stack->insert(stack->end(), results.begin(), results.end());
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
    at::AutoDispatchBelowADInplaceOrView below;
    if (self.numel() == 0) return self;
    const at::Device device = self.is_cuda() ? self.device() : source.device();
    c10::cuda::CUDAGuard guard(device);
    const auto stream = c10::cuda::getCurrentCUDAStream();
    const Tensor from = source.expand(self.sizes());
    const Tensor to_place = on_processor(self), from_place = on_processor(from);
    const bool both = self.is_cuda() && source.is_cuda();
    // Memory of the host that is not page-locked is read and written before the call returns.
    const bool waits = !both && (!non_blocking || !(self.is_cuda() ? source : self).is_pinned());
    const Tensor& host = self.is_cuda() ? source : self;
    const void *to = self.data_ptr(), *source_at = source.data_ptr();
    check(card_enqueue(stream, [to_place, from_place, to, source_at, here = self.is_cuda(), there = source.is_cuda()] {
        here ? card_has(to) : card_reaches(to);
        there ? card_has(source_at) : card_reaches(source_at);
        Tensor place = to_place;
        place.copy_(from_place);
    }));
    if (!both && !waits) at::getHostAllocator(at::kCUDA)->record_event(host.storage().mutable_data(), host.storage().data_ptr().get_context(), stream.unwrap());
    if (waits) wait(stream);
    now("copy_", stream);
    return self;
}

// Cells that have kernels of their own on a card alone (aten/src/ATen/native/cuda/RNN.cu).
using Maybe = std::optional<Tensor>;
bool is(const Maybe& tensor) { return tensor && tensor->defined(); }
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, const Tensor& hidden, const Tensor& cx, const Maybe& first, const Maybe& second) {
    at::AutoDispatchBelowADInplaceOrView below;
    Tensor gates = input + hidden;
    if (is(first)) gates = gates + *first + *second;
    auto parts = gates.chunk(4, 1);
    Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
    Tensor cy = f * cx + i * g;
    return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_backward(const Maybe& grad_hy, const Maybe& grad_cy, const Tensor& cx, const Tensor& cy, const Tensor& workspace, bool has_bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    if (!is(grad_hy) && !is(grad_cy)) return {};
    auto parts = workspace.chunk(4, 1);
    const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
    Tensor tanh = cy.tanh(), hy = is(grad_hy) ? *grad_hy : at::zeros_like(cx), c = hy * o * (1 - tanh * tanh);
    if (is(grad_cy)) c = c + *grad_cy;
    Tensor gates = at::cat({c * g * (1 - i) * i, c * cx * (1 - f) * f, c * i * (1 - g * g), hy * tanh * (1 - o) * o}, 1);
    return {gates, c * f, has_bias ? gates.sum(0) : Tensor()};
}
std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hidden, const Tensor& hx, const Maybe& first, const Maybe& second) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto ins = (is(first) ? input + *first : input).chunk(3, 1), hids = (is(second) ? hidden + *second : hidden).chunk(3, 1);
    Tensor r = (ins[0] + hids[0]).sigmoid(), z = (ins[1] + hids[1]).sigmoid(), n = (ins[2] + r * hids[2]).tanh();
    return {n + z * (hx - n), at::cat({r, z, n, hx, hids[2]}, 1)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad, const Tensor& workspace, bool has_bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto parts = workspace.chunk(5, 1);
    const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &h = parts[4];
    Tensor gz = grad * (hx - n) * (1 - z) * z, gn = grad * (1 - z) * (1 - n * n), gr = gn * h * (1 - r) * r;
    Tensor ins = at::cat({gr, gz, gn}, 1), hids = at::cat({gr, gz, gn * r}, 1);
    return {ins, hids, grad * z, has_bias ? ins.sum(0) : Tensor(), has_bias ? hids.sum(0) : Tensor()};
}
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef shape, const Maybe& weight, std::optional<double> eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<int64_t> last;
    for (size_t i = 1; i <= shape.size(); i++) last.push_back(-(int64_t)i);
    const double least = eps ? *eps : input.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    Tensor whole = input.to(at::toOpMathType(input.scalar_type())), rstd = (whole * whole).mean(last, true).add(least).rsqrt(), normed = whole * rstd;
    return {(is(weight) ? normed * *weight : normed).to(input.scalar_type()), rstd};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape, const Tensor& rstd, const Maybe& weight, std::array<bool, 2> wanted) {
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<int64_t> last, first;
    for (int64_t i = 0; i < input.dim(); i++) (i < input.dim() - (int64_t)shape.size() ? first : last).push_back(i);
    Tensor out = grad.to(rstd.scalar_type()), normed = input.to(rstd.scalar_type()) * rstd, inner = is(weight) ? out * *weight : out;
    Tensor own = wanted[0] ? (rstd * (inner - normed * (inner * normed).mean(last, true))).to(input.scalar_type()) : Tensor();
    if (!wanted[1] || !is(weight)) return {own, Tensor()};
    Tensor product = out * normed;
    return {own, (first.empty() ? product : product.sum(first)).to(weight->scalar_type())};
}

const std::set<std::string> LEFT = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::set_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::resize_", "aten::_local_scalar_dense", "aten::record_stream",
    "aten::is_pinned", "aten::_pin_memory", "aten::unfold", "aten::is_set_to", "aten::view_as_real", "aten::view_as_complex", "aten::alias", "aten::_fused_sdp_choice",
    "aten::copy_", "aten::lift_fresh", "aten::detach", "aten::_has_same_storage_numel", "aten::_debug_has_internal_overlap", "aten::_assert_async",
};
const std::vector<const char*> TOO = {"aten::convolution_backward", "aten::_foreach_copy_", "aten::_assert_async.msg"};

struct Silent : c10::WarningHandler { void process(const c10::Warning&) override {} };
std::vector<c10::RegistrationHandleRAII> kept;
struct AtStart {
    AtStart() {
        Silent silent;
        c10::WarningUtils::WarningHandlerGuard guard(&silent);
        at::globalContext().setUserEnabledCuDNN(false);
        at::globalContext().setSDPUseFlash(false), at::globalContext().setSDPUseMemEfficient(false), at::globalContext().setSDPUseCuDNN(false);
        auto& dispatcher = c10::Dispatcher::singleton();
        auto put = [&](const c10::OperatorHandle& op) {
            kept.push_back(dispatcher.registerImpl(op.operator_name(), at::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&performed>(), std::nullopt, nullptr, "card in software"));
        };
        for (const auto& name : dispatcher.getAllOpNames()) {
            auto op = dispatcher.findOp(name);
            if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) || LEFT.count(c10::toString(name))) continue;
            if (!op->hasKernelForDispatchKey(at::DispatchKey::CUDA) || !op->hasComputedKernelForDispatchKey(at::DispatchKey::CPU)) continue;
            put(*op);
        }
        for (const char* name : TOO) {
            const std::string whole = name;
            const size_t dot = whole.find('.');
            auto op = dispatcher.findOp({whole.substr(0, dot), dot == std::string::npos ? "" : whole.substr(dot + 1)});
            if (op && !op->hasKernelForDispatchKey(at::DispatchKey::CUDA)) put(*op);
        }
    }
} at_start;
}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    m.impl("copy_", TORCH_FN(copy_));
    m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm));
    m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_backward));
    m.impl("_thnn_fused_gru_cell", TORCH_FN(gru));
    m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_backward));
    m.impl("_fused_rms_norm", TORCH_FN(rms_norm));
    m.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}
