# The core needs {fmt} and Highway. Everything else is found, reported and skipped, never required.

set(ubep_report "")

# ubep_note(<name> <found, or a variable that tells> <version> <used for>): a line of the summary.
macro(ubep_note name found version use)
  if(${found})
    list(APPEND ubep_report "${name} ${version}: ${use}")
  else()
    list(APPEND ubep_report "${name} NOT FOUND: no ${use}")
  endif()
endmacro()

# ubep_find(<package> <used for>): an optional CMake package.
macro(ubep_find package use)
  find_package(${package} CONFIG QUIET)
  ubep_note(${package} ${package}_FOUND "${${package}_VERSION}" "${use}")
endmacro()

find_package(Threads REQUIRED)

find_package(fmt CONFIG REQUIRED)
ubep_note(fmt TRUE "${fmt_VERSION}" core)

include(UbepFindPrivate)
if(NOT TARGET hwy::hwy)
  message(FATAL_ERROR "Highway not found: install libhwy-dev, or run scripts/deps")
endif()
ubep_note(highway TRUE "${hwy_VERSION}" core)

set(UBEP_HAVE_SODIUM OFF)
if(TARGET sodium::sodium)
  set(UBEP_HAVE_SODIUM ON)
endif()
ubep_note(libsodium UBEP_HAVE_SODIUM "${sodium_VERSION}" "job keys")

# Its headers; the library is loaded when ranks of several hosts meet.
set(UBEP_HAVE_UCX OFF)
find_path(UBEP_UCX_INCLUDE_DIR ucp/api/ucp.h)
mark_as_advanced(UBEP_UCX_INCLUDE_DIR)
if(UBEP_UCX_INCLUDE_DIR)
  set(UBEP_HAVE_UCX ON)
  find_package(ucx CONFIG QUIET)
endif()
ubep_note(ucx UBEP_HAVE_UCX "${ucx_VERSION}" "several hosts")

set(UBEP_HAVE_TESTS OFF)
if(UBEP_BUILD_TESTS)
  ubep_find(GTest tests)
  set(UBEP_HAVE_TESTS ${GTest_FOUND})
endif()

set(UBEP_HAVE_TOOLS OFF)
if(UBEP_BUILD_TOOLS)
  ubep_find(CLI11 "ubep command")
  ubep_find(nlohmann_json "ubep command")
  if(CLI11_FOUND AND nlohmann_json_FOUND)
    set(UBEP_HAVE_TOOLS ON)
  endif()
endif()

set(UBEP_HAVE_SIM OFF)
if(UBEP_BUILD_TOOLS OR UBEP_BUILD_TESTS)
  find_package(Boost CONFIG QUIET COMPONENTS context)
  ubep_note(Boost.Context Boost_FOUND "${Boost_VERSION}" "simulator")
  if(NOT UBEP_HAVE_TOOLS)
    find_package(nlohmann_json CONFIG QUIET)
  endif()
  if(Boost_FOUND AND nlohmann_json_FOUND)
    set(UBEP_HAVE_SIM ON)
  endif()
endif()

set(UBEP_HAVE_BENCH OFF)
if(UBEP_BUILD_BENCH)
  ubep_find(benchmark "micro benchmarks")
  set(UBEP_HAVE_BENCH ${benchmark_FOUND})
  find_package(OpenMP QUIET COMPONENTS CXX)
  ubep_note(OpenMP OpenMP_CXX_FOUND "${OpenMP_CXX_VERSION}" "neighbour benchmark")
endif()

if(UBEP_TIDY)
  find_program(UBEP_CLANG_TIDY NAMES clang-tidy-16 clang-tidy)
  ubep_note(clang-tidy UBEP_CLANG_TIDY "${UBEP_CLANG_TIDY}" tidy)
  if(UBEP_CLANG_TIDY)
    set(CMAKE_CXX_CLANG_TIDY ${UBEP_CLANG_TIDY})
  endif()
endif()

function(ubep_summary)
  list(JOIN ubep_report "\n   " lines)
  if(UBEP_SANITIZE)
    set(sanitize ", sanitize ${UBEP_SANITIZE}")
  endif()
  message(STATUS "ubep ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, "
                 "${CMAKE_BUILD_TYPE}${sanitize}\n   ${lines}")
endfunction()
