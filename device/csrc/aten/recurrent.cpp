// Recurrent networks, a layer in one call: the worker has the fastest kernel of its device for it, which a step at a time could not be given.
//
// What kernels keep for a layer's derivative is different on each device, and a session may go on on another one. So it stays with the worker, beside a
// result that has no elements; where it is gone, the derivative computes the layer once more.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "forebay/operators.h"

namespace forebay {
namespace {

using at::Tensor;
using at::TensorList;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensors = c10::List<std::optional<Tensor>>;

using wire::RecurrentCell;

// Of a call of torch.nn's functions, all that they have in common.
struct Network {
  Tensor input;
  std::vector<Tensor> state, weights;
  RecurrentCell cell;
  bool biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t weights_of_layer() const { return directions() * (biases ? 4 : 2); }
};

// What carries the network out in its parts: PyTorch's own kernels for any device. The states' results are in a list.
std::pair<Tensor, std::vector<Tensor>> in_parts(const Network& net) {
  if (net.cell == wire::kLstmCell) {
    auto [output, h, c] = at::native::lstm(net.input, net.state, net.weights, net.biases, net.layers, net.dropout, net.train, net.bidirectional, net.batch_first);
    return {output, {h, c}};
  }
  const auto of = [&](auto&& kernel) {
    auto [output, h] = kernel(net.input, net.state[0], net.weights, net.biases, net.layers, net.dropout, net.train, net.bidirectional, net.batch_first);
    return std::pair<Tensor, std::vector<Tensor>>(output, {h});
  };
  if (net.cell == wire::kGruCell) return of([](auto&&... all) { return at::native::gru(all...); });
  if (net.cell == wire::kTanhCell) return of([](auto&&... all) { return at::native::rnn_tanh(all...); });
  return of([](auto&&... all) { return at::native::rnn_relu(all...); });
}

// Whether it is held as it is, and has no tangent, of which a layer's derivative here knows nothing.
bool may_be_whole(const Tensor& tensor) {
  return tensor.defined() && is_held(tensor) && !tensor.is_conj() && !tensor.is_neg() && !tensor._fw_grad(0).defined();
}

// Whether each layer may be one call: PyTorch's kernels say what is wrong with any other network.
bool is_whole(const Network& net) {
  const auto alike = [&](const Tensor& tensor, at::IntArrayRef sizes) {
    return may_be_whole(tensor) && tensor.device() == net.input.device() && tensor.scalar_type() == net.input.scalar_type() && tensor.sizes() == sizes;
  };
  if (!may_be_whole(net.input) || net.input.dim() != 3 || net.input.numel() == 0 || !at::isFloatingType(net.input.scalar_type())) return false;
  if (net.layers < 1 || net.weights.size() != static_cast<size_t>(net.layers * net.weights_of_layer()) || net.state.size() != (net.cell == wire::kLstmCell ? 2u : 1u)) return false;
  if (c10::impl::TorchDispatchModeTLS::any_modes_set() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer)) return false;
  if (!net.state[0].defined() || net.state[0].dim() != 3) return false;
  const int64_t hidden = net.state[0].size(2), directions = net.directions(), rows = wire::kCellGates[net.cell] * hidden;
  const bool held = std::all_of(net.state.begin(), net.state.end(), [&](const Tensor& one) { return alike(one, {net.layers * directions, net.input.size(net.batch_first ? 0 : 1), hidden}); });
  if (!held || hidden == 0) return false;
  const size_t count = net.biases ? 4 : 2;
  for (size_t place = 0; place < net.weights.size(); ++place) {
    const bool first_layer = place < static_cast<size_t>(net.weights_of_layer());
    const auto& weight = net.weights[place];
    const bool fits = place % count == 0   ? alike(weight, {rows, first_layer ? net.input.size(2) : directions * hidden})
                      : place % count == 1 ? alike(weight, {rows, hidden})
                                           : alike(weight, {rows});
    if (!fits) return false;
  }
  return true;
}

std::vector<Tensor> recorded_layer(const Tensor& input, TensorList state, TensorList weights, int64_t cell, bool bidirectional, bool keeps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("forebay::recurrent_layer", "")
                             .typed<std::vector<Tensor>(const Tensor&, TensorList, TensorList, int64_t, bool, bool)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(input, state, weights, cell, bidirectional, keeps);
}

std::vector<Tensor> recorded_derivative(const OptionalTensors& gradients, TensorList results, const Tensor& input, TensorList state, TensorList weights, int64_t cell,
                                        bool bidirectional) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("forebay::recurrent_layer_backward", "")
                             .typed<std::vector<Tensor>(const OptionalTensors&, TensorList, const Tensor&, TensorList, TensorList, int64_t, bool)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(gradients, results, input, state, weights, cell, bidirectional);
}

