#include "pieces.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "records.h"

/* Bound of one system call, so that a call that is to stop ends soon. */
enum { STEP_BYTES = 8 << 20 };

typedef int32_t (*take_records)(const sl_row_source *, int64_t, int64_t, uint8_t *, int64_t,
                                int64_t, int64_t, int64_t, int32_t);

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int must_stop(const int32_t *stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }

static int is_read(const sl_part *part, uint8_t *memory, const int32_t *stop) {
    int64_t done = 0;
    while (done < part->nbytes && !must_stop(stop)) {
        int64_t left = part->nbytes - done;
        ssize_t count = pread((int)part->fd, memory + part->at + done,
                              (size_t)(left < STEP_BYTES ? left : STEP_BYTES), part->offset + done);
        if (count > 0) {
            done += count;
        } else if (count == 0 || errno != EINTR) {
            return 0;
        }
    }
    return done == part->nbytes;
}

void sl_bring_parts(sl_part *parts, int64_t num_parts, uint8_t *memory, int64_t size,
                    int64_t stride, int32_t check, uint64_t take, const int32_t *stop) {
    take_records taken = (take_records)(uintptr_t)take;
    for (int64_t i = 0; i < num_parts && !must_stop(stop); i++) {
        sl_part *part = &parts[i];
        part->outcome = 0;
        if (part->nbytes < 0 || part->at < 0 || part->at > size - part->nbytes) {
            continue;
        }
        int64_t started = now_ns();
        int read = is_read(part, memory, stop);
        part->read_ns = now_ns() - started;
        if (read) {
            part->outcome = taken((const sl_row_source *)(uintptr_t)part->source, part->first,
                                  part->count, memory, size, part->at, part->rows, stride,
                                  check) == 1;
        }
    }
}
