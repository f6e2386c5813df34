# `cmake --install` and CPack: the program, what it writes of itself (manual pages, completions), the models
# that ship with it, licence and notes.
option(FATHOM_INSTALL_MODELS "Install the models that ship with the program" ON)

function(fathom_install)
  include(GNUInstallDirs)
  set(doc ${CMAKE_INSTALL_DATADIR}/doc/fathom)
  install(TARGETS fathom RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

  # Written by the program when it is installed: pages cannot be older than it is.
  set(pages ${PROJECT_BINARY_DIR}/pages)
  # Of two installations at once from one build, one waits.
  install(CODE "
    file(LOCK \"${pages}.lock\" GUARD PROCESS TIMEOUT 300)
    file(REMOVE_RECURSE \"${pages}\")
    execute_process(COMMAND \"$<TARGET_FILE:fathom>\" help --out-dir \"${pages}\" COMMAND_ERROR_IS_FATAL ANY)")
  install(DIRECTORY ${pages}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
  foreach(shell bash-completion zsh fish)
    install(DIRECTORY ${pages}/${shell} DESTINATION ${CMAKE_INSTALL_DATADIR})
  endforeach()

  if(FATHOM_INSTALL_MODELS)
    # The program looks for them beside its bin/.
    install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fathom/models)
  endif()
  # The name by which Debian has licences.
  install(FILES LICENSE DESTINATION ${doc} RENAME copyright)
  install(FILES README.md CHANGELOG.md SECURITY.md docs/decisions/0003-dependencies.md DESTINATION ${doc})
  install(FILES deploy/systemd/fathom.service DESTINATION ${doc}/examples)
endfunction()

# A .deb for the system the program was built on, and a tarball that runs where it is unpacked.
macro(fathom_package)
  set(CPACK_GENERATOR "DEB;TGZ")
  set(CPACK_PACKAGE_NAME fathom)
  set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
  set(CPACK_PACKAGE_VENDOR "the fathom project")
  # A package must name somebody. The address takes no mail: reports go through the forge (SECURITY.md).
  set(CPACK_PACKAGE_CONTACT "the fathom maintainers <maintainers@fathom.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "native inference for the DeepSeek family")
  set(CPACK_PACKAGE_DESCRIPTION "One program that runs, serves, quantises and explains language models of the\n\
DeepSeek family on processors and NVIDIA GPUs, without Python.")
  set(CPACK_PACKAGE_FILE_NAME fathom-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  # Opened by `fathom serve --kv-events` and by `fathom roofline --png` alone.
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libzmq5, librsvg2-bin")
  find_program(FATHOM_SHLIBDEPS dpkg-shlibdeps)
  if(FATHOM_SHLIBDEPS)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  endif()
  include(CPack)
endmacro()
