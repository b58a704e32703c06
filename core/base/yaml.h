#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnscaler {

/// One YAML document as a tree with positions. Aliases are resolved.
struct Yaml {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;         ///< kScalar
  bool quoted = false;      ///< kScalar: in quotes, so text even if it reads like a number.
  std::vector<Yaml> keys;   ///< kMap: parallel to items.
  std::vector<Yaml> items;  ///< kList, kMap
  int line = 1, column = 1;

  /// The value of a key of a map, or nullptr.
  const Yaml* find(std::string_view key) const;
  /// "a list", "the text \"abc\"", for messages.
  std::string describe() const;
};

/// Reads one document. Raises InputError with file, line and column for what is not YAML, a second
/// document, a key twice in one map, an alias to what encloses it, and what no file of ours needs:
/// more than 32 levels, 4 MiB, or 200,000 nodes after resolving aliases. `file` stands in messages.
Yaml parse_yaml(const std::string& text, const std::string& file);

/// The mistakes of one file, so that they can be reported together.
class Mistakes {
 public:
  explicit Mistakes(std::string file) : file_(std::move(file)) {}
  /// "constraints.yaml:14:7"
  std::string where(const Yaml& at) const;
  void add(const Yaml& at, std::string_view message);
  bool empty() const { return lines_.empty(); }
  /// Raises InputError with a line a mistake, in order of their positions, if there are any.
  void raise_if_any() const;

 private:
  struct Line {
    int line, column;
    std::string text;
  };
  std::string file_;
  std::vector<Line> lines_;
};

/// Adds a mistake for each key of a map that is not one of `known`, with the nearest, and for keys
/// that are no text. `what` names what has the keys: "a rule".
void check_keys(const Yaml& map, const std::vector<std::string>& known, std::string_view what,
                Mistakes& mistakes);

}  // namespace nnscaler
