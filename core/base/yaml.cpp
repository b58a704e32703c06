#include "core/base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

namespace {

constexpr size_t kMostBytes = size_t{4} << 20;
constexpr size_t kMostLevels = 32;
constexpr size_t kMostNodes = 200'000;

std::string position(const std::string& file, int line, int column) {
  return fmt::format("{}:{}:{}", file, line, column);
}

/// At most 60 characters of what the user wrote, on one line.
std::string excerpt(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 60)) {
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  if (text.size() > 60) result += "...";
  return result;
}

/// Builds the tree from the parser's events. The parser recurses with the document's depth; it is
/// stopped by our exception long before that matters.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (root_) fail(mark, "a second document starts here; write one document only");
    root_.emplace();
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(mark, Yaml::Kind::kNull), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Yaml node = make(mark, Yaml::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    add(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, Yaml::Kind::kList, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, Yaml::Kind::kMap, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "the alias refers to what encloses it");
    Yaml copy = found->second;
    copy.line = mark.line + 1;
    copy.column = mark.column + 1;
    count(mark, size(copy));
    add(std::move(copy), YAML::NullAnchor);
  }

  bool has_document() const { return root_.has_value(); }
  Yaml take() { return root_ ? std::move(*root_) : Yaml(); }

 private:
  struct Open {
    Yaml node;
    YAML::anchor_t anchor;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message) const {
    throw InputError(position(file_, mark.line + 1, mark.column + 1) + ": " + message);
  }
  void count(const YAML::Mark& mark, size_t nodes) {
    num_nodes_ += nodes;
    if (num_nodes_ > kMostNodes) {
      fail(mark, fmt::format("more than {} nodes; write less, or fewer aliases", kMostNodes));
    }
  }
  static size_t size(const Yaml& node) {
    size_t total = 1;
    for (const Yaml& key : node.keys) total += size(key);
    for (const Yaml& item : node.items) total += size(item);
    return total;
  }
  Yaml make(const YAML::Mark& mark, Yaml::Kind kind) {
    count(mark, 1);
    Yaml node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }
  void open(const YAML::Mark& mark, Yaml::Kind kind, YAML::anchor_t anchor) {
    if (open_.size() >= kMostLevels) {
      fail(mark, fmt::format("nested more than {} levels deep", kMostLevels));
    }
    open_.push_back({make(mark, kind), anchor});
  }
  void close() {
    Open last = std::move(open_.back());
    open_.pop_back();
    if (last.node.kind == Yaml::Kind::kMap) check_twice(last.node);
    add(std::move(last.node), last.anchor);
  }
  void check_twice(const Yaml& map) const {
    std::map<std::string_view, const Yaml*> seen;
    for (const Yaml& key : map.keys) {
      if (key.kind != Yaml::Kind::kScalar) continue;
      const auto [first, is_new] = seen.emplace(key.text, &key);
      if (is_new) continue;
      throw InputError(fmt::format("{}: key \"{}\" stands twice, first in line {}; keep one",
                                   position(file_, key.line, key.column), excerpt(key.text),
                                   first->second->line));
    }
  }
  void add(Yaml node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      *root_ = std::move(node);
      return;
    }
    Yaml& parent = open_.back().node;
    const bool is_key =
        parent.kind == Yaml::Kind::kMap && parent.keys.size() == parent.items.size();
    if (node.kind == Yaml::Kind::kNull && parent.kind == Yaml::Kind::kMap && !is_key) {
      node.line = parent.keys.back().line;  // what is not there is marked at what follows it
      node.column = parent.keys.back().column;
    }
    (is_key ? parent.keys : parent.items).push_back(std::move(node));
  }

  const std::string& file_;
  std::optional<Yaml> root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Yaml> anchors_;
  size_t num_nodes_ = 0;
};

}  // namespace

const Yaml* Yaml::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].kind == Kind::kScalar && keys[i].text == key) return &items[i];
  }
  return nullptr;
}

std::string Yaml::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return fmt::format("\"{}\"", excerpt(text));
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "";
}

Yaml parse_yaml(const std::string& text, const std::string& file) {
  if (text.size() > kMostBytes) {
    throw InputError(fmt::format("{}: has {}, more than the {} that such a file may have", file,
                                 format_bytes(static_cast<int64_t>(text.size())),
                                 format_bytes(static_cast<int64_t>(kMostBytes))));
  }
  Builder builder(file);
  try {
    // Ends in no line break: yaml-cpp overlooks an open quote that a line break follows.
    std::istringstream stream(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw InputError(fmt::format(
        "{}: not valid YAML: {}",
        position(file, std::max(error.mark.line, 0) + 1, std::max(error.mark.column, 0) + 1),
        excerpt(error.msg)));
  }
  return builder.take();
}

std::string Mistakes::where(const Yaml& at) const { return position(file_, at.line, at.column); }

void Mistakes::add(const Yaml& at, std::string_view message) {
  lines_.push_back({at.line, at.column, fmt::format("{}: {}", where(at), message)});
}

void Mistakes::raise_if_any() const {
  if (lines_.empty()) return;
  std::vector<Line> sorted = lines_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Line& a, const Line& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  std::vector<std::string> texts;
  for (const Line& line : sorted) texts.push_back(line.text);
  throw InputError(join(texts, "\n"));
}

void check_keys(const Yaml& map, const std::vector<std::string>& known, std::string_view what,
                Mistakes& mistakes) {
  for (const Yaml& key : map.keys) {
    if (key.kind != Yaml::Kind::kScalar) {
      mistakes.add(key, fmt::format("a key of {} is {}; keys are {}", what, key.describe(),
                                    join(known, ", ")));
    } else if (std::find(known.begin(), known.end(), key.text) == known.end()) {
      const std::string hint = did_you_mean(key.text, known);
      mistakes.add(key, fmt::format("unknown key {} of {}{}", key.describe(), what,
                                    hint.empty() ? "; keys are " + join(known, ", ") : hint));
    }
  }
}

}  // namespace nnscaler
