#include "core/base/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "core/base/error.h"

namespace nnscaler {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Text, JoinsAndSplits) {
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(split("a.b..c", '.'), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", '.'), std::vector<std::string>{""});
  EXPECT_EQ(split(".", '.'), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(strip(" \t a b\r\n"), "a b");
  EXPECT_EQ(strip(" \n"), "");
}

TEST(Text, MeasuresDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("linear", "liner"), 1);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
}

TEST(Text, SuggestsWhatIsNear) {
  const std::vector<std::string> known = {"torch.nn.functional.linear", "torch.matmul",
                                          "torch.Tensor.matmul", "torch.add"};
  // A wrong prefix with the right last component is near.
  EXPECT_EQ(nearest("torch.linear", known), std::vector<std::string>{"torch.nn.functional.linear"});
  EXPECT_EQ(nearest("torch.Tensor.matmull", known),
            (std::vector<std::string>{"torch.Tensor.matmul"}));
  EXPECT_EQ(nearest("Torch.Matmul", known, 1), std::vector<std::string>{"torch.matmul"});
  EXPECT_EQ(did_you_mean("torch.ad", known), "; did you mean torch.add?");
  EXPECT_EQ(did_you_mean("numpy.einsum", {"torch.add"}), "");
  EXPECT_EQ(did_you_mean("fc", {"fc1", "fc2", "head"}), "; did you mean fc1 or fc2?");
  EXPECT_EQ(did_you_mean("fc", {"fc1", "fc2", "fc3", "fc4"}), "; did you mean fc1, fc2 or fc3?");
}

TEST(Text, FormatsQuantities) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{80} << 30), "80.0 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(format_ps(12'300'000), "12.3 us");
  EXPECT_EQ(format_ps(4'560'000'000), "4.56 ms");
  EXPECT_EQ(format_ps(1'200'000'000'000), "1.20 s");
}

TEST(Text, ReadsAmountsOfMemory) {
  EXPECT_EQ(parse_bytes("70GiB", "x"), int64_t{70} << 30);
  EXPECT_EQ(parse_bytes(" 80 GB ", "x"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("0.5KiB", "x"), 512);
  EXPECT_EQ(parse_bytes("512B", "x"), 512);
  const auto refused = [](const std::string& text) {
    return message_of([&] { parse_bytes(text, "--memory"); }) ==
           "--memory: \"" + text +
               "\" is not an amount of memory; write a positive number with its unit, such as "
               "70GiB or 512MiB";
  };
  for (const char* text : {"70", "", "GiB", "-1GiB", "0GiB", "nanGiB", "infB", "1e30GiB", "7gib",
                           "70GiB!", "1 000MiB"}) {
    EXPECT_TRUE(refused(text)) << text;
  }
}

TEST(Text, DigestsContent) {
  EXPECT_EQ(digest("").size(), 16);
  EXPECT_EQ(digest("abc"), digest("abc"));
  // One bit anywhere, zeros at the end, and the order of words tell.
  const std::string text(1000, 'x');
  for (size_t i = 0; i < text.size(); i += 37) {
    std::string other = text;
    other[i] ^= 1;
    EXPECT_NE(digest(text), digest(other)) << i;
  }
  EXPECT_NE(digest("abc"), digest(std::string("abc\0", 4)));
  EXPECT_NE(digest("aaaaaaaabbbbbbbb"), digest("bbbbbbbbaaaaaaaa"));
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("nnscaler_text_test_" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(Files, WriteAndRead) {
  const std::string text("a\0b\n", 4);
  write_file(path("x"), text);
  EXPECT_EQ(read_file(path("x")), text);
  write_file(path("x"), "new");
  EXPECT_EQ(read_file(path("x")), "new");
  std::filesystem::create_symlink(path("x"), path("link"));
  write_file(path("link"), "through the link");
  EXPECT_EQ(read_file(path("x")), "through the link");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  std::filesystem::remove(path("link"));
  // No temporary file stays.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Files, NameWhatIsWrong) {
  EXPECT_EQ(message_of([&] { read_file(path("none")); }),
            path("none") + ": cannot be read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(folder_.string()); }),
            folder_.string() + ": is a directory, not a file");
  EXPECT_EQ(message_of([&] { write_file(path("none/x"), "text"); }),
            path("none/x") + ": cannot be written: there is no directory " + path("none"));
  std::filesystem::create_directory(path("taken"));
  EXPECT_EQ(message_of([&] { write_file(path("taken"), "text"); }),
            path("taken") + ": cannot be written: it is a directory");
  EXPECT_EQ(message_of([&] { write_file("/dev/full", "text"); }),
            "/dev/full: cannot be written: No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST(Errors, ChecksAreInternal) {
  EXPECT_NO_THROW(check(true, "fine"));
  try {
    check(false, "ids are dense");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "internal error: ids are dense");
  }
}

}  // namespace
}  // namespace nnscaler
