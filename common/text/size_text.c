#include "common/text/size_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char unit_letters[] = "KMGTP";

/* The power of two that a unit stands for, or -1. */
static int size_unit_shift(const char *unit)
{
    if (unit[0] == '\0' || strcasecmp(unit, "B") == 0)
        return 0;
    const char *letter = strchr(unit_letters, toupper((unsigned char)unit[0]));
    if (!letter || (unit[1] != '\0' && strcasecmp(unit + 1, "iB") != 0))
        return -1;
    return 10 * (int)(letter - unit_letters + 1);
}

int size_text_parse(const char *text, uint64_t *bytes, struct error *error)
{
    uint64_t number = 0;
    const char *at = text;
    for (; isdigit((unsigned char)*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (number > (UINT64_MAX - digit) / 10)
            return error_set(error, ERR_INVALID, "size \"%.64s\" is more than 64 bits hold", text);
        number = number * 10 + digit;
    }
    int shift = size_unit_shift(at);
    if (at == text || shift < 0) {
        return error_set(error, ERR_INVALID,
                         "size \"%.64s\" is not understood: must be digits, then nothing for "
                         "bytes, or K, M, G, T or P (also KiB and so on) for powers of 1024",
                         text);
    }
    if (number > UINT64_MAX >> shift)
        return error_set(error, ERR_INVALID, "size \"%.64s\" is more than 64 bits hold", text);
    *bytes = number << shift;
    return 0;
}

void size_text_print(uint64_t bytes, char *text, size_t room)
{
    int unit = 0;
    while (unit < (int)strlen(unit_letters) && bytes >> (10 * (unit + 1)))
        unit++;
    if (unit == 0) {
        snprintf(text, room, "%" PRIu64 " B", bytes);
        return;
    }
    uint64_t one = (uint64_t)1 << (10 * unit);
    if (bytes % one == 0) {
        snprintf(text, room, "%" PRIu64 " %ciB", bytes / one, unit_letters[unit - 1]);
        return;
    }
    snprintf(text, room, "%.2f %ciB", (double)bytes / (double)one, unit_letters[unit - 1]);
}
