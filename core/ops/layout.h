#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nnscaler {

/// How partial values add up.
enum class Reduction : uint8_t { kSum, kMax, kMin };

/// What one mesh axis does to a tensor: every coordinate holds all of it, a contiguous part along
/// one dim, or a term of a reduction.
class Placement {
 public:
  static constexpr Placement replicate() { return Placement(-1); }
  static constexpr Placement shard(int dim) { return Placement(static_cast<int8_t>(dim)); }
  static constexpr Placement partial(Reduction reduction = Reduction::kSum) {
    return Placement(static_cast<int8_t>(-2 - static_cast<int>(reduction)));
  }
  constexpr bool is_replicate() const { return code_ == -1; }
  constexpr bool is_shard() const { return code_ >= 0; }
  constexpr bool is_partial() const { return code_ <= -2; }
  constexpr int dim() const { return code_; }
  constexpr Reduction reduction() const { return static_cast<Reduction>(-2 - code_); }
  constexpr auto operator<=>(const Placement&) const = default;
  /// "Replicate", "Shard(0)", "Partial(sum)"
  std::string to_string() const;
  /// "R", "S0", "P", "Pmax"
  std::string short_name() const;

 private:
  explicit constexpr Placement(int8_t code) : code_(code) {}
  int8_t code_;
};

/// Placements of a value and of its gradient on one mesh axis.
struct AxisLayout {
  Placement value = Placement::replicate();
  Placement gradient = Placement::replicate();
  auto operator<=>(const AxisLayout&) const = default;
};

/// One AxisLayout a mesh axis. Where several axes shard one dim, the first axis of the mesh is
/// outermost.
using Layout = std::vector<AxisLayout>;

/// "S0/R" (values), or "S0/(R,P)" where the gradient's placement differs.
std::string to_string(const Layout& layout);

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// The devices as a named grid; ranks count with the last axis fastest.
struct Mesh {
  std::vector<MeshAxis> axes;
  int num_devices() const;
  /// "dp=2,tp=4"
  std::string to_string() const;
  bool operator==(const Mesh&) const = default;
};

/// Reads "dp=2,tp=4". Raises InputError for anything else: empty, a name twice, a size below 1,
/// more than two axes.
Mesh parse_mesh(const std::string& text);

}  // namespace nnscaler
