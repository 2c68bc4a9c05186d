#include "tools/ubep/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/input_error.hpp"

namespace ubep::tools {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxListedNames = 50;
constexpr int kMaxDepth = 8;  // of lists and objects in each other: copying a value recurses
constexpr const char* kMetadataName = "__metadata__";

struct DTypeRow {
  FileDType dtype;
  std::string_view name;
  std::size_t bytes;
};
// In the order of the enum, so that a FileDType is an index.
constexpr std::array<DTypeRow, 16> kDTypes = {{{FileDType::boolean, "BOOL", 1},
                                               {FileDType::u8, "U8", 1},
                                               {FileDType::i8, "I8", 1},
                                               {FileDType::f8_e4m3, "F8_E4M3", 1},
                                               {FileDType::f8_e5m2, "F8_E5M2", 1},
                                               {FileDType::f8_e8m0, "F8_E8M0", 1},
                                               {FileDType::u16, "U16", 2},
                                               {FileDType::i16, "I16", 2},
                                               {FileDType::f16, "F16", 2},
                                               {FileDType::bf16, "BF16", 2},
                                               {FileDType::u32, "U32", 4},
                                               {FileDType::i32, "I32", 4},
                                               {FileDType::f32, "F32", 4},
                                               {FileDType::u64, "U64", 8},
                                               {FileDType::i64, "I64", 8},
                                               {FileDType::f64, "F64", 8}}};
static_assert([] {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype != static_cast<FileDType>(i)) return false;
  }
  return true;
}());

const DTypeRow& row_of(FileDType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

// A name as it can stand in a one-line message: quoted, control characters escaped.
std::string quoted(const std::string& name) {
  return json(name).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Bytes of a tensor; nothing when they do not fit 64 bits.
std::optional<std::uint64_t> tensor_bytes(FileDType dtype,
                                          const std::vector<std::uint64_t>& shape) {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

bool is_list_of_counts(const json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(),
                                         [](const json& v) { return v.is_number_unsigned(); });
}

// One entry of the header. Throws InputError with a message that follows the tensor's name.
TensorInfo parse_tensor(const json& entry) {
  if (!entry.is_object()) throw InputError("is not an object");
  const json dtype_json = entry.value("dtype", json());
  const json shape_json = entry.value("shape", json());
  const json offsets_json = entry.value("data_offsets", json());
  if (!dtype_json.is_string()) throw InputError("has no dtype");
  if (!is_list_of_counts(shape_json)) throw InputError("has no shape of non-negative integers");
  if (!is_list_of_counts(offsets_json) || offsets_json.size() != 2) {
    throw InputError("has no data_offsets of two non-negative integers");
  }
  const auto& name = dtype_json.get_ref<const std::string&>();
  const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                 [&](const DTypeRow& candidate) { return candidate.name == name; });
  if (row == kDTypes.end()) throw InputError("has the unknown dtype " + quoted(name));

  TensorInfo info{row->dtype, shape_json.get<std::vector<std::uint64_t>>(), 0, 0};
  const auto begin = offsets_json[0].get<std::uint64_t>();
  const auto end = offsets_json[1].get<std::uint64_t>();
  if (begin > end) throw InputError(fmt::format("has reversed data_offsets [{}, {}]", begin, end));
  info.offset_bytes = begin;
  info.size_bytes = end - begin;
  const std::optional<std::uint64_t> expected = tensor_bytes(info.dtype, info.shape);
  if (expected != info.size_bytes) {
    throw InputError(fmt::format("has {} bytes but {} {} needs {}", info.size_bytes, row->name,
                                 info.shape,
                                 expected ? fmt::to_string(*expected) : "more than 2^64"));
  }
  return info;
}

std::map<std::string, std::string> parse_metadata(const json& entry) {
  const bool good = entry.is_object() && std::all_of(entry.begin(), entry.end(),
                                                     [](const json& v) { return v.is_string(); });
  if (!good) throw InputError("is not an object of strings");
  return entry.get<std::map<std::string, std::string>>();
}

// Nothing may lie twice, beyond the data, or unnamed between tensors: checked in file order.
void check_coverage(const std::map<std::string, TensorInfo>& tensors, std::uint64_t data_bytes) {
  std::vector<std::pair<std::string, const TensorInfo*>> in_order;
  in_order.reserve(tensors.size());
  for (const auto& [name, info] : tensors) in_order.emplace_back(quoted(name), &info);
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset_bytes, a.second->size_bytes) <
           std::pair(b.second->offset_bytes, b.second->size_bytes);
  });
  std::uint64_t end = 0;
  for (const auto& [name, info] : in_order) {
    const std::uint64_t tensor_end = info->offset_bytes + info->size_bytes;
    if (tensor_end > data_bytes) {
      throw InputError(fmt::format("tensor {} ends at byte {} of the data, which has only {}", name,
                                   tensor_end, data_bytes));
    }
    if (info->offset_bytes < end) {
      throw InputError(
          fmt::format("tensor {} overlaps the one before it (begins at byte {}, not "
                      "{})",
                      name, info->offset_bytes, end));
    }
    if (info->offset_bytes > end) {
      throw InputError(
          fmt::format("{} unnamed bytes lie before tensor {}", info->offset_bytes - end, name));
    }
    end = tensor_end;
  }
  if (end != data_bytes) {
    throw InputError(fmt::format("{} unnamed bytes lie behind the last tensor", data_bytes - end));
  }
}

}  // namespace

