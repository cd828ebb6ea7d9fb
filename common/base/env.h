/* The one file that reads and sets variables of the environment. */
#ifndef COMMON_BASE_ENV_H
#define COMMON_BASE_ENV_H

#include "common/base/error.h"

/* Where the daemon of a node is found when nothing, SHOAL_SOCKET or socket.path, says otherwise. */
#define SHOAL_DEFAULT_SOCKET "/run/shoal/shoald.sock"

#define SHOAL_PINNED_BYTES_MAX (1ll << 46) /* what SHOAL_PINNED_BYTES can be at the most */

/* The variable's text, or NULL when it is unset or empty. It belongs to the environment: valid
 * until the variable is set again. */
const char *env_text(const char *name);

/* *value: the variable as a decimal integer from least to most, or fallback when it is unset or
 * empty. Anything else is ERR_INVALID with variable, value and range. */
int env_integer(const char *name, long long least, long long most, long long fallback,
                long long *value, struct error *error);

/* Set the variable unless it is there already, even if empty. Only while the process has one
 * thread. Returns 0, ERR_INVALID for a name that cannot be one, or ERR_MEMORY. */
int env_set_default(const char *name, const char *value);

#endif
