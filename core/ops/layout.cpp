#include "core/ops/layout.h"

#include <charconv>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

namespace {

constexpr const char* kReductionNames[] = {"sum", "max", "min"};
constexpr int kMaxDevices = 1 << 24;

bool is_name(std::string_view text) {
  if (is_python_keyword(text) || text == "self") return false;
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

}  // namespace

std::string Placement::to_string() const {
  if (is_replicate()) return "Replicate";
  if (is_shard()) return "Shard(" + std::to_string(dim()) + ")";
  return std::string("Partial(") + kReductionNames[static_cast<size_t>(reduction())] + ")";
}

std::string Placement::short_name() const {
  if (is_replicate()) return "R";
  if (is_shard()) return "S" + std::to_string(dim());
  if (reduction() == Reduction::kSum) return "P";
  return std::string("P") + kReductionNames[static_cast<size_t>(reduction())];
}

std::string to_string(const Layout& layout) {
  std::vector<std::string> parts;
  for (const AxisLayout& axis : layout) {
    const std::string value = axis.value.short_name();
    parts.push_back(
        axis.value == axis.gradient ? value : "(" + value + "," + axis.gradient.short_name() + ")");
  }
  return join(parts, "/");
}

int Mesh::num_devices() const {
  int devices = 1;
  for (const MeshAxis& axis : axes) devices *= axis.size;
  return devices;
}

std::string Mesh::to_string() const {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes) parts.push_back(axis.name + "=" + std::to_string(axis.size));
  return join(parts, ",");
}

Mesh parse_mesh(const std::string& text) {
  const auto fail = [&](const std::string& what) {
    return InputError("mesh \"" + text + "\": " + what +
                      "; write axes and sizes, such as dp=2,tp=4");
  };
  Mesh mesh;
  std::set<std::string> names;
  int64_t devices = 1;
  if (strip(text).empty()) throw fail("it is empty");
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) throw fail("\"" + strip(part) + "\" has no size");
    MeshAxis axis;
    axis.name = strip(std::string_view(part).substr(0, equals));
    const std::string size = strip(std::string_view(part).substr(equals + 1));
    if (!is_name(axis.name)) throw fail("\"" + axis.name + "\" is no name for an axis");
    if (!names.insert(axis.name).second) throw fail("it has the axis " + axis.name + " twice");
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), axis.size);
    if (error != std::errc() || end != size.data() + size.size() || axis.size < 1)
      throw fail("the size of " + axis.name + " is \"" + size + "\", not a number from 1 on");
    devices *= axis.size;
    if (devices > kMaxDevices) throw fail("it has more than 16777216 devices");
    mesh.axes.push_back(std::move(axis));
  }
  if (mesh.axes.size() > 2)
    throw fail("it has " + std::to_string(mesh.axes.size()) + " axes, and two are the most");
  return mesh;
}

}  // namespace nnscaler
