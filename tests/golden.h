#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

/// Runs a data suite, `path` below tests/: cases separated by a line `====`, each with comment
/// lines (`# `), the input, a line `----`, and the output that `run` must give for it; for an
/// Error, its message. With NNSCALER_GOLDEN set, rewrites the outputs instead (`make golden`).
inline void run_golden(const std::string& path,
                       const std::function<std::string(const std::string&)>& run) {
  const std::string file = std::string(NNSCALER_TESTS_DIR) + "/" + path;
  const bool rewrite = std::getenv("NNSCALER_GOLDEN") != nullptr;
  std::string rewritten;
  std::string comment, input, expected;
  enum { kComment, kInput, kOutput } part = kComment;
  int line_number = 0, first_line = 1;

  const auto finish = [&] {
    std::string output;
    try {
      output = run(input);
    } catch (const Error& error) {
      output = error.what();
    }
    if (!output.empty() && output.back() != '\n') output += '\n';
    if (!rewrite) {
      EXPECT_EQ(part, kOutput) << file << ":" << first_line << ": case without a line ----";
      EXPECT_EQ(output, expected) << file << ":" << first_line << "\n" << comment;
    }
    rewritten += comment + input + "----\n" + output;
    comment.clear(), input.clear(), expected.clear();
    part = kComment;
    first_line = line_number + 1;
  };

  std::vector<std::string> lines = split(read_file(file), '\n');
  if (lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    ++line_number;
    if (line == "====") {
      finish();
      rewritten += "====\n";
    } else if (part != kOutput && line == "----") {
      part = kOutput;
    } else if (part == kComment && line.starts_with("#")) {
      comment += line + "\n";
    } else {
      if (part == kComment) part = kInput;
      (part == kInput ? input : expected) += line + "\n";
    }
  }
  finish();
  if (rewrite) write_file(file, rewritten);
}

}  // namespace nnscaler
