#include "call/templates.h"

#include <string>
#include <utility>

#include <ATen/core/function_schema.h>
#include <forebay/segments.h>

#include "call/operators.h"
#include "call/planner.h"

namespace forebay::worker {

namespace {

// Of a template: its operator's schema, and what is written behind the operator's number.
uint64_t template_identity(const c10::OperatorHandle& op, wire::Reader in, const uint8_t* end) {
  in.varint();
  const auto* begin = reinterpret_cast<const char*>(in.position());
  return wire::identity_of({begin, static_cast<size_t>(end - in.position())}, wire::identity_of(c10::toString(op.schema())));
}

std::string encoded_of(wire::Reader in, const uint8_t* end) {
  in.varint();
  return {reinterpret_cast<const char*>(in.position()), static_cast<size_t>(end - in.position())};
}

}  // namespace

void Templates::define_operator(wire::Reader& in) {
  const std::string name = in.string();
  const std::string overload = in.string();
  const uint64_t hash = in.u64();
  if (operators_.size() >= wire::kOperatorsMax) throw wire::WireError("more than " + std::to_string(wire::kOperatorsMax) + " operators");
  operators_.push_back(resolve(name, overload, hash));
}

wire::Template Templates::define(wire::Reader& in, bool keeps_encoded) {
  const wire::Reader before = in;
  auto source = wire::get_template(in);
  if (source.op >= operators_.size()) throw wire::WireError("operator " + std::to_string(source.op) + " is not defined");
  if (plans_.size() >= wire::kTemplatesMax) throw wire::WireError("more than " + std::to_string(wire::kTemplatesMax) + " templates; FORGET comes first");
  auto plan = make_plan(source, operators_[source.op], device_, layouts_);
  items_ += plan->items;
  bytes_ += before.left() - in.left();
  plan->identity = template_identity(plan->op, before, in.position());
  if (keeps_encoded) plan->encoded = encoded_of(before, in.position());
  if (items_ > wire::kTemplatesItemsMax || bytes_ > wire::kTemplatesBytesMax) {
    throw wire::WireError("templates of " + std::to_string(items_) + " items and " + std::to_string(bytes_) + " bytes; FORGET comes first");
  }
  plans_.push_back(std::move(plan));
  return source;
}

void Templates::forget() {
  plans_.clear();
  layouts_.clear();
  items_ = 0;
  bytes_ = 0;
}

}  // namespace forebay::worker
