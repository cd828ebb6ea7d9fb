#include "common/text/number_text.h"

#include <inttypes.h>

int number_text_parse(const char *text, uint64_t least, uint64_t most, uint64_t *number,
                      struct error *error)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            break;
        value = value * 10 + digit;
    }
    if (at == text || *at != '\0' || value < least || value > most)
        return error_set(error, ERR_INVALID,
                         "got \"%.64s\", must be a number from %" PRIu64 " to %" PRIu64, text,
                         least, most);
    *number = value;
    return 0;
}
