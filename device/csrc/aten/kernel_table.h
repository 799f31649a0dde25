// Our kernels under one dispatch key, for as long as the process.
#pragma once

#include <torch/library.h>

#include <map>
#include <string>
#include <unordered_set>
#include <utility>

namespace forebay {

class KernelTable {
 public:
  explicit KernelTable(c10::DispatchKey key) : key_(key) {}

  // Name and overload within aten: "add.Tensor".
  template <typename Function>
  void impl(const std::string& name, Function&& function) {
    impl("aten", name, torch::CppFunction(std::forward<Function>(function)));
  }
  void impl(const std::string& space, const std::string& name, torch::CppFunction&& function) {
    library(space).impl(name.c_str(), std::move(function));
    names_.insert(space + "::" + name);
  }

  c10::DispatchKey key() const { return key_; }
  bool holds(const c10::OperatorHandle& op) const {
    const auto& name = op.operator_name();
    return names_.contains(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  }

 private:
  torch::Library& library(const std::string& space) {
    return libraries_.try_emplace(space, torch::Library::IMPL, space, key_, __FILE__, __LINE__).first->second;
  }

  c10::DispatchKey key_;
  std::map<std::string, torch::Library> libraries_;
  std::unordered_set<std::string> names_;
};

}  // namespace forebay
