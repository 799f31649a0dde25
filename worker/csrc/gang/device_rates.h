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

  // Of one type of numbers.
  struct Products {
    double flops_per_s = 0;              // of products of large square matrices
    double half_side = 0;                // of a product whose least side is so long: half of that. 0: of any, all of it
    double convolution_flops_per_s = 0;  // 0: as of products; as the next two, of rates that older workers measured
  };
  std::map<c10::ScalarType, Products> products;  // never empty
  double bytes_per_s = 0;                        // that a device reads and writes, of what no cache holds
  double call_s = 0;                             // of a call that does next to nothing
  double link_bytes_per_s = 0;                   // that leave a device in a sum, while as many come to it
  double link_latency_s = 0;                     // of a sum of next to nothing, and of waiting for the devices before it
  double functions_per_s = 0;                    // of values of a function such as the exponential; 0: as fast as they are read and written
  double compared_per_s = 0;                     // elements of windows of which the largest is looked for; 0: as the functions

  std::string packed() const {
    wire::Writer out;
    put_types(out, &Products::flops_per_s);
    for (const double rate : {bytes_per_s, call_s, link_bytes_per_s, link_latency_s}) out.f64(rate);
    put_types(out, &Products::half_side);  // older workers end before
    put_types(out, &Products::convolution_flops_per_s);
    for (const double rate : {functions_per_s, compared_per_s}) out.f64(rate);
    return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
  }
  // Throws wire::WireError.
  static DeviceRates of(const std::string& packed) {
    wire::Reader in(reinterpret_cast<const uint8_t*>(packed.data()), packed.size());
    DeviceRates rates;
    rates.get_types(in, &Products::flops_per_s);
    for (double* rate : {&rates.bytes_per_s, &rates.call_s, &rates.link_bytes_per_s, &rates.link_latency_s}) *rate = in.f64();
    if (!in.done()) {
      rates.get_types(in, &Products::half_side);
      rates.get_types(in, &Products::convolution_flops_per_s);
      for (double* rate : {&rates.functions_per_s, &rates.compared_per_s}) *rate = in.f64();
    }
    if (!in.done() || !rates.are_sound()) throw wire::WireError("no rates of devices");
    return rates;
  }

  bool are_measured() const { return !products.empty(); }

  // Of a type that was not measured: as of the first one that was.
  const Products& products_of(c10::ScalarType type) const {
    const auto found = products.find(type);
    return found == products.end() ? products.begin()->second : found->second;
  }

 private:
  void put_types(wire::Writer& out, double Products::* rate) const {
    out.varint(products.size());
    for (const auto& [type, of_type] : products) {
      out.u8(static_cast<uint8_t>(type));
      out.f64(of_type.*rate);
    }
  }
  void get_types(wire::Reader& in, double Products::* rate) {
    for (size_t left = in.count(kTypesMax, "the number of types"); left > 0; --left) {
      const auto type = static_cast<c10::ScalarType>(in.u8());
      products[type].*rate = in.f64();
    }
  }

  bool are_sound() const {
    const auto is_rate = [](double rate) { return std::isfinite(rate) && rate > 0; };
    const auto is_none_or_rate = [](double rate) { return std::isfinite(rate) && rate >= 0; };
    const bool are_products = std::all_of(products.begin(), products.end(), [&](const auto& one) {
      const auto& [flops, half, convolutions] = one.second;
      return is_rate(flops) && is_none_or_rate(half) && is_none_or_rate(convolutions);
    });
    return are_measured() && are_products && is_rate(bytes_per_s) && is_rate(call_s) && is_rate(link_bytes_per_s) && is_rate(link_latency_s) &&
           is_none_or_rate(functions_per_s) && is_none_or_rate(compared_per_s);
  }
};

}  // namespace forebay::worker
