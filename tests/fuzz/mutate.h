#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace nnscaler {

/// Feeds `harness` the seeds and mutations of them for about `seconds` (at least 500 of them). The
/// drawn seed is printed; NNSCALER_FUZZ_SEED repeats it. A failure is a crash, a sanitizer's report
/// or an exception that the harness lets through.
inline void run_mutations(const std::vector<std::string>& seeds,
                          int (*harness)(const uint8_t*, size_t), double seconds = 1.0) {
  const char* given = std::getenv("NNSCALER_FUZZ_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto below = [&random](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  const auto feed = [harness](const std::string& text) {
    harness(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& text : seeds) feed(text);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  static constexpr char kInteresting[] = "[]{}:,-&*!|>'\"%@`#?\n\t 0~\\<=\x00\x80\xff";
  for (int i = 0; i < 500 || elapsed() < seconds; ++i) {
    if (elapsed() > 10 * seconds) break;  // slow machines and sanitizers
    std::string text = seeds[below(seeds.size())];
    const size_t num_edits = 1 + below(8);
    for (size_t edit = 0; edit < num_edits; ++edit) {
      const size_t at = below(text.size() + 1);
      const size_t length = below(16);
      switch (below(6)) {
        case 0:
          text.insert(at, 1, kInteresting[below(sizeof(kInteresting) - 1)]);
          break;
        case 1:
          if (at < text.size()) text[at] = static_cast<char>(random() & 0xff);
          break;
        case 2:
          text.erase(at, length);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size() + 1), length * 4));
          break;
        case 4:
          text.insert(at, std::string(below(200), kInteresting[below(8)]));
          break;
        case 5: {
          const std::string& other = seeds[below(seeds.size())];
          text.insert(at, other.substr(below(other.size() + 1), length * 8));
          break;
        }
      }
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", mutation " + std::to_string(i) + ":\n" + text);
    EXPECT_NO_THROW(feed(text));
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace nnscaler
