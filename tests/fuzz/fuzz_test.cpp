// The readers of what people and other programs write, on damaged and on wrong input. CMake builds
// this with the address and undefined-behaviour sanitizers, the readers included.

#include <gtest/gtest.h>

#include "core/base/text.h"
#include "core/cost/embedded.h"
#include "tests/fuzz/annotation_fuzz.cpp"
#include "tests/fuzz/archive_fuzz.cpp"
#include "tests/fuzz/cluster_fuzz.cpp"
#include "tests/fuzz/constraints_fuzz.cpp"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/plan_fuzz.cpp"

/// Allocations are many and small, and their stacks cost more than the readers.
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=3:quarantine_size_mb=16";
}

namespace nnscaler {
namespace {

/// Inputs of a data suite (tests/golden.h).
std::vector<std::string> inputs_of(const std::string& suite) {
  std::vector<std::string> inputs(1);
  bool output = false;
  for (const std::string& line :
       split(read_file(std::string(NNSCALER_TESTS_DIR) + "/" + suite), '\n')) {
    if (line == "====") {
      inputs.emplace_back();
      output = false;
    } else if (line == "----") {
      output = true;
    } else if (!output) {
      inputs.back() += line + "\n";
    }
  }
  return inputs;
}

std::string archive_file(const std::string& name) {
  return std::string(NNSCALER_TESTS_DIR) + "/graph/data/" + name + ".pt2";
}

/// The model's JSON of an archive and, after a zero byte, the extra file's.
std::string archive_texts(const std::string& name) {
  const Zip zip(archive_file(name));
  std::string text(zip.read("models/model.json", 1 << 20).text());
  if (zip.has("extra/nnscaler.json")) {
    text += '\0';
    text += zip.read("extra/nnscaler.json", 1 << 20).text();
  }
  return text;
}

TEST(ArchiveFuzz, Bytes) {
  run_mutations({read_file(archive_file("mlp")), read_file(archive_file("deflated")),
                 read_file(archive_file("extra"))},
                fuzz_archive, mutate_bytes, 1.0);
}

TEST(ArchiveFuzz, Contents) {
  std::vector<std::string> seeds;
  for (const char* name : {"mlp", "features", "extra", "gradients", "layers", "literals",
                           "deflated", "condition", "data_dependent"}) {
    seeds.push_back(archive_texts(name));
  }
  run_mutations(seeds, fuzz_archive, mutate_json);
}

TEST(AnnotationFuzz, Bytes) {
  run_mutations({"m k+, n k+ -> m n", "b m^ k+, n k+ -> b m^ n", "*, ? -> *", "(h d^) 8, /-> 8 h d",
                 "a b: /a, b+ a: / -> a b", "-> a^", "2 (a 3 b) c+ -> (a 3 b), ?"},
                fuzz_annotation);
}

TEST(ConstraintsFuzz, Bytes) {
  const std::vector<std::string> seeds = inputs_of("plan/constraints/read.txt");
  ASSERT_GE(seeds.size(), 20u);
  run_mutations(seeds, fuzz_constraints);
}

TEST(ClusterFuzz, Bytes) {
  std::vector<std::string> seeds = inputs_of("cost/cluster/files.txt");
  for (const auto& [name, text] : embedded_devices()) seeds.push_back(text);
  ASSERT_GE(seeds.size(), 10u);
  run_mutations(seeds, fuzz_cluster);
}

TEST(PlanFuzz, Bytes) { run_mutations(plan_seeds(), fuzz_plan, mutate_bytes, 1.0); }

TEST(PlanFuzz, Contents) { run_mutations(plan_seeds(), fuzz_plan, mutate_json); }

}  // namespace
}  // namespace nnscaler
