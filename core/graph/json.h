#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/graph/zip.h"

namespace nnscaler {

/// A value in a parsed document; read it through the JsonReader that holds the document.
struct Json {
  std::array<uint64_t, 2> raw = {};
};

/// A JSON document that knows where in it one is, for messages.
///
/// Accessors take an object and a key, check the kind, and raise an InputError that names file,
/// entry and place: "model.pt2: models/model.json: graph.nodes[12].target: is a number, not a
/// string". Strings live as long as the reader.
class JsonReader {
 public:
  /// Parses `text`. `where` starts every message.
  JsonReader(Buffer text, std::string where);
  ~JsonReader();
  JsonReader(const JsonReader&) = delete;
  JsonReader& operator=(const JsonReader&) = delete;

  std::string_view text() const { return text_.text(); }
  Json root() const;

  /// The field of that name; absent or null is an error.
  Json at(Json object, std::string_view key) const;
  /// The field of that name, unless it is absent or null.
  std::optional<Json> find(Json object, std::string_view key) const;
  std::string_view string(Json object, std::string_view key) const;
  int64_t integer(Json object, std::string_view key) const;
  bool boolean(Json object, std::string_view key) const;
  /// A number, or one of "Infinity", "-Infinity", "NaN".
  double number(Json object, std::string_view key) const;
  std::vector<Json> array(Json object, std::string_view key) const;
  std::vector<std::string> strings(Json object, std::string_view key) const;
  std::vector<std::pair<std::string_view, Json>> fields(Json object, std::string_view key) const;
  /// The one field of a union, such as {"as_int": 3}.
  std::pair<std::string_view, Json> only(Json object) const;
  bool is_null(Json value) const;
  bool is_object(Json value) const;
  bool is_array(Json value) const;
  bool is_string(Json value) const;

  // Elements of arrays, which have no key; their place comes from each().
  std::string_view string(Json value) const;
  int64_t integer(Json value) const;
  bool boolean(Json value) const;
  double number(Json value) const;
  std::vector<Json> elements(Json value) const;

  /// Calls `visit(element)` or `visit(element, index)` on an array's elements.
  template <typename Visit>
  void each(Json object, std::string_view key, Visit&& visit) const {
    const std::vector<Json> items = array(object, key);
    const Scope scope(*this, key, 0);
    for (size_t i = 0; i < items.size(); ++i) {
      place_.back().index = static_cast<int64_t>(i);
      if constexpr (std::is_invocable_v<Visit, Json, size_t>) {
        visit(items[i], i);
      } else {
        visit(items[i]);
      }
    }
  }

  /// While it lives, messages name `key` (and `index` of it) below what they named before.
  class Scope {
   public:
    Scope(const JsonReader& reader, std::string_view key, int64_t index = -1) : reader_(reader) {
      reader_.place_.push_back({key, index});
    }
    ~Scope() { reader_.place_.pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const JsonReader& reader_;
  };

  struct Step {
    std::string_view key;
    int64_t index;
  };
  using Steps = std::vector<Step>;
  const Steps& steps() const { return place_; }

  /// While it lives, messages name `steps` instead of what they named before.
  class Jump {
   public:
    Jump(const JsonReader& reader, Steps steps) : reader_(reader), saved_(std::move(steps)) {
      std::swap(saved_, reader_.place_);
    }
    ~Jump() { std::swap(saved_, reader_.place_); }
    Jump(const Jump&) = delete;
    Jump& operator=(const Jump&) = delete;

   private:
    const JsonReader& reader_;
    Steps saved_;
  };

  [[noreturn]] void fail(std::string_view what) const;
  /// "model.pt2: models/model.json: graph.nodes[12]"
  std::string place() const;

 private:
  struct Document;
  Buffer text_;
  std::string where_;
  std::unique_ptr<Document> document_;
  mutable Steps place_;  // Where reading is, not what is read.
};

}  // namespace nnscaler
