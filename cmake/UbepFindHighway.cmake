# Makes hwy::hwy. Highway ships a CMake package; some distributions package only its pkg-config
# file. Used by this build and, installed, by those who link libubep.a.
find_package(hwy CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(hwy QUIET IMPORTED_TARGET GLOBAL libhwy)
    if(hwy_FOUND)
      add_library(hwy::hwy INTERFACE IMPORTED)
      target_link_libraries(hwy::hwy INTERFACE PkgConfig::hwy)
    endif()
  endif()
endif()
