# The commit a program was built from, for the records of its measurements: written into a header at
# every build, which changes nothing unless the commit has. Included as a module it adds the target;
# run as a script (cmake -P) it writes the header.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit unknown)
  execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=12 --dirty=+changes --exclude=*
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${found})
  endif()
  set(old "")
  if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} old)
  endif()
  set(new "#define FATHOM_COMMIT \"${commit}\"\n")
  if(NOT new STREQUAL old)
    file(WRITE ${OUTPUT} ${new})
  endif()
else()
  set(FATHOM_COMMIT_DIR ${PROJECT_BINARY_DIR}/generated)
  add_custom_target(fathom_commit
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
            -DOUTPUT=${FATHOM_COMMIT_DIR}/fathom_commit.h -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${FATHOM_COMMIT_DIR}/fathom_commit.h
    VERBATIM)
endif()
