#include "worker/job/daemon_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 128
#define ERROR_MARK " error: " /* of log.c, behind the time and the program */

size_t daemon_log_tail(const char *path, char tail[DAEMON_LOG_TAIL_BYTES + 1])
{
    off_t from = 0;
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t bytes = 0;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid()) {
        from = status.st_size > DAEMON_LOG_TAIL_BYTES ? status.st_size - DAEMON_LOG_TAIL_BYTES : 0;
        bytes = pread(fd, tail, DAEMON_LOG_TAIL_BYTES, from);
    }
    if (fd >= 0)
        close(fd);
    tail[bytes > 0 ? bytes : 0] = '\0';
    char *begin = from > 0 ? strchr(tail, '\n') : NULL;
    if (begin)
        memmove(tail, begin + 1, strlen(begin));
    return strlen(tail);
}

/* Return what the last line with an error says, else the last line. tail is taken apart. */
static const char *tail_choose(char *tail)
{
    const char *chosen = NULL, *last = "";
    char *rest = NULL;
    for (char *line = strtok_r(tail, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *mark = strstr(line, ERROR_MARK), *colon = strstr(line, ": ");
        if (mark && colon == mark + strlen(ERROR_MARK) - 2)
            chosen = mark + strlen(ERROR_MARK);
        last = line;
    }
    return chosen ? chosen : last;
}

const char *daemon_log_end(const char *socket_path, char text[DAEMON_LOG_BYTES])
{
    static const char socket_end[] = ".sock";
    char path[PATH_BYTES], tail[DAEMON_LOG_TAIL_BYTES + 1];
    size_t length = strlen(socket_path), end = strlen(socket_end);
    if (length <= end || strcmp(socket_path + length - end, socket_end) != 0 ||
        snprintf(path, sizeof(path), "%.*s.log", (int)(length - end), socket_path) >=
            (int)sizeof(path) ||
        daemon_log_tail(path, tail) == 0)
        return "";
    snprintf(text, DAEMON_LOG_BYTES, "; its log ends with: %s", tail_choose(tail));
    return text;
}
