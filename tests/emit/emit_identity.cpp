// emit_identity ARCHIVE DIRECTORY: writes the rank program of a plan that splits nothing, and
// prints what the emission took. The tests run it against the original model.

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>

#include "core/emit/emit.h"
#include "core/graph/archive.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: emit_identity ARCHIVE DIRECTORY\n");
    return 2;
  }
  try {
    nnscaler::Program program;
    program.graph = nnscaler::read_archive(argv[1]);
    program.mesh.axes = {{"dp", 1}};
    program.calls.resize(program.graph.operators.size());
    program.plan_digest = "0";
    const auto start = std::chrono::steady_clock::now();
    const auto files = nnscaler::emit(program);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    for (const auto& [name, text] : files) {
      std::ofstream(std::string(argv[2]) + "/" + name, std::ios::binary) << text;
    }
    std::printf("%zu operators, %.1f ms\n", program.graph.operators.size(), took.count());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
