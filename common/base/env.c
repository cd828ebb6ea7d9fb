#include "common/base/env.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *env_text(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

int env_integer(const char *name, long long least, long long most, long long fallback,
                long long *value, struct error *error)
{
    assert(least <= most);
    const char *text = env_text(name);
    if (!text) {
        *value = fallback;
        return 0;
    }
    /* strtoll would skip leading blanks and take a '+': a rank is digits and nothing else. */
    const char *digits = text + (text[0] == '-');
    char *end = NULL;
    errno = 0;
    long long number = isdigit((unsigned char)digits[0]) ? strtoll(text, &end, 10) : 0;
    if (!end || *end || errno || number < least || number > most) {
        return error_set(error, ERR_INVALID,
                         "environment variable %s: got \"%.64s\", must be an integer from %lld to "
                         "%lld",
                         name, text, least, most);
    }
    *value = number;
    return 0;
}

int env_set_default(const char *name, const char *value)
{
    if (setenv(name, value, 0) == 0)
        return 0;
    return errno == ENOMEM ? ERR_MEMORY : ERR_INVALID;
}
