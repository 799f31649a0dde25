// The kernels that the fallback (fallback.cpp) cannot serve: making tensors, viewing them, copying, reading one number.
#include "kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "device.h"
#include "runtime.h"

namespace standin {

namespace {

constexpr c10::DispatchKeySet kDense(c10::DispatchKey::PrivateUse1);

bool is_ours(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only dense tensors of the host can be pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, c10::GetAllocator(c10::kPrivateUse1), kDense, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only dense tensors of the host can be pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(c10::kPrivateUse1), kDense, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const auto meta = at::empty(sizes, self.options().device(c10::kMeta), format);
  resize(self, sizes, meta.strides());
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, sizes, strides);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, elements, 1);
}

int stream_for_copy(const at::Tensor& tensor) {
  const int current = current_stream(tensor.device().index());
  return Runtime::get().settings().copies_in_order ? current : tensor.device().index() * kStreamsPerDevice + kStreamsPerDevice - 1;
}

bool same_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.strides() == other.strides() && one.is_non_overlapping_and_dense() &&
         one.is_conj() == other.is_conj() && one.is_neg() == other.is_neg();
}

void copy_on_device(const at::Tensor& source, const at::Tensor& target) {
  Shadows shadows;
  auto from = shadows.of(source);
  auto to = shadows.of(target);
  TORCH_CHECK(source.device() == target.device(), "standin: copies between devices go through the host");
  Runtime::get().submit(stream_for_copy(target), "aten::copy_", {range_of(source, false), range_of(target, true)}, [from, to] { to.copy_(from); });
}

// From memory that is not pinned the host hands its bytes over before it goes on.
void copy_to_device(const at::Tensor& source, const at::Tensor& target, bool may_run_later) {
  auto& runtime = Runtime::get();
  Shadows shadows;
  auto to = shadows.of(target);
  const int stream = stream_for_copy(target);
  if (may_run_later && same_bytes(source, target) && is_pinned_address(source.data_ptr())) {
    const auto from = shadows.of(source);
    const Range read = range_of(source, false);
    return runtime.submit_from_pinned(stream, {read, range_of(target, true)}, read, [from, to] { to.copy_(from); });
  }
  const auto from = source.clone();
  runtime.submit(stream, "a copy from the host", {range_of(target, true)}, [from, to] { to.copy_(from); });
  if (!may_run_later) runtime.synchronize(stream);
}

void copy_to_host(const at::Tensor& source, const at::Tensor& target, bool may_run_later) {
  auto& runtime = Runtime::get();
  Shadows shadows;
  auto from = shadows.of(source);
  const int stream = stream_for_copy(source);
  if (may_run_later && same_bytes(source, target) && is_pinned_address(target.data_ptr())) {
    const auto to = shadows.of(target);
    const Range written = range_of(target, true);
    return runtime.submit_to_pinned(stream, {range_of(source, false), written}, written, [from, to] { to.copy_(from); });
  }
  at::Tensor taken;
  runtime.submit_and_wait(stream, "a copy to the host", {range_of(source, false)}, [&] { taken = from.clone(); });
  target.copy_(taken);
}

void copy_between_devices(const at::Tensor& source, const at::Tensor& target) {
  const auto here = at::empty_strided(source.sizes(), source.strides(), source.options().device(c10::kCPU));
  copy_to_host(source, here, false);
  copy_to_device(here, target, false);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool may_run_later) {
  if (target.numel() == 0) return target;
  const auto wide = source.expand(target.sizes());
  if (is_ours(source) && is_ours(target)) {
    source.device() == target.device() ? copy_on_device(wide, target) : copy_between_devices(wide, target);
  } else if (is_ours(target)) {
    copy_to_device(wide, target, may_run_later);
  } else {
    copy_to_host(wide, target, may_run_later);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  auto host = at::empty({}, self.options().device(c10::kCPU));
  copy_to_host(self, host, false);
  return host.item();
}

void record_stream(at::Tensor& self, c10::Stream stream) { Runtime::get().record_stream(self.storage().data(), stream_number(stream)); }

}  // namespace

Range range_of(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {0, 0, writes};
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data()) + static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  return {begin, static_cast<size_t>(last + 1) * tensor.itemsize(), writes};
}

at::Tensor Shadows::of(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto& made = storages_[storage.unsafeGetStorageImpl()];
  if (!made) {
    c10::DataPtr data(shadow_of(storage.data()), c10::Device(c10::kCPU));
    made = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false));
  }
  auto shadow = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(made), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = shadow.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return shadow;
}

at::Tensor view_of(const at::Tensor& base, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), c10::scalarTypeToTypeMeta(dtype));
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  impl->_set_conj(false);
  impl->_set_neg(false);
  return view;
}

void resize(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const c10::Storage& storage = tensor.storage();
  const size_t needed = at::detail::computeStorageNbytes(sizes, strides, tensor.itemsize(), static_cast<size_t>(tensor.storage_offset()));
  if (needed > storage.nbytes()) {
    TORCH_CHECK(storage.unsafeGetStorageImpl()->resizable(), "Trying to resize storage that is not resizable");
    const c10::DeviceGuard guard(tensor.device());
    const auto held = static_cast<int64_t>(storage.nbytes());
    const auto before = view_of(tensor, c10::kByte, {held}, {1}, 0);
    const auto grown = at::detail::empty_generic({static_cast<int64_t>(needed)}, c10::GetAllocator(c10::kPrivateUse1), kDense, c10::kByte, std::nullopt);
    if (held != 0) copy_on_device(before, at::Tensor(grown).narrow(0, 0, held));
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr(grown.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, tensor.device())));
    impl->set_nbytes(needed);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("record_stream", &record_stream);
}

// Copies see to these bits themselves; what resolves them is made of copies.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace standin
