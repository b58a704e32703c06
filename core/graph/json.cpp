#include "core/graph/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace nnscaler {

namespace {

namespace dom = simdjson::dom;

static_assert(sizeof(dom::element) == sizeof(Json::raw));
static_assert(std::is_trivially_copyable_v<dom::element>);

dom::element element(Json value) { return std::bit_cast<dom::element>(value.raw); }
Json wrap(dom::element value) { return {std::bit_cast<std::array<uint64_t, 2>>(value)}; }

const char* kind_of(Json value) {
  switch (element(value).type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a truth value";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

/// Finds where a text stops being JSON; slower than simdjson, which does not tell.
struct ErrorFinder : nlohmann::json_sax<nlohmann::json> {
  size_t position = 0;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    position = at;
    return false;
  }
};

}  // namespace

struct JsonReader::Document {
  dom::parser parser;
  dom::element root;
};

JsonReader::JsonReader(Buffer text, std::string where)
    : text_(std::move(text)), where_(std::move(where)), document_(std::make_unique<Document>()) {
  static_assert(Buffer::kPadding >= simdjson::SIMDJSON_PADDING);
  const std::string_view view = text_.text();
  const auto status = document_->parser.parse(view.data(), view.size(), false).get(document_->root);
  if (status == simdjson::SUCCESS) return;
  ErrorFinder finder;
  if (nlohmann::json::sax_parse(view.begin(), view.end(), &finder)) {
    fail(fmt::format("cannot be read as JSON: {}", simdjson::error_message(status)));
  }
  fail(fmt::format("is not JSON from byte {} on", finder.position));
}

JsonReader::~JsonReader() = default;

Json JsonReader::root() const { return wrap(document_->root); }

std::string JsonReader::place() const {
  std::string path;
  for (const Step& step : place_) {
    if (!path.empty()) path += '.';
    path += step.key;
    if (step.index >= 0) path += fmt::format("[{}]", step.index);
  }
  return path.empty() ? where_ : where_ + ": " + path;
}

void JsonReader::fail(std::string_view what) const {
  throw InputError(fmt::format("{}: {}", place(), what));
}

std::optional<Json> JsonReader::find(Json object, std::string_view key) const {
  dom::object fields;
  if (element(object).get(fields) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not an object", kind_of(object)));
  }
  dom::element value;
  if (fields.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return wrap(value);
}

Json JsonReader::at(Json object, std::string_view key) const {
  const std::optional<Json> value = find(object, key);
  if (value) return *value;
  const Scope scope(*this, key);
  fail("is missing");
}

std::string_view JsonReader::string(Json value) const {
  std::string_view result;
  if (element(value).get(result) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not a string", kind_of(value)));
  }
  return result;
}

int64_t JsonReader::integer(Json value) const {
  int64_t result = 0;
  if (element(value).get(result) != simdjson::SUCCESS) {
    fail(element(value).is_number() ? "is not a 64-bit integer"
                                    : fmt::format("is {}, not an integer", kind_of(value)));
  }
  return result;
}

bool JsonReader::boolean(Json value) const {
  bool result = false;
  if (element(value).get(result) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not a truth value", kind_of(value)));
  }
  return result;
}

double JsonReader::number(Json value) const {
  double result = 0;
  if (element(value).get(result) == simdjson::SUCCESS) return result;
  std::string_view text;
  if (element(value).get(text) == simdjson::SUCCESS) {
    using Limits = std::numeric_limits<double>;
    if (text == "Infinity") return Limits::infinity();
    if (text == "-Infinity") return -Limits::infinity();
    if (text == "NaN") return Limits::quiet_NaN();
  }
  fail(fmt::format("is {}, not a number", kind_of(value)));
}

std::vector<Json> JsonReader::elements(Json value) const {
  dom::array items;
  if (element(value).get(items) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not an array", kind_of(value)));
  }
  std::vector<Json> result;
  for (const dom::element item : items) result.push_back(wrap(item));
  return result;
}

std::string_view JsonReader::string(Json object, std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  return string(value);
}

int64_t JsonReader::integer(Json object, std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  return integer(value);
}

bool JsonReader::boolean(Json object, std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  return boolean(value);
}

double JsonReader::number(Json object, std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  return number(value);
}

std::vector<Json> JsonReader::array(Json object, std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  return elements(value);
}

std::vector<std::string> JsonReader::strings(Json object, std::string_view key) const {
  std::vector<std::string> result;
  each(object, key, [&](Json item) { result.emplace_back(string(item)); });
  return result;
}

std::vector<std::pair<std::string_view, Json>> JsonReader::fields(Json object,
                                                                  std::string_view key) const {
  const Json value = at(object, key);
  const Scope scope(*this, key);
  dom::object items;
  if (element(value).get(items) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not an object", kind_of(value)));
  }
  std::vector<std::pair<std::string_view, Json>> result;
  for (const dom::key_value_pair item : items) result.emplace_back(item.key, wrap(item.value));
  return result;
}

std::pair<std::string_view, Json> JsonReader::only(Json object) const {
  dom::object items;
  if (element(object).get(items) != simdjson::SUCCESS) {
    fail(fmt::format("is {}, not an object", kind_of(object)));
  }
  if (items.size() != 1) fail(fmt::format("has {} fields, not one", items.size()));
  const dom::key_value_pair item = *items.begin();
  return {item.key, wrap(item.value)};
}

bool JsonReader::is_null(Json value) const { return element(value).is_null(); }
bool JsonReader::is_object(Json value) const { return element(value).is_object(); }
bool JsonReader::is_array(Json value) const { return element(value).is_array(); }
bool JsonReader::is_string(Json value) const { return element(value).is_string(); }

}  // namespace nnscaler
