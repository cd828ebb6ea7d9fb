/* Files of secrets: what is blank does not count, and the order of the lines is that of the
 * secrets. */
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "common/auth/secret.h"
#include "tests/fuzz/fuzz.h"

#define FILE_BYTES 8192

static int parse(struct secrets *secrets, const char *bytes, size_t count)
{
    struct error error = {0};
    int result = secrets_parse(secrets, bytes, count, "FILE", &error);
    FUZZ_REQUIRE(result == 0 || (result == ERR_CONFIG && error.code == ERR_CONFIG));
    FUZZ_REQUIRE(result == 0 || strstr(error.text, "FILE"));
    FUZZ_REQUIRE(result == 0 ? secrets->count >= 1 && secrets->count <= SECRETS_MOST
                             : secrets->count == 0);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char before[] = "\n \t\r\n", after[] = " \r\n\n\t\n";
    const char *text = (const char *)data;
    struct secrets secrets, same, turned;
    struct error error;
    if (size > FILE_BYTES || auth_init(&error) < 0)
        return 0;
    int result = parse(&secrets, text, size);
    size_t head = sizeof(before) - 1, tail = sizeof(after) - 1;
    char *padded = malloc(head + size + tail);
    FUZZ_REQUIRE(padded);
    memcpy(padded, before, head);
    if (size > 0)
        memcpy(padded + head, data, size);
    memcpy(padded + head + size, after, tail);
    FUZZ_REQUIRE(parse(&same, padded, head + size + tail) == result);
    FUZZ_REQUIRE(memcmp(&secrets, &same, sizeof(secrets)) == 0);
    free(padded);
    /* The file cut at a newline and turned round. */
    const char *newline = size > 0 ? memchr(text, '\n', size) : NULL;
    if (result < 0 || !newline)
        return 0;
    size_t first = (size_t)(newline - text) + 1;
    char *other = malloc(size + 1);
    FUZZ_REQUIRE(other);
    memcpy(other, text + first, size - first);
    other[size - first] = '\n';
    memcpy(other + size - first + 1, text, first);
    FUZZ_REQUIRE(parse(&turned, other, size + 1) == 0 && turned.count == secrets.count);
    for (uint32_t i = 0; i < secrets.count; i++) {
        const struct secret *here = &turned.list[i];
        FUZZ_REQUIRE(memcmp(here, &secrets.list[0], sizeof(*here)) == 0 ||
                     memcmp(here, &secrets.list[1], sizeof(*here)) == 0);
    }
    free(other);
    return 0;
}
