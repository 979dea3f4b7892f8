# cmake -DURL=... -DFILE=... -P download.cmake: one file from the network, with the libcurl that CMake brings along, so
# that a fresh machine needs no download program.
# TLS_VERIFY is off since whoever calls this checks a pinned SHA-256, which says more than a certificate does, and a
# minimal system has no certificates.
# The time-outs are short: a machine behind a firewall that drops packets must get to its next source soon.
file(DOWNLOAD "${URL}" "${FILE}" STATUS status TIMEOUT 25 INACTIVITY_TIMEOUT 8 TLS_VERIFY OFF)
list(POP_FRONT status code reason)
if(NOT code EQUAL 0)
  message("${URL}: ${reason}") # a plain line: FATAL_ERROR would fold it
  message(FATAL_ERROR "download failed")
endif()
