// What the workers of a gang's other devices are sent as definitions: the client's operators and templates, and this worker's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/device.h"
#include "gang/rank.h"

namespace forebay::worker {

// How many words a call has for an argument.
size_t words_of(const wire::Argument& argument);
// Where the words of an argument begin among those of a call.
size_t word_of(const wire::Template& call, size_t argument);

// Numbers of the client's operators and templates are the client's; own ones have numbers from kOperatorsMax and kTemplatesMax on.
class GangTemplates {
 public:
  GangTemplates(const Device& device, Layouts& layouts) : device_(device), layouts_(layouts) {}

  void define_operator(const uint8_t* encoded, size_t bytes);
  void define_template(const wire::Template& source, c10::OperatorHandle op);
  // All templates are gone; operators stay.
  void forget();
  // The client's, once their templates are gone.
  void forget_operators() { operators_.clear(); }
  // Of a template, whoever's it is.
  const wire::Template& template_of(uint64_t number) const { return is_own(number) ? own(number).source : templates_[number]; }
  c10::OperatorHandle operator_of(uint64_t number) const { return is_own(number) ? own(number).op : handles_[number]; }
  const Definition& definition_of(uint64_t number) const { return is_own(number) ? own(number).definition : definitions_[number]; }
  // Of an operator.
  const Definition& operator_definition_of(uint64_t op) const { return op < wire::kOperatorsMax ? operators_[op] : own_operators_[op - wire::kOperatorsMax]; }

  // A template of this worker's own, until all are forgotten. Throws wire::WireError as making a plan does.
  uint64_t define_own(const wire::Template& source, c10::OperatorHandle op);
  Plan& own_plan(uint64_t definition) { return *own(definition).plan; }
  // An operator for templates of this worker's own, by its name after "aten::".
  struct Operator {
    uint64_t number;
    c10::OperatorHandle handle;
  };
  Operator own_operator(const std::string& name);

  // A call, or a part of one, with what defines it.
  struct Part {
    uint64_t definition;
    Plan* plan;
    wire::Words words;
  };
  // The length of the lists of an operator that takes their items one by one; 0 for any other.
  size_t length_of_items(uint64_t number) const;
  // The storages of each item of such lists.
  std::vector<std::vector<uint64_t>> items_of(uint64_t number, const wire::Words& words) const;
  // Some of the items alone. Throws wire::WireError as making a plan does.
  Part part_of_items(uint64_t number, const wire::Words& words, const std::vector<size_t>& items);

 private:
  struct Own {
    wire::Template source;
    c10::OperatorHandle op;
    Definition definition;
    std::unique_ptr<Plan> plan;
  };
  static bool is_own(uint64_t number) { return number >= wire::kTemplatesMax; }
  const Own& own(uint64_t number) const { return own_[number - wire::kTemplatesMax]; }
  // The number of the template of some items.
  uint64_t slice_of(uint64_t number, const std::vector<size_t>& items);

  const Device& device_;
  Layouts& layouts_;
  std::vector<Definition> operators_;
  std::vector<Definition> own_operators_;
  std::unordered_map<std::string, Operator> own_operator_numbers_;
  std::vector<c10::OperatorHandle> handles_;   // of the templates' operators
  std::vector<wire::Template> templates_;
  std::vector<Definition> definitions_;        // of the templates
  std::unordered_map<std::string, uint64_t> slice_numbers_;  // by a template's number and its items
  std::unordered_map<std::string, uint64_t> own_numbers_;    // by what was encoded
  std::deque<Own> own_;                        // templates of this worker's own, which stay where they are
};

}  // namespace forebay::worker
