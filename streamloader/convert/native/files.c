/* Whole files into one piece of memory. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

static int64_t read_all(int fd, uint8_t *memory, int64_t nbytes) {
    int64_t done = 0;
    while (done < nbytes) {
        ssize_t got = pread(fd, memory + done, (size_t)(nbytes - done), done);
        if (got <= 0) {
            break;
        }
        done += got;
    }
    return done;
}

static int read_file(const char *path, int64_t nbytes, uint8_t *memory) {
    /* Without waiting: a file may have become a FIFO since it was listed. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    struct stat status;
    int is_read = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                  status.st_size == nbytes && read_all(fd, memory, nbytes) == nbytes;
    close(fd);
    return is_read;
}

int64_t sl_read_files(int64_t count, const char *paths, const int64_t *nbytes, uint8_t *memory,
                      const int64_t *offsets) {
    for (int64_t i = 0; i < count; i++) {
        int64_t room = offsets[i + 1] - offsets[i];
        if (nbytes[i] < 0 || nbytes[i] > room ||
            !read_file(paths, nbytes[i], memory + offsets[i])) {
            return i;
        }
        memset(memory + offsets[i] + nbytes[i], 0, (size_t)(room - nbytes[i]));
        paths += strlen(paths) + 1;
    }
    return count;
}
