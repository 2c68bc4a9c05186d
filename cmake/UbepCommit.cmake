# ubep_commit_source(<variable>): the path of a source file with the commit of the tree, kept up to
# date by each build. It is written only when it changes, so a build with nothing new compiles
# nothing. Without git, or in a tree that is no checkout, the commit is "unknown".

# As a script: cmake -D SOURCE=<tree> -D GIT=<git> -D OUTPUT=<file> -P UbepCommit.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "unknown")
  if(GIT)
    execute_process(
      COMMAND ${GIT} --no-optional-locks describe --always --dirty=-changed --abbrev=12 --exclude=*
      WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE described RESULT_VARIABLE status
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0)
      set(commit ${described})
    endif()
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Written by the build.
namespace ubep {
extern const char* const kCommit;
const char* const kCommit = "@commit@";
}  // namespace ubep
]])
  return()
endif()

function(ubep_commit_source variable)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/commit.cpp)
  set(git "")
  if(EXISTS ${PROJECT_SOURCE_DIR}/.git) # a folder, or a file in a worktree or submodule
    find_program(UBEP_GIT git)
    if(UBEP_GIT)
      set(git ${UBEP_GIT})
    endif()
  endif()
  set(write ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D GIT=${git} -D OUTPUT=${output}
            -P ${PROJECT_SOURCE_DIR}/cmake/UbepCommit.cmake)
  if(git)
    add_custom_target(ubep_commit COMMAND ${write} BYPRODUCTS ${output} COMMENT "" VERBATIM)
  else()
    execute_process(COMMAND ${write})
  endif()
  set(${variable} ${output} PARENT_SCOPE)
endfunction()