class LayerFunction : public torch::autograd::Function<LayerFunction> {
 public:
  // Saves what the layer is given, and behind that all that it gives: as natively, none of it may be written to before the derivative.
  static variable_list forward(AutogradContext* context, const Tensor& input, TensorList state, TensorList weights, int64_t cell, bool bidirectional) {
    context->set_materialize_grads(false);
    auto results = recorded_layer(input, state, weights, cell, bidirectional, /*keeps=*/true);
    variable_list saved{input};
    for (const auto tensors : {state, weights, TensorList(results)}) saved.insert(saved.end(), tensors.begin(), tensors.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["states"] = static_cast<int64_t>(state.size());
    context->saved_data["cell"] = cell;
    context->saved_data["bidirectional"] = bidirectional;
    results.pop_back();
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto saved = context->get_saved_variables();
    const auto states = static_cast<size_t>(context->saved_data["states"].toInt());
    const auto cell = context->saved_data["cell"].toInt();
    const bool bidirectional = context->saved_data["bidirectional"].toBool();
    const auto given = saved.end() - static_cast<std::ptrdiff_t>(states + 2);
    const variable_list results(given, saved.end());
    saved.erase(given, saved.end());
    variable_list found;
    if (at::GradMode::is_enabled()) {
      found = differentiable(saved, gradients, states, static_cast<RecurrentCell>(cell), bidirectional);
    } else {
      OptionalTensors incoming;
      for (const auto& one : gradients) incoming.push_back(one.defined() ? std::optional(one) : std::nullopt);
      found = recorded_derivative(incoming, results, saved[0], TensorList(saved).slice(1, states), TensorList(saved).slice(1 + states), cell, bidirectional);
    }
    found.resize(saved.size() + 2);  // cell and direction have none
    return found;
  }

 private:
  // A derivative that has derivatives: of the layer in its parts.
  static variable_list differentiable(const variable_list& kept, const variable_list& gradients, size_t states, RecurrentCell cell, bool bidirectional) {
    const auto after_states = kept.begin() + 1 + static_cast<std::ptrdiff_t>(states);
    const bool biases = kept.size() - 1 - states == (bidirectional ? 8u : 4u);
    const Network net{kept[0], {kept.begin() + 1, after_states}, {after_states, kept.end()}, cell, biases, 1, 0, false, bidirectional, false};
    auto [output, last] = in_parts(net);
    variable_list results{output}, wanted, incoming;
    results.insert(results.end(), last.begin(), last.end());
    variable_list reached;
    for (size_t place = 0; place < gradients.size(); ++place) {
      if (!gradients[place].defined() || !results[place].requires_grad()) continue;
      reached.push_back(results[place]);
      incoming.push_back(gradients[place]);
    }
    for (const auto& one : kept) {
      if (one.requires_grad()) wanted.push_back(one);
    }
    const auto found = torch::autograd::grad(reached, wanted, incoming, /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
    variable_list all;
    for (size_t next = 0; const auto& one : kept) all.push_back(one.requires_grad() ? found[next++] : Tensor());
    return all;
  }
};

std::vector<Tensor> layer(const Tensor& input, TensorList state, TensorList weights, RecurrentCell cell, bool bidirectional) {
  const auto trains = [](const Tensor& tensor) { return tensor.requires_grad(); };
  const bool with_gradients = at::GradMode::is_enabled() && (trains(input) || std::any_of(state.begin(), state.end(), trains) || std::any_of(weights.begin(), weights.end(), trains));
  return with_gradients ? LayerFunction::apply(input, state, weights, static_cast<int64_t>(cell), bidirectional)
                        : recorded_layer(input, state, weights, cell, bidirectional, /*keeps=*/false);
}

// As autocast has GPUs' kernels of whole networks compute.
void cast(Network& net) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  net.input = at::autocast::cached_cast(dtype, net.input, at::kCUDA);
  for (auto* tensors : {&net.state, &net.weights}) {
    for (auto& one : *tensors) one = at::autocast::cached_cast(dtype, one, at::kCUDA);
  }
}

std::pair<Tensor, std::vector<Tensor>> by_layers(const Network& net) {
  Tensor output = net.batch_first ? net.input.transpose(0, 1) : net.input;
  std::vector<std::vector<Tensor>> last(net.state.size());
  const int64_t directions = net.directions(), count = net.weights_of_layer();
  for (int64_t number = 0; number < net.layers; ++number) {
    std::vector<Tensor> state;
    for (const auto& one : net.state) state.push_back(net.layers == 1 ? one : one.narrow(0, number * directions, directions));
    const auto weights = TensorList(net.weights).slice(static_cast<size_t>(number * count), static_cast<size_t>(count));
    const auto found = layer(output, state, weights, net.cell, net.bidirectional);
    output = found[0];
    for (size_t place = 0; place < last.size(); ++place) last[place].push_back(found[place + 1]);
    if (net.dropout != 0 && net.train && number + 1 < net.layers) output = at::dropout(output, net.dropout, /*train=*/true);
  }
  std::vector<Tensor> joined;
  for (const auto& of_layers : last) joined.push_back(net.layers == 1 ? of_layers.front() : at::cat(of_layers, 0));
  return {net.batch_first ? output.transpose(0, 1) : output, joined};
}

std::pair<Tensor, std::vector<Tensor>> carry_out(Network net) {
  const auto autocast = at::autocast::get_autocast_dispatch_key_from_device_type(at::kCUDA);
  const bool casts = at::autocast::is_autocast_enabled(at::kCUDA) && !c10::impl::tls_is_dispatch_key_excluded(autocast);
  Network whole = net;
  if (casts && may_be_whole(net.input)) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(autocast);
    cast(whole);
    if (is_whole(whole)) return by_layers(whole);
  }
  return !casts && is_whole(net) ? by_layers(net) : in_parts(net);
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, TensorList state, TensorList weights, bool biases, int64_t layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  if (state.size() != 2) return at::native::lstm(input, state, weights, biases, layers, dropout, train, bidirectional, batch_first);
  auto [output, last] = carry_out({input, state.vec(), weights.vec(), wire::kLstmCell, biases, layers, dropout, train, bidirectional, batch_first});
  return {output, last[0], last[1]};
}

