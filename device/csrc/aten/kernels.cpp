// The kernels that this side must have itself: making tensors, viewing them, copying between host and device, reading.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "base/profile.h"
#include "recorder/recorder.h"
#include "runtime/storage.h"
#include "stream/transfers.h"

namespace forebay {
namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// Making

void check_layout(std::optional<at::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "the virtual device holds strided tensors only; make the ", *layout, " tensor on the CPU, or use its dense form");
}

// torch.use_deterministic_algorithms has what was never written read as NaN or the largest number.
bool fills_new_memory() { return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory(); }

Tensor filled_if_wanted(Tensor made) {
  if (fills_new_memory()) [[unlikely]] at::native::fill_empty_deterministic_(made);
  return made;
}

Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_layout(layout);
  const OnDevice there(device_named(device));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return filled_if_wanted(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), device_allocator(), kCuda, at::dtype_or_default(dtype), format));
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_layout(layout);
  const OnDevice there(device_named(device));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return filled_if_wanted(at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), device_allocator(), kCuda,
                                                            at::dtype_or_default(dtype)));
}

// All zeros without a storage: autograd's placeholder for a derivative that is none.
Tensor efficient_zero_tensor(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool>) {
  check_layout(layout);
  static auto* allocators = [] {
    auto* list = new std::vector<at::native::ZeroTensorAllocator>;
    for (c10::DeviceIndex index = 0; index < kDevicesMax; ++index) list->emplace_back(at::Device(at::kCUDA, index));
    return list;
  }();
  auto& allocator = allocators->at(static_cast<size_t>(device_named(device)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator, kCuda | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   at::dtype_or_default(dtype), std::nullopt);
}

// Viewing: nothing is sent.

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Resizing and setting

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes_before = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != sizes) {
    const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset()));
    if (static_cast<int64_t>(self.storage().nbytes()) < bytes) resize_storage(self.storage(), bytes);
    impl->set_sizes_contiguous(sizes);
  }
  if (format) impl->empty_tensor_restride(*format);
  if (fills_new_memory()) [[unlikely]] at::native::fill_resize_deterministic_(self, bytes_before);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  const int64_t first = offset.guard_int(__FILE__, __LINE__);
  at::native::checkSetStorage(self, std::move(source), first, sizes, strides);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(first);
  const auto given = strides.data() == nullptr ? c10::contiguous_strides(sizes) : c10::DimVector(strides);
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, given, self.dtype().itemsize(), first));
  if (static_cast<int64_t>(self.storage().nbytes()) < bytes) resize_storage(self.storage(), bytes);
  impl->set_sizes_and_strides(sizes, given);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const auto size = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, c10::SymIntArrayRef({c10::SymInt(size)}), {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

Tensor& set_nothing(Tensor& self) {
  const OnDevice there(self.get_device());
  return set_storage(self, at::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), true), 0,
                     c10::SymIntArrayRef({c10::SymInt(0)}), {});
}

// Copying

bool is_plain(const Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg() && tensor.is_non_overlapping_and_dense(); }

int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.dtype().itemsize()); }

int64_t first_byte_of(const Tensor& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize()); }

Tensor like_on(const Tensor& tensor, at::Device device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device).pinned_memory(std::nullopt));
}

void copy_on_device(Tensor& self, const Tensor& source, bool non_blocking) {
  static auto* info = new OperatorInfo(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  torch::jit::Stack stack{self, source, non_blocking};
  Recorder::of(self.get_device()).record(*info, stack);
}

bool is_pinned(const Tensor& tensor) { return at::detail::getCUDAHooks().isPinnedPtr(tensor.storage().data()); }

void upload(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!is_plain(self)) {
    auto staged = at::empty(self.sizes(), self.options());
    upload(staged, source, non_blocking);
    return copy_on_device(self, staged, false);
  }
  Tensor host = source.resolve_conj().resolve_neg();
  if (host.scalar_type() != self.scalar_type() || host.strides() != self.strides() || host.sizes() != self.sizes()) {
    host = like_on(self, at::kCPU);
    host.copy_(source);
  }
  // What nobody else sees may be read later; what the user may change, only where both said so.
  const bool later = non_blocking && (!host.is_alias_of(source) || is_pinned(host));
  auto& storage = handle_of(*self.unsafeGetTensorImpl());
  Transfers(CommandStream::of(storage.device)).write(storage, first_byte_of(self), host.const_data_ptr(), bytes_of(self), later ? host.storage() : c10::Storage(nullptr));
}

void download(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!is_plain(source)) {
    auto staged = at::empty(source.sizes(), source.options());
    copy_on_device(staged, source, false);
    return download(self, staged, non_blocking);
  }
  const bool direct = is_plain(self) && self.scalar_type() == source.scalar_type() && self.strides() == source.strides() && self.sizes() == source.sizes();
  const auto& storage = handle_of(*source.unsafeGetTensorImpl());
  if (direct && non_blocking && is_pinned(self)) {
    return Transfers(CommandStream::of(storage.device)).read_later(storage, first_byte_of(source), self.mutable_data_ptr(), bytes_of(source), self.storage());
  }
  const Tensor host = direct ? self : like_on(source, at::kCPU);
  Transfers(CommandStream::of(storage.device)).read(storage, first_byte_of(source), host.mutable_data_ptr(), bytes_of(source));
  if (!direct) self.copy_(host);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  if (source._is_zerotensor()) return self.zero_();
  TORCH_CHECK(self.device().is_cuda() || self.device().is_cpu(), "cannot copy from the virtual device to ", self.device());
  TORCH_CHECK(source.device().is_cuda() || source.device().is_cpu(), "cannot copy from ", source.device(), " to the virtual device");
  if (self.device().is_cuda() && source.device().is_cuda()) {
    if (self.device() != source.device()) return copy_(self, source.to(at::kCPU), non_blocking);
    copy_on_device(self, source, non_blocking);
    return self;
  }
  const Tensor expanded = *at::expand_inplace(self, source, "copy_");
  if (self.numel() == 0) return self;
  if (self.device().is_cuda()) {
    upload(self, expanded, non_blocking);
  } else {
    download(self, source.numel() == self.numel() ? expanded : source, non_blocking);
  }
  return self;
}

// Reading

at::Scalar local_scalar_dense(const Tensor& self) {
  const Tensor plain = self.is_conj() || self.is_neg() ? self.clone() : self;
  Tensor host = at::empty({}, self.options().device(at::kCPU));
  const auto& storage = handle_of(*plain.unsafeGetTensorImpl());
  const ActivityClock profiled(Activity::kItem, storage.device, bytes_of(plain));
  Transfers(CommandStream::of(storage.device)).read(storage, first_byte_of(plain), host.mutable_data_ptr(), bytes_of(plain));
  return at::_local_scalar_dense(host);
}

void record_stream(Tensor&, at::Stream) {}  // frees are commands of the one stream, in order

}  // namespace

void register_kernels(KernelTable& library) {
  library.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(view));
  library.impl("_reshape_alias", TORCH_FN(reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  library.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace forebay
