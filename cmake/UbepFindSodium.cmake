# Makes sodium::sodium where libsodium is there, for job keys. Used by this build and, installed, by those
# who link a libubep.a that has it.
if(NOT TARGET sodium::sodium)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(sodium QUIET IMPORTED_TARGET GLOBAL libsodium)
    if(sodium_FOUND)
      add_library(sodium::sodium INTERFACE IMPORTED)
      target_link_libraries(sodium::sodium INTERFACE PkgConfig::sodium)
    endif()
  endif()
endif()
