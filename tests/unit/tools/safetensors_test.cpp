#include "tools/ubep/safetensors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "tests/unit/tools/test_support.hpp"
#include "tools/ubep/random.hpp"

namespace ubep::tools {
namespace {

// A file of that header (its length in front) and `data_bytes` zero bytes.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t header_bytes = header.size();
  std::string bytes(sizeof header_bytes, '\0');
  std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string open_error(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = folder.put("f", bytes);
  const std::string error = input_error_of([&] { SafetensorsFile{path}; });
  EXPECT_PRED2(contains, error, path);
  return error;
}

#define EXPECT_OPEN_ERROR(bytes, part) EXPECT_PRED2(contains, open_error(bytes), part)

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(SafetensorsTest, ReadsBackWhatItWrote) {
  const TempFolder folder;
  const std::vector<std::uint8_t> bytes = {1, 2, 3};
  const std::vector<float> floats = {1.5F, -2.5F, 0, 4};
  const std::vector<std::int64_t> scalar = {-7};
  const std::string path = folder.file("t.safetensors");
  write_safetensors(path,
                    {{"bytes", FileDType::u8, {3}, bytes_of(bytes)},
                     {"floats", FileDType::f32, {2, 2}, bytes_of(floats)},
                     {"scalar", FileDType::i64, {}, bytes_of(scalar)},
                     {"empty", FileDType::bf16, {0, 8}, {}}},
                    {{"made_by", "a test"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.metadata().at("made_by"), "a test");
  EXPECT_EQ(file.info("floats").dtype, FileDType::f32);
  EXPECT_EQ(file.info("floats").shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_TRUE(file.info("scalar").shape.empty());
  const std::vector<std::byte> read = file.read("floats");
  EXPECT_TRUE(std::ranges::equal(read, bytes_of(floats)));
  EXPECT_TRUE(std::ranges::equal(file.read("bytes"), bytes_of(bytes)));
  EXPECT_TRUE(std::ranges::equal(file.read("scalar"), bytes_of(scalar)));
  EXPECT_TRUE(file.read("empty").empty());
  EXPECT_EQ(folder.num_files(), 1U);
}

TEST(SafetensorsTest, AlignsEveryTensorInTheFile) {
  const TempFolder folder;
  const std::string path = folder.file("t");
  const std::vector<std::uint8_t> one = {1};
  const std::vector<double> two = {2};
  write_safetensors(
      path, {{"a", FileDType::u8, {1}, bytes_of(one)}, {"b", FileDType::f64, {1}, bytes_of(two)}});
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, folder.get("t").data(), sizeof header_bytes);
  EXPECT_EQ(header_bytes % 8, 0U);
  EXPECT_EQ(SafetensorsFile(path).info("b").offset_bytes % 8, 0U);
}

TEST(SafetensorsTest, ReadsAPartOfATensor) {
  const TempFolder folder;
  const std::string path = folder.file("t");
  const std::vector<std::int32_t> values = {10, 11, 12, 13};
  write_safetensors(path, {{"x", FileDType::i32, {4}, bytes_of(values)}});
  const SafetensorsFile file(path);
  std::vector<std::int32_t> part(2);
  file.read("x", 4, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<std::int32_t>{11, 12}));
  EXPECT_INPUT_ERROR(file.read("x", 12, std::as_writable_bytes(std::span(part))), "16 bytes");
  EXPECT_INPUT_ERROR(file.read("x", ~0ULL, std::as_writable_bytes(std::span(part))), "16 bytes");
}

TEST(SafetensorsTest, MissingTensorListsWhatIsThere) {
  const TempFolder folder;
  const std::string path =
      folder.put("f", file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                              R"("a\nb":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                              2));
  const SafetensorsFile file(path);
  EXPECT_INPUT_ERROR(file.info("x"), R"(no tensor "x"; there are: "a\nb", "b")");
  const SafetensorsFile empty(folder.put("e", file_of("{}", 0)));
  EXPECT_INPUT_ERROR(empty.info("\xff"), "there are: none");
}

TEST(SafetensorsTest, RefusesFilesThatAreNone) {
  const TempFolder folder;
  EXPECT_INPUT_ERROR(SafetensorsFile(folder.file("absent")), "No such file");
  EXPECT_INPUT_ERROR(SafetensorsFile(folder.file("")), "not a regular file");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_INPUT_ERROR(SafetensorsFile(folder.file("pipe")), "not a regular file");
  EXPECT_OPEN_ERROR("", "0 bytes are too few");
  EXPECT_OPEN_ERROR("1234567", "7 bytes are too few");
  EXPECT_OPEN_ERROR(std::string(8, '\xff'), "header would have 18446744073709551615 bytes");
  EXPECT_OPEN_ERROR(file_of("{}", 0).substr(0, 9), "header would have 2 bytes (the file has 9");
}

TEST(SafetensorsTest, RefusesAHeaderOver100MB) {
  const TempFolder folder;
  const std::uint64_t header_bytes = 100'000'001;
  std::string length(8, '\0');
  std::memcpy(length.data(), &header_bytes, 8);
  const std::string path = folder.put("f", length);
  std::filesystem::resize_file(path, 200'000'000);  // sparse
  EXPECT_INPUT_ERROR(SafetensorsFile{path}, "header would have 100000001 bytes");
}

TEST(SafetensorsTest, RefusesMalformedHeaders) {
  EXPECT_OPEN_ERROR(file_of("", 0), "malformed header");
  EXPECT_OPEN_ERROR(file_of("{", 0), "malformed header");
  EXPECT_OPEN_ERROR(file_of("{\n\n\"a\nb\": 1}", 0), "malformed header");
  EXPECT_OPEN_ERROR(file_of("{\"\xff\": 1}", 0), "malformed header");
  EXPECT_OPEN_ERROR(file_of("[]", 0), "not a JSON object");
  EXPECT_OPEN_ERROR(file_of(R"({"x":1})", 0), R"(tensor "x" is not an object)");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{}})", 0), "has no dtype");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{"dtype":"U8"}})", 0), "has no shape");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
                    "has no shape");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1),
                    "has no shape");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
                    "has no data_offsets");
  EXPECT_OPEN_ERROR(file_of(R"({"x":{"dtype":"I\n9","shape":[1],"data_offsets":[0,1]}})", 1),
                    R"(has the unknown dtype "I\n9")");
  EXPECT_OPEN_ERROR(file_of(R"({"__metadata__":{"a":1}})", 0), "not an object of strings");
}

