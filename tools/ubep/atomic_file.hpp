// Writes a file as a whole or not at all.
//
// Purpose: results that a reader, or a later run, never meets half written: the bytes go to a
// temporary file in the same folder, which is renamed over `path` once all are there.
// Not for: appending, or devices and pipes (refused, since the rename would replace them).
//
//   write_file("result.json", text);
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ubep::tools {

// Writes the parts one behind the other. A symbolic link at `path` is followed. Throws InputError
// when the file cannot be written; what stood at `path` before is then untouched.
void write_file(const std::string& path, std::span<const std::span<const std::byte>> parts);
void write_file(const std::string& path, std::string_view text);

// For --json, early: nobody wants to lose a long run to a mistyped path. Throws InputError.
void check_writable(const std::string& path, const char* option = "--json");

}  // namespace ubep::tools
