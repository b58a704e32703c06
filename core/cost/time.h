#pragma once

#include <cmath>
#include <cstdint>

namespace nnscaler {

/// No cost is longer (2.5 hours), so that the sum over a graph of any size fits 64 bits.
inline constexpr int64_t kLongestPs = int64_t{1} << 53;

/// Picoseconds, rounded, from 0 to kLongestPs.
inline int64_t to_ps(double seconds) {
  const double ps = seconds * 1e12;
  if (!(ps > 0)) return 0;
  return ps < static_cast<double>(kLongestPs) ? std::llround(ps) : kLongestPs;
}

}  // namespace nnscaler
