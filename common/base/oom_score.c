#include "common/base/oom_score.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OOM_SCORE_PATH "/proc/self/oom_score_adj"

int oom_score_read(int *score, struct error *error)
{
    char text[16];
    int fd = open(OOM_SCORE_PATH, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    int cause = errno;
    if (fd >= 0)
        close(fd);
    if (length < 0)
        return error_set_errno(error, cause, OOM_SCORE_PATH);
    text[length] = '\0';
    *score = (int)strtol(text, NULL, 10);
    return 0;
}

int oom_score_write(int score, struct error *error)
{
    char text[16];
    int length = snprintf(text, sizeof(text), "%d\n", score);
    int fd = open(OOM_SCORE_PATH, O_WRONLY | O_CLOEXEC);
    ssize_t written = fd >= 0 ? write(fd, text, (size_t)length) : -1;
    int cause = errno;
    if (fd >= 0)
        close(fd);
    return written == length ? 0 : error_set_errno(error, cause, OOM_SCORE_PATH);
}
