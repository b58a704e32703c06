#include "core/graph/archive.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/read.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

std::string data_file(const std::string& name) {
  return std::string(NNSCALER_TESTS_DIR) + "/graph/data/" + name + ".pt2";
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

/// The texts of an archive in tests/graph/data, with edits: the first line names it, each further
/// one is `model: OLD => NEW`, `extra: OLD => NEW` (the first OLD that is there) or `extra = TEXT`.
Graph read_edited(const std::string& input) {
  const std::vector<std::string> lines = split(strip(input), '\n');
  const Zip zip(data_file(lines[0]));
  std::string model(zip.read("models/model.json", 1 << 20).text()), extra;
  if (zip.has("extra/nnscaler.json")) extra = zip.read("extra/nnscaler.json", 1 << 20).text();
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.starts_with("extra = ")) {
      extra = line.substr(8);
      continue;
    }
    const size_t arrow = line.find(" =>");
    const std::string old = line.substr(7, arrow - 7);
    std::string& text = line.starts_with("model: ") ? model : extra;
    const size_t at = text.find(old);
    if (arrow == std::string::npos || at == std::string::npos) {
      throw std::runtime_error("cannot apply: " + line);
    }
    text.replace(at, old.size(), line.substr(std::min(line.size(), arrow + 4)));
  }
  const JsonReader model_json(Buffer(model), lines[0] + ".pt2: models/model.json");
  if (extra.empty()) return read_graph(model_json, nullptr);
  const JsonReader extra_json(Buffer(extra), lines[0] + ".pt2: extra/nnscaler.json");
  return read_graph(model_json, &extra_json);
}

TEST(Archive, Listings) {
  run_golden("graph/archive/listings.txt",
             [](const std::string& input) { return print_graph(read_edited(input)); });
}

TEST(Archive, Mistakes) {
  run_golden("graph/archive/mistakes.txt",
             [](const std::string& input) { return print_graph(read_edited(input)); });
}

TEST(Archive, Gradients) {
  run_golden("graph/archive/gradients.txt", [](const std::string& input) {
    std::string text;
    for (const Value& value : read_edited(input).values) {
      text += display_name(value) + (value.requires_grad ? " yes\n" : " no\n");
    }
    return text;
  });
}

TEST(Archive, Regions) {
  run_golden("graph/archive/regions.txt", [](const std::string& input) {
    const Graph graph = read_edited(input);
    std::string text;
    for (size_t r = 0; r < graph.regions.size(); ++r) {
      static constexpr const char* kKinds[] = {"grad", "autocast", "recompute"};
      const Region& region = graph.regions[r];
      text += std::to_string(r) + " " + kKinds[static_cast<size_t>(region.kind)] + " in " +
              std::to_string(region.parent) + ":";
      for (const Operator& op : graph.operators) {
        if (op.region == static_cast<int>(r)) text += " " + graph.value(op.outputs[0]).name;
      }
      text += "\n";
    }
    return text;
  });
}

TEST(Archive, ReadsEveryCompression) {
  Graph stored = read_archive(data_file("mlp"));
  const Graph deflated = read_archive(data_file("deflated"));
  EXPECT_EQ(print_graph(stored), print_graph(deflated));
  EXPECT_EQ(stored.digest, deflated.digest);
  EXPECT_EQ(stored.operators[0].target, "aten.linear.default");
  EXPECT_EQ(stored.module_path(stored.operators[0]), "fc1");
  EXPECT_EQ(stored.operators[0].torch_fn, "builtin_function_or_method.linear");
}

TEST(Archive, DigestFollowsContent) {
  const std::string plain = read_edited("mlp").digest;
  EXPECT_EQ(plain.size(), 16);
  EXPECT_EQ(plain, read_edited("mlp").digest);
  EXPECT_NE(plain, read_edited("mlp\nmodel: line 4 => line 5").digest);
}

/// `dtype` numbers in a row.
template <typename T>
std::vector<T> numbers(const std::string& bytes) {
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), result.size() * sizeof(T));
  return result;
}

TEST(Archive, LoadsSmallLiterals) {
  const Graph graph = read_archive(data_file("literals"));
  EXPECT_EQ(numbers<int32_t>(graph.constants.at("transposed")),
            (std::vector<int32_t>{0, 6, 12, 18, 1, 7,  13, 19, 2, 8,  14, 20,
                                  3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23}));
  EXPECT_EQ(numbers<int32_t>(graph.constants.at("row")), (std::vector<int32_t>{13, 14, 15, 16}));
  EXPECT_EQ(numbers<int64_t>(graph.constants.at("expanded")), std::vector<int64_t>(24, 7));
  EXPECT_EQ(numbers<uint16_t>(graph.constants.at("lifted_tensor_0")),
            std::vector<uint16_t>{0x3f00});
  EXPECT_EQ(graph.constants.at("empty"), "");
  EXPECT_FALSE(graph.constants.contains("large"));  // 80 kB stay in the archive.
}

