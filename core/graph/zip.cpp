#include "core/graph/zip.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

namespace {

// DEFLATE cannot do better than 1032 to 1; JSON of a graph stays below 100. An entry that claims
// more is either a lie or a bomb.
constexpr uint64_t kMaxRatio = 1032;
constexpr uint64_t kMaxRatioOfLarge = 200;
constexpr uint64_t kLarge = uint64_t{16} << 20;

zip_t* handle(void* archive) { return static_cast<zip_t*>(archive); }

std::string take_message(zip_error_t& error) {
  std::string message = zip_error_strerror(&error);
  zip_error_fini(&error);
  return message;
}

}  // namespace

Buffer::Buffer(size_t size) : bytes_(new char[size + kPadding]), size_(size) {
  std::memset(bytes_.get() + size, 0, kPadding);
}

Buffer::Buffer(std::string_view text) : Buffer(text.size()) {
  std::memcpy(bytes_.get(), text.data(), text.size());
}

struct Zip::OpenFile {
  std::unique_ptr<zip_file_t, decltype(&zip_fclose)> file;
  zip_stat_t stat;
};

Zip::Zip(const std::string& path) : name_(path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw InputError(path + ": is a directory, not a file");
  }
  int code = 0;
  errno = 0;
  archive_ = zip_open(path.c_str(), ZIP_RDONLY, &code);
  const int system_error = errno;
  if (archive_ == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const bool not_zip = code == ZIP_ER_NOZIP || code == ZIP_ER_INCONS;
    const std::string reason = take_message(error);
    if (not_zip) {
      throw InputError(
          fmt::format("{}: is not an archive of torch.export: {}; write it with nnscaler.export",
                      path, reason));
    }
    throw InputError(fmt::format("{}: cannot be read: {}", path,
                                 system_error != 0 ? std::strerror(system_error) : reason));
  }
  list_entries();
}

Zip::Zip(std::string_view bytes, std::string name) : name_(std::move(name)) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  if (source != nullptr) archive_ = zip_open_from_source(source, ZIP_RDONLY, &error);
  if (archive_ == nullptr) {
    if (source != nullptr) zip_source_free(source);
    throw InputError(
        fmt::format("{}: is not an archive of torch.export: {}; write it with nnscaler.export",
                    name_, take_message(error)));
  }
  zip_error_fini(&error);
  list_entries();
}

Zip::~Zip() {
  if (archive_ != nullptr) zip_discard(handle(archive_));
}

/// libzip's reason, such as "CRC error".
static std::string damage(zip_file_t* file) {
  return fmt::format("{}; the archive is damaged, write it again", zip_file_strerror(file));
}

void Zip::fail(std::string_view entry, std::string_view what) const {
  throw InputError(fmt::format("{}: {}: {}", name_, entry, what));
}

void Zip::list_entries() {
  const zip_int64_t count = zip_get_num_entries(handle(archive_), 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* raw = zip_get_name(handle(archive_), static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW);
    const std::string_view full = raw == nullptr ? "" : raw;
    const size_t slash = full.find('/');
    entries_.emplace(slash == std::string_view::npos ? full : full.substr(slash + 1), i);
  }
}

Zip::OpenFile Zip::open(std::string_view entry) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) {
    throw InputError(
        fmt::format("{}: has no entry {}; write it with nnscaler.export", name_, entry));
  }
  const uint64_t i = found->second;
  OpenFile result{{nullptr, &zip_fclose}, {}};
  if (zip_stat_index(handle(archive_), i, 0, &result.stat) != 0) {
    fail(entry, zip_strerror(handle(archive_)));
  }
  const uint64_t ratio = result.stat.size > kLarge ? kMaxRatioOfLarge : kMaxRatio;
  if (result.stat.size / ratio > result.stat.comp_size) {
    fail(entry, fmt::format("claims {} from {} of compressed data; the archive is damaged",
                            format_bytes(static_cast<int64_t>(result.stat.size)),
                            format_bytes(static_cast<int64_t>(result.stat.comp_size))));
  }
  result.file.reset(zip_fopen_index(handle(archive_), i, 0));
  if (!result.file) fail(entry, zip_strerror(handle(archive_)));
  return result;
}

int64_t Zip::size(std::string_view entry) const {
  return static_cast<int64_t>(open(entry).stat.size);
}

Buffer Zip::read(std::string_view entry, int64_t limit) const {
  OpenFile input = open(entry);
  if (input.stat.size > static_cast<uint64_t>(limit)) {
    fail(entry,
         fmt::format("is {} long and at most {} are read",
                     format_bytes(static_cast<int64_t>(input.stat.size)), format_bytes(limit)));
  }
  Buffer buffer(input.stat.size);
  uint64_t done = 0;
  // One more read than the size needs: libzip checks the sum at the end of the file.
  while (true) {
    const zip_int64_t got =
        zip_fread(input.file.get(), buffer.data() + done, input.stat.size - done);
    if (got < 0) fail(entry, damage(input.file.get()));
    done += static_cast<uint64_t>(got);
    if (done == input.stat.size) break;
    if (got == 0) {
      fail(entry, fmt::format("ends after {} of {} bytes", done, input.stat.size));
    }
  }
  char extra = 0;
  const zip_int64_t rest = zip_fread(input.file.get(), &extra, 1);
  if (rest < 0) fail(entry, damage(input.file.get()));
  if (rest > 0) fail(entry, "is longer than the archive's directory says");
  return buffer;
}

std::string Zip::read_range(std::string_view entry, int64_t offset, int64_t length) const {
  OpenFile input = open(entry);
  const int64_t size = static_cast<int64_t>(input.stat.size);
  if (offset < 0 || length < 0 || offset > size || length > size - offset) {
    fail(entry, fmt::format("has {} bytes, but its tensor needs bytes {} to {}", size, offset,
                            static_cast<double>(offset) + static_cast<double>(length)));
  }
  std::string result(static_cast<size_t>(length), '\0');
  if (input.stat.comp_method == ZIP_CM_STORE) {
    if (zip_fseek(input.file.get(), offset, SEEK_SET) != 0) {
      fail(entry, damage(input.file.get()));
    }
  } else {
    for (int64_t skipped = 0; skipped < offset;) {
      char scratch[4096];
      const int64_t step = std::min<int64_t>(offset - skipped, sizeof(scratch));
      const zip_int64_t got = zip_fread(input.file.get(), scratch, static_cast<zip_uint64_t>(step));
      if (got <= 0) fail(entry, damage(input.file.get()));
      skipped += got;
    }
  }
  for (int64_t done = 0; done < length;) {
    const zip_int64_t got =
        zip_fread(input.file.get(), result.data() + done, static_cast<zip_uint64_t>(length - done));
    if (got <= 0) fail(entry, damage(input.file.get()));
    done += got;
  }
  return result;
}

}  // namespace nnscaler
