// Which device of a gang keeps which weights, where a segment is carried out as a pipeline: stages of layers, in the order in which it uses them. Where
// stages have several devices, each weight is kept by one of them, and the others are sent it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "device/storage.h"
#include "gang/gang.h"
#include "pipeline/sliced_data.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// By weight: the device.
using Stages = std::unordered_map<uint64_t, int>;

// The weights of a segment, and what the calls cost that use them.
class Layers {
 public:
  // `begin`: the step from which on it is a pipeline's. `data`: of which it is given slices. `plan_of`: the plan of a template, by its number.
  using PlanOf = std::function<const Plan&(uint64_t number)>;
  Layers(const Path& path, size_t begin, const SlicedData& data, Gang& gang, Storages& storages, const PlanOf& plan_of);

  // Of weights that layers next to each other use; others, as those of an embedding that is used at both ends, belong to no stage.
  size_t count() const { return layers_.size(); }
  // For so many devices: the number of the first layer of each stage but the first. Each stage takes as long, or has weights of as many bytes, as far as can be.
  enum class By { kSeconds, kBytes };
  std::vector<size_t> balanced(size_t stages, By by) const;
  // Of so many devices each, which keep as many bytes, as far as can be.
  Stages divided(const std::vector<size_t>& cuts, int devices) const;

 private:
  struct Layer {
    uint64_t weight;
    int64_t bytes = 0;   // with those of its companions
    double seconds = 0;  // of the calls from its first use to that of the next one, and of their derivatives
  };
  struct Use {
    size_t step;
    uint64_t weight;
  };
  struct OfBatch {
    std::vector<size_t> steps;  // that are given what comes of a batch, and write to nothing that was there
    std::vector<Use> uses;      // the weights that each of them is given, the largest first
  };
  static OfBatch of_batch(const Path& path, size_t begin, const SlicedData& data, Storages& storages, const PlanOf& plan_of);
  // Weights that come with those of one layer alone, as biases.
  void find_companions(const std::vector<Use>& uses, Storages& storages);
  void add_up(const Path& path, Gang& gang, const OfBatch& of_batch);

  std::vector<Layer> layers_;
  std::unordered_map<uint64_t, size_t> numbers_;     // of layers, by weight
  std::unordered_map<uint64_t, size_t> companions_;  // as numbers_
};

}  // namespace forebay::worker
