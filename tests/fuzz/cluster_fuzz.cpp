#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/cost/cluster.h"

/// Reads a cluster file: a cluster whose times are sane, or an InputError.
inline int fuzz_cluster(const uint8_t* data, size_t size) {
  using namespace nnscaler;
  try {
    const Cluster cluster =
        parse_cluster(std::string(reinterpret_cast<const char*>(data), size), "cluster.yaml");
    const Mesh mesh{{{"dp", 3}, {"tp", 8}}};
    for (const auto& axes : {std::vector<int>{0}, {1}, {0, 1}}) {
      const int64_t ps = collective_ps(cluster, mesh, axes, Collective::kAllReduce, 1 << 20);
      check(ps >= 0 && ps <= int64_t{1} << 53, "time of a collective out of range");
    }
    compute_ps(cluster, 1e12, 1 << 20, DType::kBFloat16);
  } catch (const InputError&) {
  }
  return 0;
}

#ifdef NNSCALER_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz_cluster(data, size);
}
#endif
