# ubep_layer(<name> [SOURCES <file>...] [DEPENDS <target>...])
# Makes the target ubep_<name> with the alias ubep::<name>: one folder of src/. A layer without
# sources is an INTERFACE target, so a header-only folder is a layer like any other.
function(ubep_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "SOURCES;DEPENDS")
  if(layer_SOURCES)
    add_library(ubep_${name} STATIC ${layer_SOURCES})
    # What is not marked UBEP_API stays inside libubep.so; within the build it is linked as ever.
    set_target_properties(ubep_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden
                                                  VISIBILITY_INLINES_HIDDEN ON)
    set(scope PUBLIC)
  else()
    add_library(ubep_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(ubep::${name} ALIAS ubep_${name})
  target_include_directories(ubep_${name} ${scope} ${PROJECT_SOURCE_DIR}/include
                                                   ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(ubep_${name} ${scope} cxx_std_20)
  target_link_libraries(ubep_${name} ${scope} ${layer_DEPENDS})
endfunction()
