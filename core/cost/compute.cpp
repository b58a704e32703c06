#include <algorithm>

#include "core/cost/cluster.h"
#include "core/cost/time.h"

namespace nnscaler {

namespace {

/// Type whose peak stands for `dtype` where the device has no figure of its own.
DType substitute(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
      return DType::kBFloat16;
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return DType::kFloat32;  // the only figure that every device has
  }
}

double peak_flops(const Device& device, DType dtype) {
  for (;;) {
    const auto found = device.flops.find(dtype);
    if (found != device.flops.end()) return found->second;
    dtype = substitute(dtype);
  }
}

}  // namespace

int64_t compute_ps(const Cluster& cluster, double flops, int64_t bytes, DType dtype) {
  const Device& device = cluster.device;
  const int64_t arithmetic = to_ps(flops / (peak_flops(device, dtype) * device.matmul_efficiency));
  const int64_t movement = to_ps(static_cast<double>(bytes) / device.bytes_per_second);
  return std::min(device.launch_ps + std::max(arithmetic, movement), kLongestPs);
}

}  // namespace nnscaler
