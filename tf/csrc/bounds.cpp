#include "bounds.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace forebay::tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr char kIgnored[] = "bad_indices_policy";

absl::Status refuse(const OpKernel& kernel, const std::string& words) { return absl::InvalidArgumentError(absl::StrCat(kernel.type_string(), ": ", words)); }

// Whole numbers, in the host's memory.
absl::StatusOr<std::vector<int64_t>> numbers_of(OpKernelContext& context, int input) {
  const Tensor& given = context.input(input);
  Tensor here = given;
  if (context.input_memory_type(input) != tensorflow::HOST_MEMORY) {
    here = Tensor(tensorflow::cpu_allocator(), given.dtype(), given.shape());
    const auto copied = context.op_device_context()->CopyDeviceTensorToCPUSync(&given, "", static_cast<tensorflow::Device*>(context.device()), &here);
    if (!copied.ok()) return copied;
  }
  std::vector<int64_t> numbers(here.NumElements());
  const auto read = [&](auto kind) {
    const auto* data = static_cast<const decltype(kind)*>(here.data());
    std::copy(data, data + numbers.size(), numbers.begin());
  };
  switch (here.dtype()) {
    case tensorflow::DT_INT16:
      read(int16_t{});
      break;
    case tensorflow::DT_UINT16:
      read(uint16_t{});
      break;
    case tensorflow::DT_INT32:
      read(int32_t{});
      break;
    case tensorflow::DT_INT64:
      read(int64_t{});
      break;
    default:
      return absl::UnimplementedError(absl::StrCat("indices of type ", tensorflow::DataTypeString(here.dtype()), " are not served on the virtual device"));
  }
  return numbers;
}

// The sizes of a tensor, or of what a variable holds.
absl::StatusOr<TensorShape> sizes_of(OpKernelContext& context, int input) {
  if (context.input_dtype(input) != tensorflow::DT_RESOURCE) return context.input(input).shape();
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  const auto found = tensorflow::LookupResource(&context, tensorflow::HandleFromInput(&context, input), &variable);
  if (!found.ok()) return found;
  const tensorflow::tf_shared_lock lock(*variable->mu());
  return variable->tensor()->shape();
}

absl::Status check_within(const OpKernel& kernel, const std::vector<int64_t>& numbers, int64_t end) {
  for (const int64_t number : numbers) {
    if (number < 0 || number >= end) return refuse(kernel, absl::StrCat("index ", number, " is not in [0, ", end, ")"));
  }
  return absl::OkStatus();
}

// Indices of rows: of the first dimension, or of `axis`.
absl::Status check_rows(const OpKernel& kernel, OpKernelContext& context, int64_t axis = 0) {
  const auto sizes = sizes_of(context, 0);
  if (!sizes.ok()) return sizes.status();
  if (axis < 0) axis += sizes->dims();
  if (axis < 0 || axis >= sizes->dims()) return refuse(kernel, "there is no such axis");
  const auto numbers = numbers_of(context, 1);
  return numbers.ok() ? check_within(kernel, *numbers, sizes->dim_size(static_cast<int>(axis))) : numbers.status();
}

absl::Status check_first(const OpKernel& kernel, OpKernelContext& context) { return check_rows(kernel, context); }

absl::Status check_axis(const OpKernel& kernel, OpKernelContext& context) {
  const auto axis = numbers_of(context, 2);
  if (!axis.ok()) return axis.status();
  return axis->size() == 1 ? check_rows(kernel, context, axis->front()) : refuse(kernel, "the axis is no scalar");
}

absl::Status check_variable_rows(const OpKernel& kernel, OpKernelContext& context) {
  int64_t batch = 0;
  const auto read = tensorflow::GetNodeAttr(kernel.def(), "batch_dims", &batch);
  return read.ok() ? check_rows(kernel, context, batch < 0 ? batch + context.input(1).dims() : batch) : read;
}

// Indices of which the last dimension has one for each of the first dimensions of `sizes`.
absl::Status check_places(const OpKernel& kernel, OpKernelContext& context, int input, const TensorShape& sizes) {
  std::string policy;
  if (tensorflow::TryGetNodeAttr(kernel.def(), kIgnored, &policy) && policy == "IGNORE") {
    return absl::UnimplementedError(absl::StrCat(kernel.type_string(), " with bad_indices_policy is not served on the virtual device; place it with tf.device(\"/CPU:0\")"));
  }
  const auto& shape = context.input(input).shape();
  const int64_t depth = shape.dims() == 0 ? 1 : shape.dim_size(shape.dims() - 1);
  if (depth > sizes.dims()) return refuse(kernel, absl::StrCat(depth, " indices for ", sizes.dims(), " dimensions"));
  const auto numbers = numbers_of(context, input);
  if (!numbers.ok()) return numbers.status();
  for (size_t place = 0; place < numbers->size(); ++place) {
    const auto dim = static_cast<int>(place % static_cast<size_t>(depth));
    const auto held = check_within(kernel, {(*numbers)[place]}, sizes.dim_size(dim));
    if (!held.ok()) return held;
  }
  return absl::OkStatus();
}

absl::Status check_places_of_first(const OpKernel& kernel, OpKernelContext& context) {
  const auto sizes = sizes_of(context, 0);
  return sizes.ok() ? check_places(kernel, context, 1, *sizes) : sizes.status();
}

