# What `cmake --install` lays down. Component ubep-runtime: libubep.so.* and the command; component
# ubep-devel: headers, libubep.so, libubep.a, the CMake package and ubep.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# All layers in one file. Both libraries are made from the objects that the layers have anyway.
set(objects "")
foreach(layer IN LISTS ubep_layers)
  list(APPEND objects $<TARGET_OBJECTS:ubep_${layer}>)
endforeach()
add_library(ubep_shared SHARED ${objects})
add_library(ubep_static STATIC ${objects})
foreach(kind IN ITEMS shared static)
  set_target_properties(ubep_${kind} PROPERTIES OUTPUT_NAME ubep EXPORT_NAME ${kind}
                                                LINKER_LANGUAGE CXX)
  target_compile_features(ubep_${kind} INTERFACE cxx_std_20)
  target_include_directories(ubep_${kind} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(ubep_${kind} PRIVATE fmt::fmt hwy::hwy Threads::Threads)
  if(UBEP_HAVE_SODIUM)
    target_link_libraries(ubep_${kind} PRIVATE sodium::sodium)
  endif()
endforeach()

# A minor release may change the ABI as long as the version is 0.x, so the soname has both numbers;
# from 1.0 on it has the major number alone.
set(soversion ${PROJECT_VERSION_MAJOR})
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(soversion 0.${PROJECT_VERSION_MINOR})
  set(compatibility SameMinorVersion)
endif()
# Templates of the standard library and of {fmt} are visible whatever the flags say: the linker's
# list keeps them in.
set(exports ${PROJECT_SOURCE_DIR}/cmake/libubep.map)
set_target_properties(ubep_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${soversion}
                                             LINK_DEPENDS ${exports})
target_link_options(ubep_shared PRIVATE LINKER:--version-script=${exports})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/ubep)
install(TARGETS ubep_shared EXPORT ubepSharedTargets
  LIBRARY COMPONENT ubep-runtime NAMELINK_COMPONENT ubep-devel)
install(TARGETS ubep_static EXPORT ubepStaticTargets ARCHIVE COMPONENT ubep-devel)
if(TARGET ubep_cli)
  install(TARGETS ubep_cli RUNTIME COMPONENT ubep-runtime)
endif()
install(FILES LICENSE TYPE DOC COMPONENT ubep-runtime)
install(DIRECTORY include/ubep TYPE INCLUDE COMPONENT ubep-devel FILES_MATCHING PATTERN *.hpp)
foreach(kind IN ITEMS Shared Static)
  install(EXPORT ubep${kind}Targets NAMESPACE ubep:: DESTINATION ${package} COMPONENT ubep-devel)
endforeach()
write_basic_package_version_file(ubepConfigVersion.cmake COMPATIBILITY ${compatibility})
install(FILES cmake/ubepConfig.cmake cmake/UbepFindPrivate.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/ubepConfigVersion.cmake
        DESTINATION ${package} COMPONENT ubep-devel)

# ubep.pc finds its prefix from its own place, unless the user gave absolute folders.
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up ${up})
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
set(pc_sodium "")
if(UBEP_HAVE_SODIUM)
  set(pc_sodium "-lsodium ")
endif()
set(pc_libdir "\${prefix}")
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_libdir ${CMAKE_INSTALL_LIBDIR})
cmake_path(APPEND pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/ubep.pc.in ubep.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ubep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT ubep-devel)
