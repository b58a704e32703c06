#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/graph/archive.h"
#include "core/graph/read.h"

namespace nnscaler {

/// What a graph promises whoever reads it: every id is valid, operators read what is written
/// before.
inline void check_graph(const Graph& graph) {
  const auto index = [](auto id) { return static_cast<size_t>(id.index); };
  const auto exists = [&](ValueId id) {
    check(id.valid() && index(id) < graph.values.size(), "a value's id is out of range");
  };
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    for (const ValueId id : op.reads()) {
      exists(id);
      const OpId producer = graph.value(id).producer;
      check(producer.index < static_cast<int>(i), "an operator reads what comes later");
      check(producer.valid() || graph.value(id).kind != ValueKind::kIntermediate,
            "an intermediate has no producer");
    }
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      if (!op.outputs[k].valid()) continue;
      exists(op.outputs[k]);
      const Value& value = graph.value(op.outputs[k]);
      check(index(value.producer) == i, "a value does not know its producer");
      check(value.output_index == static_cast<int>(k), "a value does not know its place");
    }
    check(op.stack >= 0 && static_cast<size_t>(op.stack) < graph.stacks.size(), "no such stack");
    check(op.trace < static_cast<int>(graph.traces.size()), "no such trace");
    check(op.region < static_cast<int>(graph.regions.size()), "no such region");
  }
  for (const Value& value : graph.values) {
    check(value.num_elements() >= 0 && value.bytes() >= 0, "a size overflows");
    check(value.is_symbol || value.shape.size() == value.strides.size(), "no strides");
  }
  for (size_t r = 0; r < graph.regions.size(); ++r) {
    check(graph.regions[r].parent < static_cast<int>(r), "a region lies in a later one");
  }
  for (const Anchor& anchor : graph.anchors) {
    check(anchor.position >= 0 && static_cast<size_t>(anchor.position) <= graph.operators.size(),
          "an anchor lies outside");
  }
  for (const auto* list : {&graph.inputs, &graph.outputs}) {
    for (const ValueId id : *list) {
      if (id.valid()) exists(id);
    }
  }
  print_graph(graph);
}

/// Reads a `.pt2` (which starts with "PK"), or the text of its model and, after a zero byte, of
/// extra/nnscaler.json: a graph that keeps its promises, or an error of the reader.
inline int fuzz_archive(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    if (text.starts_with("PK")) {
      check_graph(read_archive_bytes(text, "model.pt2"));
      return 0;
    }
    const size_t zero = text.find('\0');
    const JsonReader model(Buffer(std::string_view(text).substr(0, zero)), "model.json");
    if (zero == std::string::npos) {
      check_graph(read_graph(model, nullptr));
    } else {
      const JsonReader extra(Buffer(std::string_view(text).substr(zero + 1)), "nnscaler.json");
      check_graph(read_graph(model, &extra));
    }
  } catch (const InputError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}

}  // namespace nnscaler

#ifdef NNSCALER_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nnscaler::fuzz_archive(data, size);
}
#endif
