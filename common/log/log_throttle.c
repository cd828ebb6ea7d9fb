#include "common/log/log_throttle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define TEXT_BYTES 1800 /* what a line of the log has room for, beside its prefix */

bool log_throttle_pass(struct log_throttle *throttle, uint64_t now_ns, uint64_t *left_out)
{
    /* Each line costs an interval; as much as a burst costs may be owed. */
    uint64_t paid_ns = throttle->paid_ns > now_ns ? throttle->paid_ns : now_ns;
    if (paid_ns - now_ns > (LOG_THROTTLE_BURST - 1) * LOG_THROTTLE_INTERVAL_NS) {
        throttle->left_out++;
        return false;
    }
    throttle->paid_ns = paid_ns + LOG_THROTTLE_INTERVAL_NS;
    *left_out = throttle->left_out;
    throttle->left_out = 0;
    return true;
}

void log_throttled(struct log *log, struct log_throttle *throttle, uint64_t now_ns,
                   enum log_level level, const char *format, ...)
{
    uint64_t left_out;
    if (!log || level > log->level || !log_throttle_pass(throttle, now_ns, &left_out))
        return;
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (left_out > 0)
        log_write_of(log, (uintptr_t)throttle, level,
                     "%s (%" PRIu64 " more such lines were left out)", text, left_out);
    else
        log_write_of(log, (uintptr_t)throttle, level, "%s", text);
}

struct log_throttle *log_throttle_of(struct log_throttles *throttles, uint64_t number)
{
    /* Fibonacci hashing: numbers that follow each other get places of their own. */
    return &throttles->of[(number * UINT64_C(0x9e3779b97f4a7c15) >> 32) % LOG_THROTTLES_MAX];
}

void log_throttle_sweep(struct log *log, struct log_throttle *throttle, uint64_t now_ns,
                        const char *what)
{
    uint64_t count;
    if (throttle->left_out == 0)
        return;
    /* Asked as for a line, which is not one of those that it tells about. */
    if (log_throttle_pass(throttle, now_ns, &count))
        log_warning(log, "%" PRIu64 " lines about %s were left out", count, what);
    else
        throttle->left_out--;
}

void log_throttles_sweep(struct log *log, struct log_throttles *throttles, uint64_t now_ns,
                         const char *what)
{
    for (uint32_t i = 0; i < LOG_THROTTLES_MAX; i++)
        log_throttle_sweep(log, &throttles->of[i], now_ns, what);
}
