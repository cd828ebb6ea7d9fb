/* Error codes and the text that goes with them.
 *
 * Every fallible function returns 0 or one of the negative codes below and, where it takes a
 * struct error, a text that names the culprit. The codes are the public ones of worker/shoal.h
 * (SHOAL_E...), with the same values, so that a code may travel from the daemon to the caller.
 */
#ifndef COMMON_BASE_ERROR_H
#define COMMON_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

enum error_code {
    ERR_OK = 0,
    ERR_INVALID = -1,      /* an argument, option or value that is not allowed */
    ERR_MEMORY = -2,       /* out of memory, or a configured limit reached */
    ERR_TIMEOUT = -3,      /* the time allowed has passed */
    ERR_DISCONNECTED = -4, /* the daemon of this node is not there, or went away */
    ERR_LOST = -5,         /* a rank, or the node that it is on, is gone */
    ERR_MISMATCH = -6,     /* the ranks of a collective disagree on what it is */
    ERR_PROTOCOL = -7,     /* bytes that make no sense */
    ERR_REFUSED = -8,      /* understood, and not permitted (drain, ownership, duplicate rank) */
    ERR_SYSTEM = -9,       /* a system call failed; the text has strerror's words */
    ERR_STATE = -10,       /* the handle is closed, or the call is not possible now */
    ERR_UNSUPPORTED = -11, /* this build or machine cannot do it */
    ERR_AGAIN = -12,       /* not now; try again after an event */
    ERR_CONFIG = -13,      /* the configuration is wrong */
};

#define ERROR_TEXT_BYTES 1024

struct error {
    int code;                    /* enum error_code; 0 when unset */
    char text[ERROR_TEXT_BYTES]; /* NUL-terminated, one line, as it may be shown (shown.h), no
                                  * final full stop or newline */
};

/* A constant English name for a code ("rank lost"); never NULL. */
const char *error_name(int code);
/* Whether the code is one of those above that say that something went wrong. */
bool error_is_known(int code);

/* Fill *error (which may be NULL) and return code, so that a caller can `return error_set(...)`. */
int error_set(struct error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fill *error as error_set does, with ERR_SYSTEM and ": " strerror(errno_value) appended. */
int error_set_errno(struct error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the text already there; keeps the code. */
void error_prefix(struct error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
