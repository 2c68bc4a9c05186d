# Cross build for 64-bit Arm with Debian's cross compiler; programs run under qemu's user emulation.
# `scripts/deps aarch64` installs both and unpacks the libraries into UBEP_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(UBEP_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../../build/sysroot-aarch64
    CACHE PATH "Where the libraries of the other machine lie")
set(CMAKE_FIND_ROOT_PATH ${UBEP_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
