#include "core/ops/layout.h"

#include <gtest/gtest.h>

#include "core/base/text.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

TEST(Layout, Prints) {
  EXPECT_EQ(Placement::shard(3).to_string(), "Shard(3)");
  EXPECT_EQ(Placement::replicate().to_string(), "Replicate");
  EXPECT_EQ(Placement::partial(Reduction::kMax).to_string(), "Partial(max)");
  const AxisLayout sharded{Placement::shard(0), Placement::shard(0)};
  const AxisLayout whole{Placement::replicate(), Placement::partial()};
  EXPECT_EQ(to_string(Layout{sharded, whole}), "S0/(R,P)");
  EXPECT_EQ(to_string(Layout{{Placement::partial(Reduction::kMin), Placement::replicate()}}),
            "(Pmin,R)");
}

TEST(Layout, PlacementsDiffer) {
  EXPECT_NE(Placement::partial(), Placement::partial(Reduction::kMax));
  EXPECT_EQ(Placement::partial(Reduction::kMin).reduction(), Reduction::kMin);
  EXPECT_TRUE(Placement::shard(0).is_shard());
  EXPECT_FALSE(Placement::partial().is_shard());
}

TEST(Layout, Meshes) {
  run_golden("ops/layout/mesh.txt", [](const std::string& input) {
    const Mesh mesh = parse_mesh(strip(input));
    return mesh.to_string() + ": " + std::to_string(mesh.num_devices()) + " devices";
  });
}

}  // namespace
}  // namespace nnscaler