absl::Status check_places_of_shape(const OpKernel& kernel, OpKernelContext& context) {
  const auto numbers = numbers_of(context, 2);
  if (!numbers.ok()) return numbers.status();
  TensorShape sizes;
  const auto made = TensorShape::BuildTensorShape(*numbers, &sizes);
  return made.ok() ? check_places(kernel, context, 0, sizes) : made;
}

// What is below zero is left out.
absl::Status check_segments(const OpKernel& kernel, OpKernelContext& context) {
  const auto count = numbers_of(context, 2), segments = numbers_of(context, 1);
  if (!count.ok()) return count.status();
  if (!segments.ok()) return segments.status();
  if (count->size() != 1) return refuse(kernel, "the number of segments is no scalar");
  for (const int64_t segment : *segments) {
    if (segment >= count->front()) return refuse(kernel, absl::StrCat("segment ", segment, " is not below ", count->front()));
  }
  return absl::OkStatus();
}

absl::Status check_labels(const OpKernel& kernel, OpKernelContext& context) {
  const auto& scores = context.input(0).shape();
  if (scores.dims() != 2) return refuse(kernel, "the scores are no matrix");
  const auto labels = numbers_of(context, 1);
  return labels.ok() ? check_within(kernel, *labels, scores.dim_size(1)) : labels.status();
}

absl::Status check_band(const OpKernel& kernel, OpKernelContext& context) {
  const auto& shape = context.input(0).shape();
  if (shape.dims() < 2) return refuse(kernel, "the input is no matrix");
  for (const int input : {1, 2}) {
    const auto bound = numbers_of(context, input);
    if (!bound.ok()) return bound.status();
    const int64_t most = shape.dim_size(shape.dims() - 3 + input);
    if (bound->size() != 1) return refuse(kernel, "a bound is no scalar");
    if (bound->front() > most) return refuse(kernel, absl::StrCat("the bound ", bound->front(), " is beyond the matrix of ", most));
  }
  return absl::OkStatus();
}

// Lengths of a Fourier transform's dimensions; XLA ends the process for some others.
absl::Status check_lengths(const OpKernel& kernel, OpKernelContext& context) {
  const auto lengths = numbers_of(context, 1);
  if (!lengths.ok()) return lengths.status();
  for (const int64_t length : *lengths) {
    if (length < 0) return refuse(kernel, absl::StrCat("a length of ", length));
  }
  return absl::OkStatus();
}

// XLA's slope of a slice that is empty has other sizes than what was sliced, where the slice begins or ends beyond that.
absl::Status check_sliced(const OpKernel& kernel, OpKernelContext& context) {
  if (context.input(4).NumElements() != 0) return absl::OkStatus();
  int64_t ellipsis = 0, added = 0;
  for (const auto& [name, mask] : {std::pair{"ellipsis_mask", &ellipsis}, std::pair{"new_axis_mask", &added}}) {
    const auto read = tensorflow::GetNodeAttr(kernel.def(), name, mask);
    if (!read.ok()) return read;
  }
  const auto sizes = numbers_of(context, 0);
  if (!sizes.ok()) return sizes.status();
  for (const int input : {1, 2}) {
    const auto places = numbers_of(context, input);
    if (!places.ok()) return places.status();
    for (size_t dim = 0; dim < places->size(); ++dim) {
      const bool is_known = ellipsis + added == 0 && dim < sizes->size();
      if (is_known && std::abs((*places)[dim]) <= (*sizes)[dim]) continue;
      return absl::UnimplementedError(absl::StrCat(kernel.type_string(), " of this empty slice is not served on the virtual device; place it with tf.device(\"/CPU:0\")"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_alike(const OpKernel& kernel, OpKernelContext& context) {
  const auto &one = context.input(0).shape(), &other = context.input(1).shape();
  return one == other ? absl::OkStatus() : refuse(kernel, absl::StrCat("sizes ", one.DebugString(), " and ", other.DebugString(), " differ"));
}

const std::map<std::string, Bounds> kBounds = {{"Gather", check_first},
                                               {"GatherNd", check_places_of_first},
                                               {"GatherV2", check_axis},
                                               {"IRFFT", check_lengths},
                                               {"IRFFT2D", check_lengths},
                                               {"IRFFT3D", check_lengths},
                                               {"MatrixBandPart", check_band},
                                               {"RFFT", check_lengths},
                                               {"RFFT2D", check_lengths},
                                               {"RFFT3D", check_lengths},
                                               {"ResourceGather", check_variable_rows},
                                               {"ResourceGatherNd", check_places_of_first},
                                               {"ScatterNd", check_places_of_shape},
                                               {"SigmoidGrad", check_alike},
                                               {"SparseSoftmaxCrossEntropyWithLogits", check_labels},
                                               {"StridedSliceGrad", check_sliced}};

// Beginnings of names; the longer of two that fit is the first.
const std::pair<const char*, Bounds> kFamilies[] = {{"ResourceScatterNd", check_places_of_first},
                                                    {"ResourceScatter", check_first},
                                                    {"TensorScatter", check_places_of_first},
                                                    {"UnsortedSegment", check_segments}};

}  // namespace

Bounds bounds_of(const std::string& op) {
  if (const auto found = kBounds.find(op); found != kBounds.end()) return found->second;
  for (const auto& [family, check] : kFamilies) {
    if (op.rfind(family, 0) == 0) return check;
  }
  return nullptr;
}

}  // namespace forebay::tf
