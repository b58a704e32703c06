#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.h"

namespace nnscaler {

/// Texts to start from, and chance.
struct Mutations {
  const std::vector<std::string>& seeds;
  std::mt19937_64 random;
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); }
  const std::string& seed() { return seeds[below(seeds.size())]; }
};

/// Some bytes of a text change, go, or come from elsewhere.
inline void mutate_bytes(std::string& text, Mutations& m) {
  static constexpr char kInteresting[] = "[]{}:,-&*!|>'\"%@`#?\n\t 0~\\<=\x00\x80\xff";
  for (size_t edit = 1 + m.below(8); edit > 0; --edit) {
    const size_t at = m.below(text.size() + 1);
    const size_t length = m.below(16);
    switch (m.below(6)) {
      case 0:
        text.insert(at, 1, kInteresting[m.below(sizeof(kInteresting) - 1)]);
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(m.below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(m.below(text.size() + 1), length * 4));
        break;
      case 4:
        text.insert(at, std::string(m.below(200), kInteresting[m.below(8)]));
        break;
      case 5: {
        const std::string& other = m.seed();
        text.insert(at, other.substr(m.below(other.size() + 1), length * 8));
        break;
      }
    }
  }
}

/// Range of a JSON text: a string, a number, a word, or all between brackets.
struct Span {
  size_t begin, end;
};

inline std::vector<Span> spans_of(const std::string& text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
  };
  std::vector<Span> spans;
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t begin = i++;
    if (c == '"') {
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      i = std::min(i + 1, text.size());
      spans.push_back({begin, i});
    } else if (c == '{' || c == '[') {
      open.push_back(begin);
    } else if ((c == '}' || c == ']') && !open.empty()) {
      spans.push_back({open.back(), i});
      open.pop_back();
    } else if (is_word(c)) {
      while (i < text.size() && is_word(text[i])) ++i;
      spans.push_back({begin, i});
    }
  }
  return spans;
}

/// Spans of a JSON text go, change, are doubled, or take the place of others. Bytes at random leave
/// hardly any JSON whole; this does, so it reaches what is behind the parser.
inline void mutate_json(std::string& text, Mutations& m) {
  static constexpr std::array<std::string_view, 13> kValues = {"0",
                                                               "1",
                                                               "-1",
                                                               "7",
                                                               "9223372036854775807",
                                                               "-9223372036854775808",
                                                               "1e300",
                                                               "0.5",
                                                               "null",
                                                               "true",
                                                               "\"\"",
                                                               "[]",
                                                               "{}"};
  for (size_t edit = 1 + m.below(3); edit > 0; --edit) {
    const std::vector<Span> spans = spans_of(text);
    if (spans.empty()) return;
    const Span target = spans[m.below(spans.size())];
    const Span source = spans[m.below(spans.size())];
    const std::string other =
        text.substr(source.begin, std::min<size_t>(source.end - source.begin, 4000));
    switch (m.below(6)) {
      case 0:
        text.replace(target.begin, target.end - target.begin, kValues[m.below(kValues.size())]);
        break;
      case 1:
        text.replace(target.begin, target.end - target.begin, other);
        break;
      case 2: {
        const size_t comma = text.find(',', target.end);
        if (comma != std::string::npos && comma < target.end + 4) {
          text.erase(target.begin, comma + 1 - target.begin);
        }
        break;
      }
      case 3:
        text.insert(target.begin, text.substr(target.begin, target.end - target.begin) + ",");
        break;
      default: {  // Another character: S1 becomes S7, s0 becomes s9.
        char& c = text[target.begin + m.below(target.end - target.begin)];
        if (std::isalnum(static_cast<unsigned char>(c))) c = "0179SPRs"[m.below(8)];
        break;
      }
    }
  }
}

/// Writes the seeds of a test of suite PlanFuzz to `folder`/plan_fuzz/, for libFuzzer.
inline void write_corpus(const std::filesystem::path& folder,
                         const std::vector<std::string>& seeds) {
  const auto& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::string reader = test.test_suite_name();
  reader = reader.substr(0, reader.find("Fuzz")) + "_fuzz";
  reader[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(reader[0])));
  std::filesystem::create_directories(folder / reader);
  for (size_t i = 0; i < seeds.size(); ++i) {
    write_file((folder / reader / (test.name() + std::to_string(i))).string(), seeds[i]);
  }
}

/// Feeds `harness` the seeds, then mutations of them for about `seconds` (at least 500). A failure
/// is a crash, a sanitizer's report or an exception that the harness lets through. Every run draws
/// the same; NNSCALER_FUZZ_SEED draws otherwise. With NNSCALER_FUZZ_CORPUS, writes the seeds there
/// instead.
inline void run_mutations(const std::vector<std::string>& seeds,
                          int (*harness)(const uint8_t*, size_t),
                          void (*mutate)(std::string&, Mutations&) = mutate_bytes,
                          double seconds = 4.0) {
  if (const char* folder = std::getenv("NNSCALER_FUZZ_CORPUS")) {
    return write_corpus(folder, seeds);
  }
  const char* given = std::getenv("NNSCALER_FUZZ_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Mutations mutations{seeds, std::mt19937_64(seed)};
  const auto feed = [harness](const std::string& text) {
    harness(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& text : seeds) feed(text);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int i = 0;
  for (; i < 500 || elapsed() < seconds; ++i) {
    if (elapsed() > 10 * seconds) break;  // slow machines
    std::string text = mutations.seed();
    mutate(text, mutations);
    EXPECT_NO_THROW(feed(text));
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << ", mutation " << i << ":\n" << text;
      return;
    }
  }
  std::printf("%d mutations\n", i);
}

}  // namespace nnscaler
