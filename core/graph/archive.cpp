#include "core/graph/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/read.h"

namespace nnscaler {

namespace {

constexpr int64_t kMaxJson = int64_t{2} << 30;
constexpr int64_t kSmallConstant = 64 << 10;
constexpr int64_t kMaxExpanded = int64_t{1} << 30;
constexpr std::string_view kExtra = "extra/nnscaler.json";

/// "model" of models/model.json, or the name of the only model.
std::string model_name(const Zip& zip) {
  if (zip.has("models/model.json")) return "model";
  std::vector<std::string> names;
  for (const auto& [entry, index] : zip.entries()) {
    if (entry.starts_with("models/") && entry.ends_with(".json")) {
      names.push_back(entry.substr(7, entry.size() - 12));
    }
  }
  if (names.size() == 1) return names[0];
  if (names.empty()) {
    throw InputError(fmt::format(
        "{}: has no models/model.json, so it is not an archive of torch.export; write it with "
        "nnscaler.export",
        zip.name()));
  }
  throw InputError(fmt::format("{}: holds {} models ({}); save each in an archive of its own",
                               zip.name(), names.size(), join(names, ", ")));
}

JsonReader open_json(const Zip& zip, const std::string& entry) {
  return JsonReader(zip.read(entry, kMaxJson), zip.name() + ": " + entry);
}

/// Where the bytes of the archive's tensors lie: data/constants or data/weights.
class Payloads {
 public:
  Payloads(const Zip& zip, const std::string& model, const std::string& kind)
      : zip_(zip), folder_(fmt::format("data/{}/", kind)) {
    const std::string entry = fmt::format("{}{}_{}_config.json", folder_, model, kind);
    if (!zip.has(entry)) return;
    json_ = std::make_unique<JsonReader>(zip.read(entry, kMaxJson), zip.name() + ": " + entry);
    entries_ = json_->fields(json_->root(), "config");
    configs_.insert(entries_.begin(), entries_.end());
  }

  bool has(std::string_view fqn) const { return configs_.contains(fqn); }

  /// Contiguous bytes, or none when the archive has none (a fake or meta tensor was exported).
  std::optional<std::string> read(std::string_view fqn) const {
    const JsonReader::Scope scope(*json_, "config");
    const JsonReader::Scope in_config(*json_, fqn);
    const Json config = configs_.find(fqn)->second;
    if (json_->boolean(config, "use_pickle")) {
      json_->fail("is pickled, and pickles are not read; make it a plain tensor");
    }
    const std::string entry = folder_ + std::string(json_->string(config, "path_name"));
    const Json meta = json_->at(config, "tensor_meta");
    const JsonReader::Scope in_meta(*json_, "tensor_meta");
    const int64_t dtype_number = json_->integer(meta, "dtype");
    const int64_t item =
        dtype_number > 0 && dtype_number < 256 ? dtype_bytes(static_cast<DType>(dtype_number)) : 0;
    if (item == 0) json_->fail(fmt::format("dtype is {}, which is no element type", dtype_number));
    const std::vector<int64_t> sizes = read_extents(meta, "sizes");
    const std::vector<int64_t> strides = read_extents(meta, "strides");
    if (sizes.size() != strides.size()) json_->fail("sizes and strides differ in length");
    const int64_t offset = read_extent(json_->at(meta, "storage_offset"));

    // In elements; doubles cannot overflow and their error is far below the limits.
    double count = 1, span = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      count *= static_cast<double>(sizes[i]);
      span += static_cast<double>(sizes[i] - 1) * static_cast<double>(strides[i]);
    }
    if (count == 0) return "";
    const int64_t stored = zip_.size(entry);
    if (stored == 0) return std::nullopt;
    const double limit = static_cast<double>(stored / item);
    if (static_cast<double>(offset) + span > limit) {
      json_->fail(fmt::format("needs {:.0f} elements, and {} has {}",
                              static_cast<double>(offset) + span, entry, stored / item));
    }
    if (count > span && count * static_cast<double>(item) > static_cast<double>(kMaxExpanded)) {
      json_->fail(fmt::format("expands {:.0f} elements to {:.0f}, more than {}", span, count,
                              format_bytes(kMaxExpanded)));
    }
    std::string bytes = zip_.read_range(entry, offset * item, static_cast<int64_t>(span) * item);
    return gather(std::move(bytes), sizes, strides, static_cast<size_t>(item),
                  static_cast<size_t>(count));
  }

  /// Names of tensors that share all of their bytes, in the archive's order. Fake and meta ones
  /// have none.
  std::vector<std::vector<std::string>> shared() const {
    using Place = std::tuple<std::string_view, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
    std::map<Place, size_t> places;
    std::vector<std::vector<std::string>> groups;
    for (const auto& [fqn, config] : entries_) {
      const JsonReader::Scope scope(*json_, "config");
      const JsonReader::Scope in_config(*json_, fqn);
      if (json_->boolean(config, "use_pickle") || !json_->find(config, "tensor_meta")) continue;
      const std::string_view path = json_->string(config, "path_name");
      const Json meta = json_->at(config, "tensor_meta");
      if (zip_.size(folder_ + std::string(path)) == 0) continue;
      const Place place(path, read_extent(json_->at(meta, "storage_offset")),
                        read_extents(meta, "sizes"), read_extents(meta, "strides"));
      const auto [it, fresh] = places.emplace(place, groups.size());
      if (fresh) groups.emplace_back();
      groups[it->second].emplace_back(fqn);
    }
    std::erase_if(groups, [](const auto& names) { return names.size() < 2; });
    return groups;
  }