// The header of tensors t0, t1, ... of dtype U8, each of the shape and offsets given.
std::string header_of(const std::vector<std::string>& shapes_and_offsets) {
  std::string header = "{";
  for (std::size_t i = 0; i < shapes_and_offsets.size(); ++i) {
    header +=
        fmt::format(R"({}"t{}":{{"dtype":"U8",{}}})", i == 0 ? "" : ",", i, shapes_and_offsets[i]);
  }
  return header + "}";
}

TEST(SafetensorsTest, RefusesWrongOffsets) {
  const auto one = [](const std::string& entry) { return header_of({entry}); };
  EXPECT_OPEN_ERROR(file_of(one(R"("shape":[1],"data_offsets":[2,1])"), 2), "reversed");
  EXPECT_OPEN_ERROR(file_of(one(R"("shape":[1],"data_offsets":[0,2])"), 2),
                    "has 2 bytes but U8 [1] needs 1");
  EXPECT_OPEN_ERROR(file_of(one(R"("shape":[2],"data_offsets":[0,2])"), 1),
                    "ends at byte 2 of the data, which has only 1");
  EXPECT_OPEN_ERROR(file_of(one(R"("shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
                    "more than 2^64");
  EXPECT_OPEN_ERROR(file_of(one(R"("shape":[1],"data_offsets":[0,1])"), 3),
                    "2 unnamed bytes lie behind");
  const auto two = [](const std::string& a, const std::string& b) { return header_of({a, b}); };
  EXPECT_OPEN_ERROR(
      file_of(two(R"("shape":[2],"data_offsets":[0,2])", R"("shape":[2],"data_offsets":[1,3])"), 3),
      R"(tensor "t1" overlaps)");
  EXPECT_OPEN_ERROR(
      file_of(two(R"("shape":[2],"data_offsets":[0,2])", R"("shape":[1],"data_offsets":[3,4])"), 4),
      R"(1 unnamed bytes lie before tensor "t1")");
}

TEST(SafetensorsTest, RefusesToWriteWhatItWouldNotRead) {
  const TempFolder folder;
  const std::string path = folder.put("t", "old");
  const std::vector<float> x = {1};
  EXPECT_INPUT_ERROR(write_safetensors(path, {{"x", FileDType::f32, {2}, bytes_of(x)}}),
                     "do not fit");
  EXPECT_INPUT_ERROR(write_safetensors(path, {{"x", FileDType::f32, {1}, bytes_of(x)},
                                              {"x", FileDType::f32, {1}, bytes_of(x)}}),
                     "is taken");
  EXPECT_INPUT_ERROR(write_safetensors(path, {{"__metadata__", FileDType::f32, {1}, bytes_of(x)}}),
                     "is taken");
  EXPECT_INPUT_ERROR(write_safetensors(path, {{"\xff", FileDType::f32, {1}, bytes_of(x)}}),
                     "UTF-8");
  EXPECT_EQ(folder.get("t"), "old");
  EXPECT_EQ(folder.num_files(), 1U);
}

// Whatever bytes are changed, opening and reading either works or throws InputError.
TEST(SafetensorsTest, SurvivesMutatedFiles) {
  const TempFolder folder;
  const std::string header =
      R"({"__metadata__":{"k":"v"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("y":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}})";
  const std::string good = file_of(header, 32);
  const std::string alphabet = "{}[]\",:0123456789-.eEFIU\\ntx\xff\x01 ";
  Random random(1);
  int num_refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    const std::uint32_t num_changes = 1 + random.below(4);
    for (std::uint32_t change = 0; change < num_changes; ++change) {
      const std::size_t at = random.below(static_cast<std::uint32_t>(bytes.size()));
      const char letter = alphabet[random.below(static_cast<std::uint32_t>(alphabet.size()))];
      switch (random.below(4)) {
        case 0:
          bytes[at] = letter;
          break;
        case 1:
          bytes.insert(at, 1, letter);
          break;
        case 2:
          bytes.erase(at, 1 + random.below(8));
          break;
        default:
          bytes[random.below(8)] = static_cast<char>(random.below(256));
          break;
      }
      if (bytes.empty()) break;
    }
    const std::string path = folder.put("f", bytes);
    try {
      const SafetensorsFile file(path);
      for (const auto& entry : file.tensors()) file.read(entry.first);
    } catch (const InputError&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 1000);
  EXPECT_LT(num_refused, 4000);
}

}  // namespace
}  // namespace ubep::tools
