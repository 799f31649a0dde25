// Carries out segments by libraries that were compiled of them (docs/reference/compiled.md).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tier2/executor.h"
#include "tier2/offer.h"
#include "tier2/specialization.h"
#include "tier2/threads.h"

namespace forebay::worker {

class LibraryExecutor final : public Executor {
 public:
  // `threads`: how many kernels take, if that is chosen for each segment. `find_library` returns once it is known whether there is a library of the
  // segment of this number, and it has that.
  LibraryExecutor(const ExecutorContext& context, const std::optional<Threads>& threads, std::vector<Offer>& offers, std::function<void(uint64_t)> find_library)
      : context_(context), threads_(threads), offers_(offers), find_library_(std::move(find_library)) {}

  // Describes the segment for the compiling process. One that is steady has its library at once, if there is one.
  void prepare(Candidate& candidate, const Candidates& all) override;
  // The library computes from copies, twice, and then tier 1 carries the segment out, as ever.
  void verify(Candidate& candidate) override;
  bool run(Candidate& candidate) override;

 private:
  using Tensors = std::vector<at::Tensor>;

  void describe(Candidate& candidate, const Candidates& all);
  // Finds whether there is a library of a steady one.
  void settle(Candidate& candidate, const Candidates& all);
  // Whether the library may compute from what is there, as far as can be seen. If not, tier 1 says what is wrong, if anything is.
  bool fits(Candidate& candidate, Binding& binding);
  // False if tier 1 has to carry it out: then nothing has changed.
  bool serve(Candidate& candidate, const Binding& binding);
  Tensors inputs_of(const Candidate& candidate, const Binding& binding);
  // What tier 1 would draw. Throws what its call would.
  at::Tensor drawn(const Candidate& candidate, const Specialization::Draw& draw, const std::pair<uint64_t, uint64_t>& seed_and_counter) const;
  const at::Tensor& window_of(const Candidate& candidate, const Binding& binding, size_t window);
  // The library is of no use to the segment any more.
  void reject(Candidate& candidate, const std::string& why);
  // What is wrong with two sets of results that were computed from copies of the inputs; empty if nothing is.
  static std::string fault_of(const Candidate& candidate, const Tensors& inputs, const Tensors& copies, const Tensors& first, const Tensors& second);
  // Copies results whose strides or storages are not the session's.
  void settle_layouts(const Candidate& candidate, Tensors& results);
  // Puts the results into the session's storages. From here on nothing fails.
  void take_results(const Candidate& candidate, const Binding& binding, const Tensors& results);
  // As take_results, of storages that are there.
  void put_results(const Candidate& candidate, const Binding& binding, const Tensors& results);
  // How results differ from what tier 1 has made of the inputs; empty if they do not.
  std::string difference(Candidate& candidate, const Binding& binding, const Tensors& inputs, const std::vector<Tensors>& found);
  void replay(const Candidate& candidate) { context_.tier1.run(candidate.path()); }

  const ExecutorContext context_;
  const std::optional<Threads>& threads_;
  std::vector<Offer>& offers_;
  const std::function<void(uint64_t)> find_library_;
};

}  // namespace forebay::worker