 private:
  int64_t read_extent(Json json) const {
    const int64_t extent = json_->integer(json, "as_int");
    if (extent < 0 || extent > int64_t{1} << 48) {
      json_->fail(fmt::format("has a size of {}", extent));
    }
    return extent;
  }

  std::vector<int64_t> read_extents(Json json, std::string_view key) const {
    std::vector<int64_t> extents;
    json_->each(json, key, [&](Json item) { extents.push_back(read_extent(item)); });
    return extents;
  }

  static bool contiguous(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    int64_t expected = 1;
    for (size_t dim = sizes.size(); dim-- > 0;) {
      if (sizes[dim] != 1 && strides[dim] != expected) return false;
      expected *= sizes[dim];
    }
    return true;
  }

  static std::string gather(std::string bytes, const std::vector<int64_t>& sizes,
                            const std::vector<int64_t>& strides, size_t item, size_t count) {
    if (bytes.size() == count * item && contiguous(sizes, strides)) return bytes;
    std::string result(count * item, '\0');
    std::vector<int64_t> index(sizes.size(), 0);
    int64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(bytes.data() + static_cast<size_t>(at) * item, item, result.data() + i * item);
      for (size_t dim = sizes.size(); dim-- > 0;) {
        at += strides[dim];
        if (++index[dim] < sizes[dim]) break;
        at -= strides[dim] * sizes[dim];
        index[dim] = 0;
      }
    }
    return result;
  }

  const Zip& zip_;
  std::string folder_;
  std::unique_ptr<JsonReader> json_;
  std::vector<std::pair<std::string_view, Json>> entries_;
  std::map<std::string_view, Json> configs_;
};

void check_byte_order(const Zip& zip) {
  if (!zip.has("byteorder")) return;
  const Buffer order = zip.read("byteorder", 16);
  if (order.text() != "little") {
    zip.fail("byteorder", "is not little; export the model on a little-endian machine");
  }
}

Graph read_zip(const Zip& zip) {
  const std::string model = model_name(zip);
  const JsonReader model_json = open_json(zip, fmt::format("models/{}.json", model));
  std::unique_ptr<JsonReader> extra;
  if (zip.has(kExtra)) {
    extra = std::make_unique<JsonReader>(zip.read(kExtra, kMaxJson),
                                         fmt::format("{}: {}", zip.name(), kExtra));
  }
  Graph graph = read_graph(model_json, extra.get());

  check_byte_order(zip);
  const Payloads constants(zip, model, "constants");
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kConstant || value.bytes() > kSmallConstant) continue;
    if (!constants.has(value.fqn)) continue;
    std::optional<std::string> bytes = constants.read(value.fqn);
    if (!bytes) continue;
    if (static_cast<int64_t>(bytes->size()) != value.bytes()) {
      zip.fail("data/constants", fmt::format("{} has {} bytes, and its value in the model {}",
                                             value.fqn, bytes->size(), value.bytes()));
    }
    graph.constants.emplace(value.fqn, std::move(*bytes));
  }
  if (!extra) {
    std::set<std::string_view> known;
    for (const Value& value : graph.values) known.insert(value.fqn);
    for (auto& group : Payloads(zip, model, "weights").shared()) {
      if (std::ranges::all_of(group, [&](const auto& fqn) { return known.contains(fqn); })) {
        graph.ties.push_back(std::move(group));
      }
    }
  }
  return graph;
}

}  // namespace

Graph read_graph(const JsonReader& model, const JsonReader* extra) {
  Draft draft;
  read_program(model, draft);
  Graph& graph = draft.graph;
  if (extra != nullptr) {
    read_extra(*extra, draft);
  } else {
    read_signature(model, draft);
  }
  if (graph.module_class.empty() && !graph.stacks.empty()) {
    graph.module_class = graph.stacks[0][0].class_name;
  }
  fill_stacks(graph);
  propagate_gradients(graph);
  drop_dead(graph);
  graph.digest =
      digest(std::string(digest(model.text())) + (extra != nullptr ? digest(extra->text()) : ""));
  return std::move(draft.graph);
}

Graph read_archive(const std::string& path) { return read_zip(Zip(path)); }

Graph read_archive_bytes(const std::string& bytes, const std::string& name) {
  return read_zip(Zip(bytes, name));
}

std::string read_tensor(const std::string& path, const std::string& fqn) {
  const Zip zip(path);
  const std::string model = model_name(zip);
  check_byte_order(zip);
  for (const char* kind : {"constants", "weights"}) {
    const Payloads payloads(zip, model, kind);
    if (!payloads.has(fqn)) continue;
    std::optional<std::string> bytes = payloads.read(fqn);
    if (bytes) return std::move(*bytes);
    throw InputError(fmt::format(
        "{}: {} has no content: it was exported from a fake or meta tensor; take it from the model",
        path, fqn));
  }
  throw InputError(fmt::format("{}: has no tensor {}", path, fqn));
}

}  // namespace nnscaler
