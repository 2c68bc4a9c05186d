// Helpers of the tests of tools/ubep: the text of an expected InputError, and a folder of files
// that vanishes with the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {

// The message of the InputError that `call` must throw; "" (and a failure) when it throws none.
template <class Call>
std::string input_error_of(Call&& call) {
  try {
    call();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "not one line";
    return error.what();
  }
  ADD_FAILURE() << "no InputError was thrown";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define EXPECT_INPUT_ERROR(call, part)                                        \
  do {                                                                        \
    const std::string message = ::ubep::tools::input_error_of([&] { call; }); \
    EXPECT_PRED2(::ubep::tools::contains, message, part);                     \
  } while (false)

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ubep_test_XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(const std::string& name) const { return (path_ / name).string(); }

  // Writes a file and returns its path.
  std::string put(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(file(name));  // overwriting in place would wait for the disk
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }
  std::string get(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t num_files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace ubep::tools