TEST(Archive, ReadsTensors) {
  EXPECT_EQ(read_tensor(data_file("literals"), "large"), std::string(80000, '\0'));
  EXPECT_EQ(numbers<int32_t>(read_tensor(data_file("literals"), "row")),
            (std::vector<int32_t>{13, 14, 15, 16}));
  EXPECT_EQ(read_tensor(data_file("mlp"), "fc1.weight").size(), 16 * 8 * 4);
  EXPECT_EQ(message_of([] { read_tensor(data_file("mlp"), "fc3.weight"); }),
            data_file("mlp") + ": has no tensor fc3.weight");
  EXPECT_EQ(message_of([] { read_tensor(data_file("features"), "steps"); }),
            data_file("features") + ": has no tensor steps");
}

// A real model's tie shows in its weights; a fake one's needs the extra file.
TEST(Archive, FindsTiesOfRealWeights) {
  const std::vector<std::vector<std::string>> expected = {{"embed.weight", "head.weight"}};
  EXPECT_EQ(read_archive(data_file("extra")).ties, expected);
  EXPECT_TRUE(read_archive(data_file("mlp")).ties.empty());
}

TEST(Archive, RefusesOtherFiles) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  EXPECT_EQ(message_of([] { read_archive("no/such/file.pt2"); }),
            "no/such/file.pt2: cannot be read: No such file or directory");
  EXPECT_EQ(message_of([] { read_archive_bytes("not a zip", "x.pt2"); }),
            "x.pt2: is not an archive of torch.export: Not a zip archive; write it with "
            "nnscaler.export");
  std::string damaged = read_file(data_file("mlp"));
  damaged[damaged.find("aten.gelu")] = 'b';
  EXPECT_EQ(message_of([&] { read_archive_bytes(damaged, "x.pt2"); }),
            "x.pt2: models/model.json: CRC error; the archive is damaged, write it again");
  const std::string whole = read_file(data_file("mlp"));
  EXPECT_EQ(message_of([&] { read_archive_bytes(whole.substr(0, whole.size() / 2), "x.pt2"); }),
            "x.pt2: is not an archive of torch.export: Not a zip archive; write it with "
            "nnscaler.export");
}

TEST(Graph, TellsTheUsersLine) {
  Graph graph;
  graph.traces = {{{"/home/user/torch/train.py", 3, "main", "model(x)"},
                   {"/env/lib/site-packages/transformers/models/llama.py", 20, "forward", "f(x)"},
                   {"/env/lib/site-packages/torch/nn/modules/linear.py", 134, "forward", "F"},
                   {"<eval_with_key>.5", 1, "forward", "y"}},
                  {{"torch/fx/passes/runtime_assert.py", 24, "insert", ""}},
                  {}};
  Operator op;
  EXPECT_EQ(graph.source_of(op), nullptr);
  op.trace = 0;
  EXPECT_EQ(graph.source_of(op)->line, 20);
  graph.traces[0].erase(graph.traces[0].begin() + 1);
  EXPECT_EQ(graph.source_of(op)->line, 3);  // A user's own folder called torch.
  op.trace = 1;
  EXPECT_EQ(graph.source_of(op)->line, 24);  // Nothing better.
  op.trace = 2;
  EXPECT_EQ(graph.source_of(op), nullptr);
}

TEST(Graph, NamesClasses) {
  const auto name = [](const std::string& full) { return Frame{"", 0, full}.short_class(); };
  EXPECT_EQ(name("torch.nn.modules.linear.Linear"), "Linear");
  EXPECT_EQ(name("pkg.make.<locals>.Net"), "Net");
  EXPECT_EQ(name("Net"), "Net");
  EXPECT_EQ(name("pkg.Net[pkg.Item]"), "Net[pkg.Item]");
}

TEST(Graph, CountsElementsAndBytes) {
  Value value;
  value.dtype = DType::kBFloat16;
  value.shape = {{3, ""}, {4, "s0"}, {-1, "u0"}};
  EXPECT_EQ(value.num_elements(), 12);
  EXPECT_EQ(value.bytes(), 24);
  EXPECT_EQ(value.type(), "bf16[3, s0, u0]");
  EXPECT_STREQ(dtype_name(DType::kComplex64), "complex64");
  EXPECT_TRUE(is_differentiable(DType::kComplex64));
  EXPECT_FALSE(is_differentiable(DType::kBool));
}

TEST(Graph, KnowsReaders) {
  const Graph graph = read_archive(data_file("data_dependent"));
  const auto readers = graph.readers();
  std::string text;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    text += graph.values[i].name + ":";
    for (const OpId id : readers[i]) text += " " + std::to_string(id.index);
    text += "\n";
  }
  EXPECT_EQ(text,
            "x: 0 1 9\nn: 5\nsym_size_int_1: 6 7\nsum_1: 2\nto: 3\nitem: 4\nones: 5\nadd:\n"
            "sym_max:\nsym_float: 8\npow_1: 9\nmul:\n");
}

}  // namespace
}  // namespace nnscaler
