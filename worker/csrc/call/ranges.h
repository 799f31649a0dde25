// Numbers in tensors that an accelerator's kernels take for granted: whole numbers that lead into other tensors, and probabilities. Where one
// is out of its range, the kernel asserts, and the process can do nothing more on the device. So they are looked at before such a call, which
// then fails as it does on a host, and nothing is lost.
//
// What is known of a tensor's numbers is kept until something writes to its storage, so that a repeated call need not wait for the device;
// small uploads are looked at where they came from.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "call/plan.h"
#include "device/storage.h"

namespace forebay::worker {

// What is to be looked at before each call of the plan, for a kernel that does not.
std::vector<NumberRange> ranges_of(const Plan& plan);
// Adds that, and what is known of the numbers that it makes. To be called once, for an accelerator.
void note_ranges(Plan& plan);

// The least and the largest number, but for those that are `except`. Waits for the device.
Interval interval_of(const at::Tensor& numbers, std::optional<int64_t> except);

// Throws c10::IndexError, or c10::Error for a probability.
void hold_to_range(const Plan& plan, const NumberRange& range, const Interval& found);

// Between which numbers those lie that a call is about to make.
std::optional<Interval> interval_made(const Plan& plan, const torch::jit::Stack& stack);

}  // namespace forebay::worker
