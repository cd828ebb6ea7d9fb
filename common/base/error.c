#include "common/base/error.h"

#include <stdio.h>
#include <string.h>

#include "common/base/shown.h"

static const char *const names[] = {
    "success",        "invalid argument",    "out of memory or limit reached",
    "timed out",      "daemon gone",         "rank lost",
    "ranks disagree", "protocol error",      "refused",
    "system error",   "wrong state",         "not supported",
    "try again",      "configuration error",
};

bool error_is_known(int code)
{
    return code < 0 && code > -(int)(sizeof(names) / sizeof(names[0]));
}

const char *error_name(int code)
{
    return code == 0 || error_is_known(code) ? names[-code] : "unknown error";
}

/* Escape what a terminal obeys: the text may hold somebody else's words. */
static void error_show(struct error *error)
{
    char text[ERROR_TEXT_BYTES];
    memcpy(text, error->text, sizeof(text));
    shown_copy(error->text, sizeof(error->text), text);
}

static int error_vset(struct error *error, int code, const char *format, va_list arguments)
{
    if (error) {
        error->code = code;
        vsnprintf(error->text, sizeof(error->text), format, arguments);
        error_show(error);
    }
    return code;
}

int error_set(struct error *error, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error_vset(error, code, format, arguments);
    va_end(arguments);
    return code;
}

int error_set_errno(struct error *error, int errno_value, const char *format, ...)
{
    if (!error)
        return ERR_SYSTEM;
    va_list arguments;
    va_start(arguments, format);
    error_vset(error, ERR_SYSTEM, format, arguments);
    va_end(arguments);
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof(error->text) - used, ": %s", strerror(errno_value));
    return ERR_SYSTEM;
}

void error_prefix(struct error *error, const char *format, ...)
{
    if (!error)
        return;
    char old[ERROR_TEXT_BYTES];
    memcpy(old, error->text, sizeof(old));
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
    error_show(error);
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof(error->text) - used, ": %s", old);
}
