/* Reads many files in one call, so that Python's lock is taken once for all of them.
 *
 * Lines without a '#' are read by the Python binding too: declarations only.
 */
#ifndef SL_FILES_H
#define SL_FILES_H

#include <stdint.h>

/* Reads count whole files one behind the other: file i into memory + offsets[i], with zeros behind
 * it up to offsets[i + 1]. paths are joined, each with a zero byte behind it. Returns how many it
 * read: it stops at the first that is no regular file of nbytes[i], or cannot be read, and looks at
 * none of memory beyond offsets[count]. */
int64_t sl_read_files(int64_t count, const char *paths, const int64_t *nbytes, uint8_t *memory,
                      const int64_t *offsets);

#endif
