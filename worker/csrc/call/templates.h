// The operators and templates that a session's client has defined, by the numbers it gave them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/device.h"

namespace forebay::worker {

class Templates {
 public:
  explicit Templates(const Device& device) : device_(device) {}

  // All of these throw wire::WireError where the definition is not allowed, or there are too many.
  void define_operator(wire::Reader& in);
  // `keeps_encoded`: the plan keeps the template as it came. Returns the template.
  wire::Template define(wire::Reader& in, bool keeps_encoded);
  Plan& at(uint64_t number) {
    if (number >= plans_.size()) throw wire::WireError("template " + std::to_string(number) + " is not defined");
    return *plans_[number];
  }
  // As at, of a number that has been looked at.
  Plan& known(uint64_t number) { return *plans_[number]; }
  c10::OperatorHandle operator_of(const wire::Template& source) const { return operators_[source.op]; }
  const std::vector<std::unique_ptr<Plan>>& plans() const { return plans_; }
  Layouts& layouts() { return layouts_; }
  // Templates and layouts are gone; operators stay.
  void forget();
  // Once their templates are gone.
  void forget_operators() { operators_.clear(); }

 private:
  const Device& device_;
  Layouts layouts_;
  std::vector<c10::OperatorHandle> operators_;
  std::vector<std::unique_ptr<Plan>> plans_;
  size_t items_ = 0;  // of all plans
  size_t bytes_ = 0;  // of all templates, as they came
};

}  // namespace forebay::worker
