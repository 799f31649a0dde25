// What the devices of a gang and the links between them can do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <c10/core/ScalarType.h>
#include <forebay/wire.h>

namespace forebay::worker {

struct DeviceRates {
  static constexpr size_t kTypesMax = 256;

  std::map<c10::ScalarType, double> flops_per_s;  // of products of matrices; never empty
  double bytes_per_s = 0;                         // that a device reads and writes
  double call_s = 0;                              // of a call that does next to nothing
  double link_bytes_per_s = 0;                    // that leave a device in a sum, while as many come to it
  double link_latency_s = 0;                      // of a sum of next to nothing, and of waiting for the devices before it

  std::string packed() const {
    wire::Writer out;
    out.varint(flops_per_s.size());
    for (const auto& [type, rate] : flops_per_s) {
      out.u8(static_cast<uint8_t>(type));
      out.f64(rate);
    }
    for (const double rate : {bytes_per_s, call_s, link_bytes_per_s, link_latency_s}) out.f64(rate);
    return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
  }
  // Throws wire::WireError.
  static DeviceRates of(const std::string& packed) {
    wire::Reader in(reinterpret_cast<const uint8_t*>(packed.data()), packed.size());
    DeviceRates rates;
    for (size_t left = in.count(kTypesMax, "the number of types"); left > 0; --left) {
      const auto type = static_cast<c10::ScalarType>(in.u8());
      rates.flops_per_s[type] = in.f64();
    }
    for (double* rate : {&rates.bytes_per_s, &rates.call_s, &rates.link_bytes_per_s, &rates.link_latency_s}) *rate = in.f64();
    if (rates.flops_per_s.empty() || !in.done() || !rates.are_sound()) throw wire::WireError("no rates of devices");
    return rates;
  }

  bool are_sound() const {
    const auto is_sound = [](double rate) { return std::isfinite(rate) && rate > 0; };
    const bool flops = std::all_of(flops_per_s.begin(), flops_per_s.end(), [&](const auto& one) { return is_sound(one.second); });
    return flops && is_sound(bytes_per_s) && is_sound(call_s) && is_sound(link_bytes_per_s) && is_sound(link_latency_s);
  }

  // Of a type that was not measured: as of the first one that was.
  double flops_per_s_of(c10::ScalarType type) const {
    const auto found = flops_per_s.find(type);
    return found == flops_per_s.end() ? flops_per_s.begin()->second : found->second;
  }
};

}  // namespace forebay::worker
