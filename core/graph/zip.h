#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace nnscaler {

/// Bytes that are not set to zero first, with room for a parser to read past the end.
class Buffer {
 public:
  static constexpr size_t kPadding = 64;
  Buffer() = default;
  explicit Buffer(size_t size);
  explicit Buffer(std::string_view text);
  char* data() { return bytes_.get(); }
  std::string_view text() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0;
};

/// The entries of a `.pt2` file: a zip with one top folder of any name, which is left out of the
/// entries' names here.
///
/// Every failure is an InputError: "model.pt2: models/model.json: …".
class Zip {
 public:
  explicit Zip(const std::string& path);
  /// Reads `bytes`, which must outlive this; `name` stands in messages.
  Zip(std::string_view bytes, std::string name);
  ~Zip();
  Zip(const Zip&) = delete;
  Zip& operator=(const Zip&) = delete;

  const std::string& name() const { return name_; }
  using Entries = std::map<std::string, uint64_t, std::less<>>;
  /// Names of all entries, and their numbers in the file; of two with one name the first.
  const Entries& entries() const { return entries_; }
  bool has(std::string_view entry) const { return entries_.contains(entry); }
  /// Size of an entry once read.
  int64_t size(std::string_view entry) const;
  /// The whole entry, its checksum verified. An error when it is larger than `limit`.
  Buffer read(std::string_view entry, int64_t limit) const;
  /// `length` bytes from `offset` on; past the entry's end is an error.
  std::string read_range(std::string_view entry, int64_t offset, int64_t length) const;
  [[noreturn]] void fail(std::string_view entry, std::string_view what) const;

 private:
  void list_entries();
  struct OpenFile;
  OpenFile open(std::string_view entry) const;

  std::string name_;
  void* archive_ = nullptr;
  Entries entries_;
};

}  // namespace nnscaler
