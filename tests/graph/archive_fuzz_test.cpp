#include "tests/fuzz/archive_fuzz.cpp"

#include <gtest/gtest.h>

#include "core/base/text.h"
#include "tests/fuzz/mutate.h"

namespace nnscaler {
namespace {

std::string data_file(const std::string& name) {
  return std::string(NNSCALER_TESTS_DIR) + "/graph/data/" + name + ".pt2";
}

/// The model's JSON and, after a zero byte, the extra file's.
std::string texts_of(const std::string& name) {
  const Zip zip(data_file(name));
  std::string text(zip.read("models/model.json", 1 << 20).text());
  if (zip.has("extra/nnscaler.json")) {
    text += '\0';
    text += zip.read("extra/nnscaler.json", 1 << 20).text();
  }
  return text;
}

TEST(ArchiveFuzz, SurvivesDamagedFiles) {
  run_mutations({read_file(data_file("mlp")), read_file(data_file("deflated")),
                 read_file(data_file("extra"))},
                fuzz_archive, mutate_bytes, 1.0);
}

TEST(ArchiveFuzz, SurvivesWrongContents) {
  std::vector<std::string> seeds;
  for (const char* name : {"mlp", "features", "extra", "gradients", "layers", "literals",
                           "condition", "data_dependent"}) {
    seeds.push_back(texts_of(name));
  }
  run_mutations(seeds, fuzz_archive, mutate_json, 4.0);
}

}  // namespace
}  // namespace nnscaler