template <RecurrentCell cell>
std::tuple<Tensor, Tensor> network(const Tensor& input, const Tensor& state, TensorList weights, bool biases, int64_t layers, double dropout, bool train, bool bidirectional,
                                   bool batch_first) {
  auto [output, last] = carry_out({input, {state}, weights.vec(), cell, biases, layers, dropout, train, bidirectional, batch_first});
  return {output, last[0]};
}

std::vector<Tensor> sizes_of_layer(const Tensor& input, TensorList state, TensorList, int64_t, bool, bool keeps) {
  std::vector<Tensor> results{at::empty({input.size(0), input.size(1), state[0].size(0) * state[0].size(2)}, input.options())};
  for (const auto& one : state) results.push_back(at::empty(one.sizes(), input.options()));
  if (keeps) results.push_back(at::empty({0}, input.options().dtype(at::kByte)));
  return results;
}

std::vector<Tensor> sizes_of_derivative(const OptionalTensors&, TensorList, const Tensor& input, TensorList state, TensorList weights, int64_t, bool) {
  std::vector<Tensor> results{at::empty(input.sizes(), input.options())};
  for (const auto tensors : {state, weights}) {
    for (const auto& one : tensors) results.push_back(at::empty(one.sizes(), input.options()));
  }
  return results;
}

}  // namespace

void define_own_operators() {
  static auto* definitions = new torch::Library(torch::Library::FRAGMENT, "forebay", std::nullopt, __FILE__, __LINE__);  // for as long as the process
  for (const auto& own : wire::kOwnOperators) {
    if (!c10::Dispatcher::singleton().findSchema({std::string(wire::kOwnNamespace) + own.name, ""})) definitions->def(own.schema);
  }
  static auto* sizes = new torch::Library(torch::Library::IMPL, "forebay", c10::DispatchKey::Meta, __FILE__, __LINE__);
  sizes->impl("recurrent_layer", sizes_of_layer);
  sizes->impl("recurrent_layer_backward", sizes_of_derivative);
}

void register_recurrent(KernelTable& library) {
  library.impl("lstm.input", TORCH_FN(lstm));
  library.impl("gru.input", TORCH_FN(network<wire::kGruCell>));
  library.impl("rnn_tanh.input", TORCH_FN(network<wire::kTanhCell>));
  library.impl("rnn_relu.input", TORCH_FN(network<wire::kReluCell>));
}

}  // namespace forebay