std::string_view dtype_name(FileDType dtype) { return row_of(dtype).name; }
std::size_t dtype_bytes(FileDType dtype) { return row_of(dtype).bytes; }

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a named pipe must be refused below, not waited for here.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail(std::strerror(errno));
  try {
    struct ::stat status = {};
    if (::fstat(fd_, &status) != 0) fail(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail("not a regular file");
    read_header(static_cast<std::uint64_t>(status.st_size));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::close(fd_); }

void SafetensorsFile::fail(const std::string& message) const {
  throw InputError(path_ + ": " + message);
}

void SafetensorsFile::read_at(std::uint64_t file_offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ::ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<::off_t>(file_offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("became shorter while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    file_offset += static_cast<std::uint64_t>(got);
  }
}

void SafetensorsFile::read_header(std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    fail(fmt::format("not a safetensors file: {} bytes are too few", file_bytes));
  }
  std::uint64_t header_bytes = 0;
  read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    fail(
        fmt::format("not a safetensors file: the header would have {} bytes (the file has {}, a "
                    "header at most {})",
                    header_bytes, file_bytes, kMaxHeaderBytes));
  }
  data_offset_bytes_ = kLengthBytes + header_bytes;
  std::string text(header_bytes, '\0');
  read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));

  json header;
  try {
    header = json::parse(text, [this](int depth, json::parse_event_t, const json&) {
      if (depth > kMaxDepth) fail("malformed header: nested too deeply");
      return true;
    });
  } catch (const json::exception& error) {
    fail(fmt::format("malformed header: {}", error.what()));
  }
  if (!header.is_object()) fail("malformed header: not a JSON object");
  for (const auto& [name, entry] : header.items()) {
    const bool is_metadata = name == kMetadataName;
    try {
      if (is_metadata) {
        metadata_ = parse_metadata(entry);
      } else {
        tensors_.emplace(name, parse_tensor(entry));
      }
    } catch (const InputError& error) {
      fail(fmt::format("{}{} {}", is_metadata ? "" : "tensor ", quoted(name), error.what()));
    }
  }
  try {
    check_coverage(tensors_, file_bytes - data_offset_bytes_);
  } catch (const InputError& error) {
    fail(error.what());
  }
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::string names;
  std::size_t num_listed = 0;
  for (const auto& entry : tensors_) {
    if (num_listed == kMaxListedNames) break;
    names += (num_listed++ == 0 ? "" : ", ") + quoted(entry.first);
  }
  if (tensors_.size() > num_listed) {
    names += fmt::format(" and {} more", tensors_.size() - num_listed);
  }
  fail(fmt::format("no tensor {}; there are: {}", quoted(name), names.empty() ? "none" : names));
}

std::vector<std::byte> SafetensorsFile::read(const std::string& name) const {
  std::vector<std::byte> bytes(info(name).size_bytes);
  read(name, 0, bytes);
  return bytes;
}

void SafetensorsFile::read(const std::string& name, std::uint64_t skip_bytes,
                           std::span<std::byte> out) const {
  const TensorInfo& tensor = info(name);
  if (skip_bytes > tensor.size_bytes || out.size() > tensor.size_bytes - skip_bytes) {
    fail(fmt::format("tensor {} has {} bytes, not the {} from byte {} on that are wanted",
                     quoted(name), tensor.size_bytes, out.size(), skip_bytes));
  }
  read_at(data_offset_bytes_ + tensor.offset_bytes + skip_bytes, out);
}

void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> in_order;
  in_order.reserve(tensors.size());
  for (const TensorView& tensor : tensors) in_order.push_back(&tensor);
  std::stable_sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });

  json header = json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  std::vector<std::span<const std::byte>> parts(2);  // the length and the header come last
  std::uint64_t end = 0;
  for (const TensorView* tensor : in_order) {
    if (tensor->name == kMetadataName || header.contains(tensor->name)) {
      throw InputError(fmt::format("{}: tensor name {} is taken", path, quoted(tensor->name)));
    }
    const std::size_t size_bytes = tensor->bytes.size();
    if (tensor_bytes(tensor->dtype, tensor->shape) != size_bytes) {
      throw InputError(fmt::format("{}: tensor {} has {} bytes, which do not fit {} {}", path,
                                   quoted(tensor->name), size_bytes, dtype_name(tensor->dtype),
                                   tensor->shape));
    }
    header[tensor->name] = {{"dtype", dtype_name(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {end, end + size_bytes}}};
    parts.push_back(tensor->bytes);
    end += size_bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: a name is not valid UTF-8: {}", path, error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  const std::uint64_t header_bytes = text.size();
  parts[0] = std::as_bytes(std::span(&header_bytes, 1));
  parts[1] = std::as_bytes(std::span(text));
  write_file(path, parts);
}

}  // namespace ubep::tools
