/* Lines of the control protocol, in each conversation. A line that decodes is encoded and decoded
 * again: both lines are the same. */
#include <stdlib.h>
#include <string.h>

#include "common/format/message.h"
#include "tests/fuzz/fuzz.h"

static char *encode(const struct message *message, size_t *length)
{
    char *line = message_encode(message, length);
    FUZZ_REQUIRE(line && *length > 0 && line[*length - 1] == '\n');
    line[--*length] = '\0';
    return line;
}

/* The first byte says who speaks to whom; the rest is a line, which may have newlines
 * and NULs inside, more than a line reader hands on. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    enum message_conversation conversation = data[0] % 3;
    char *line = fuzz_text(data + 1, size - 1);
    struct message message, again;
    struct error error;
    if (message_decode(&message, conversation, line, size - 1, &error) == 0) {
        size_t length, length_again;
        char *once = encode(&message, &length);
        FUZZ_REQUIRE(message_decode(&again, conversation, once, length, &error) == 0);
        char *twice = encode(&again, &length_again);
        FUZZ_REQUIRE(length == length_again && memcmp(once, twice, length) == 0);
        message_clear(&again);
        FUZZ_REQUIRE(message_copy(&again, &message) == 0);
        message_clear(&again);
        message_clear(&message);
        free(once);
        free(twice);
    } else {
        FUZZ_REQUIRE(error.code < 0 && error.text[0]);
    }
    free(line);
    return 0;
}
