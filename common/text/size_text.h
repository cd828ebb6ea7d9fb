/* Sizes in bytes as people write them: "64M", "1K", "25MiB", "4G". Calls common/base. */
#ifndef COMMON_TEXT_SIZE_TEXT_H
#define COMMON_TEXT_SIZE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define SIZE_TEXT_BYTES 32 /* room that size_text_print needs at most */

/* Digits, then nothing or "B", or a power of 1024: K, M, G, T, P, alone or with "iB" ("KiB"), in
 * either case. "KB" is refused: it means 1000 to some and 1024 to others. ERR_INVALID names the
 * text and what is allowed. */
int size_text_parse(const char *text, uint64_t *bytes, struct error *error);

/* "0 B", "100 B", "64 KiB", "1.50 GiB": exact where the size is a whole number of the largest unit
 * that it reaches, else rounded to two digits. Cut to `room` like snprintf. */
void size_text_print(uint64_t bytes, char *text, size_t room);

#endif
