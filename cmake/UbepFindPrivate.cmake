# What libubep.a links beside {fmt}: hwy::hwy and, for job keys, sodium::sodium where it is there. Highway
# ships a CMake package, libsodium none; some distributions package only pkg-config files. Used by this
# build and, installed, by those who link libubep.a.

# ubep_pkg_config(<name> <module>): makes <name>::<name> of a pkg-config module, where it is there.
macro(ubep_pkg_config name module)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND AND NOT TARGET ${name}::${name})
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(${name}_FOUND)
      add_library(${name}::${name} INTERFACE IMPORTED)
      target_link_libraries(${name}::${name} INTERFACE PkgConfig::${name})
    endif()
  endif()
endmacro()

find_package(hwy CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  ubep_pkg_config(hwy libhwy)
endif()
ubep_pkg_config(sodium libsodium)
