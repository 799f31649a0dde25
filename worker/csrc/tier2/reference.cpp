#include "tier2/reference.h"

#include <limits>
#include <unordered_map>

#include <ATen/core/LegacyTypeDispatch.h>

#include "call/call.h"
#include "call/planner.h"

namespace forebay::worker {

namespace {

constexpr auto kDouble = static_cast<uint8_t>(c10::ScalarType::Double);

uint8_t in_double(uint8_t dtype) { return c10::isFloatingType(static_cast<c10::ScalarType>(dtype)) ? kDouble : dtype; }

int64_t in_double(int64_t bytes, c10::ScalarType dtype) {
  return c10::isFloatingType(dtype) ? bytes / static_cast<int64_t>(c10::elementSize(dtype)) * static_cast<int64_t>(sizeof(double)) : bytes;
}

void put_in_double(wire::Argument& argument, bool is_dtype) {
  argument.geometry.dtype = in_double(argument.geometry.dtype);
  argument.dtype = in_double(argument.dtype);
  if (is_dtype && argument.tag == wire::Tag::kInt) argument.integer = in_double(static_cast<uint8_t>(argument.integer));
  for (auto& item : argument.items) put_in_double(item, is_dtype);
}

void put_in_double(wire::Output& output) {
  output.storage_bytes = in_double(output.storage_bytes, static_cast<c10::ScalarType>(output.geometry.dtype));
  output.geometry.dtype = in_double(output.geometry.dtype);
  for (auto& item : output.items) put_in_double(item);
}

std::unique_ptr<Plan> plan_again(const Plan& plan, Precision precision, const Device& device, Layouts& layouts) {
  const std::string whole = '\0' + plan.encoded;  // the operator's number is told apart
  wire::Reader in(reinterpret_cast<const uint8_t*>(whole.data()), whole.size());
  auto source = wire::get_template(in);
  if (precision == Precision::kDouble) {
    const auto& declared = plan.op.schema().arguments();
    for (size_t index = 0; index < source.arguments.size(); ++index) {
      put_in_double(source.arguments[index], declared[index].real_type()->str().find("ScalarType") != std::string::npos);
    }
    for (auto& output : source.outputs) put_in_double(output);
  }
  return make_plan(source, plan.op, device, layouts);
}

// The segment's storages once more.
class Again {
 public:
  Again(const SegmentRun& run, Precision precision)
      : run_(run), precision_(precision), storages_(run.device), caller_(run.device, storages_) {
    storages_.set_limit(std::numeric_limits<int64_t>::max());
  }

  void give(const std::vector<at::Tensor>& inputs) {
    auto input = inputs.begin();
    for (size_t number = 0; number < places().size(); ++number) {
      if (places()[number].is_given) insert(number);
      if (places()[number].is_input) whole(number).copy_(*input++);
    }
    if (!run_.binding.numbers.empty()) ++input;
    drawn_.assign(input, input + static_cast<std::ptrdiff_t>(run_.specialization.draws().size()));
    input += static_cast<std::ptrdiff_t>(run_.specialization.draws().size());
    for (size_t index = 0; index < run_.binding.offsets.size(); ++index) {
      windowed(index).copy_(*input++);
    }
  }

  void carry_out() {
    std::unordered_map<uint64_t, std::unique_ptr<Plan>> plans;
    size_t draw = 0;
    for (size_t index = 0; index < run_.path.size(); ++index) {
      const wire::Step* step = run_.path[index];
      for (const auto& slot : step->freed) {
        if (step != run_.path.front()) storages_.withdraw(slot.last);
      }
      if (wire::is_allocation(step->key)) {
        allocate(step->slots.front().last);
        continue;
      }
      auto& plan = plans[step->key];
      if (!plan) plan = plan_again(*run_.plans[wire::key_value(step->key)], precision_, run_.device, layouts_);
      const auto& draws = run_.specialization.draws();
      if (draw < draws.size() && draws[draw].step == index) {
        const size_t number = draw++;
        if (!draws[number].kept) {  // in another precision it would draw something else
          fill(*step, draws[number], drawn_[number]);
          continue;
        }
      }
      wire::Words words;
      for (const auto& slot : step->slots) words.push_back(slot.last);
      caller_.bind(*plan, words);
      caller_.run(*plan);
    }
  }

  std::vector<at::Tensor> results() {
    std::vector<at::Tensor> results;
    for (size_t number = 0; number < places().size(); ++number) {
      if (places()[number].is_output()) results.push_back(whole(number));
    }
    for (size_t window = 0; window < run_.binding.offsets.size(); ++window) {
      if (run_.specialization.windows()[window].is_output) results.push_back(windowed(window));
    }
    return results;
  }

 private:
  const std::vector<Specialization::Place>& places() const { return run_.specialization.places(); }

  void allocate(uint64_t id) {
    for (size_t number = 0; number < places().size(); ++number) {
      if (run_.binding.ids[number] == id && places()[number].layout) insert(number);
    }
  }

  void fill(const wire::Step& step, const Specialization::Draw& draw, const at::Tensor& values) {
    view(storages_.at(step.slots[draw.word].last), *draw.layout, static_cast<int64_t>(step.slots[draw.word + 1].last)).copy_(values);
  }

  void insert(size_t number) {
    const auto& place = places()[number];
    storages_.insert(run_.binding.ids[number], precision_ == Precision::kDouble ? in_double(place.bytes, place.dtype) : place.bytes);
  }

  at::Tensor whole(size_t number) { return view(storages_.at(run_.binding.ids[number]), *places()[number].layout, 0); }

  at::Tensor windowed(size_t window) {
    const auto& [place, layout, is_output] = run_.specialization.windows()[window];
    return view(storages_.at(run_.binding.ids[place]), *layout, run_.binding.offsets[window]);
  }

  // In this precision.
  at::Tensor view(Entry& entry, const Layout& layout, int64_t offset) {
    const auto own = static_cast<uint8_t>(layout.dtype);
    const uint8_t dtype = precision_ == Precision::kDouble ? in_double(own) : own;
    return entry.view(run_.device, *layouts_.intern({dtype, 0, layout.sizes, layout.strides}), offset);
  }

  const SegmentRun& run_;
  Precision precision_;
  std::vector<at::Tensor> drawn_;  // as tier 1 has drawn it
  Layouts layouts_;
  Storages storages_;
  Caller caller_;
};

}  // namespace

std::vector<at::Tensor> results_of(const SegmentRun& run, const std::vector<at::Tensor>& inputs, Precision precision) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Again again(run, precision);
  again.give(inputs);
  again.carry_out();
  return again.results();
}

}  // namespace forebay::worker
