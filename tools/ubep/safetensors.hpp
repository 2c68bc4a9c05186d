// Reads and writes safetensors files (https://github.com/huggingface/safetensors).
//
// Purpose: tensors in and out of the command `ubep`. Opening reads and validates the header only;
// a tensor's bytes are read when asked for. The format: 8 bytes header length (little endian), a
// JSON header {name: {dtype, shape, data_offsets: [begin, end]}}, then the tensors' bytes with
// neither gaps nor overlaps. A header that breaks any rule is refused as a whole.
// Not for: dtypes smaller than a byte; files that change while they are read.
//
//   SafetensorsFile file("in.safetensors");
//   const TensorInfo& info = file.info("x");            // dtype, shape: [num_tokens, hidden]
//   std::vector<std::byte> x = file.read("x");
//   write_safetensors("out.safetensors", {{"y", FileDType::bf16, {4, 2048}, bytes}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ubep::tools {

enum class FileDType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64
};

// The name in the file, e.g. "BF16", and the size of one element in bytes.
std::string_view dtype_name(FileDType dtype);
std::size_t dtype_bytes(FileDType dtype);

struct TensorInfo {
  FileDType dtype = FileDType::u8;
  std::vector<std::uint64_t> shape;  // [] is a scalar
  std::uint64_t offset_bytes = 0;    // from the end of the header
  std::uint64_t size_bytes = 0;      // product of the shape x dtype_bytes(dtype)
};

// An open file; only its header is in memory. All errors are InputErrors that name the file.
class SafetensorsFile {
 public:
  // Opens the file and validates its whole header.
  explicit SafetensorsFile(std::string path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The tensor of that name; the error for a missing one lists what is there.
  const TensorInfo& info(const std::string& name) const;

  // All bytes of a tensor, or `out.size()` of them from `skip_bytes` on.
  std::vector<std::byte> read(const std::string& name) const;
  void read(const std::string& name, std::uint64_t skip_bytes, std::span<std::byte> out) const;

 private:
  [[noreturn]] void fail(const std::string& message) const;
  void read_at(std::uint64_t file_offset, std::span<std::byte> out) const;
  void read_header(std::uint64_t file_bytes);

  std::string path_;
  int fd_ = -1;
  std::uint64_t data_offset_bytes_ = 0;  // where the header ends
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to write; `bytes` is borrowed and must have the size that shape and dtype ask for.
struct TensorView {
  std::string name;
  FileDType dtype = FileDType::u8;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes a whole file or none (see atomic_file.hpp). Larger dtypes come first in the file, so that
// every tensor is aligned to its element size. Throws InputError on names used twice, on sizes that
// do not fit the shape, and when the file cannot be written.
void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace ubep::tools
