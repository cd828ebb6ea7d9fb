/* Whole numbers as people write them on a command line. Calls common/base. */
#ifndef COMMON_TEXT_NUMBER_TEXT_H
#define COMMON_TEXT_NUMBER_TEXT_H

#include <stdint.h>

#include "common/base/error.h"

/* Decimal digits and nothing else: no sign, blank, or other base. ERR_INVALID names the text and
 * the range that is allowed; error_prefix says which option it was. */
int number_text_parse(const char *text, uint64_t least, uint64_t most, uint64_t *number,
                      struct error *error);

#endif
