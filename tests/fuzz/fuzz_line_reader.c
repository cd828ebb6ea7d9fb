/* Lines out of a stream that arrives in pieces: whatever the pieces, the lines are the same. Lines
 * that begin with an L may be longer than others. */
#include <stdlib.h>
#include <string.h>

#include "common/text/line_reader.h"
#include "tests/fuzz/fuzz.h"

#define LINE_BYTES 64
#define LONG_LINE_BYTES 256

static int next_line(struct line_reader *reader, char **line, size_t *bytes)
{
    struct error error;
    const char *head;
    int result = line_reader_next(reader, line, bytes, &error);
    if (result == 0)
        line_reader_trim(reader);
    if (result < 0 && line_reader_head(reader, &head) > 0 && head[0] == 'L') {
        line_reader_allow(reader, LONG_LINE_BYTES);
        result = line_reader_next(reader, line, bytes, &error);
    }
    return result;
}

/* All lines, one after another with a newline each; *end is how it ended: 0 or ERR_PROTOCOL. */
static char *read_lines(const uint8_t *data, size_t size, size_t piece, size_t *length, int *end)
{
    struct line_reader reader;
    struct error error;
    char *lines = malloc(size + 1);
    FUZZ_REQUIRE(lines);
    line_reader_init(&reader, LINE_BYTES);
    *length = 0;
    *end = 0;
    for (size_t done = 0; done < size && *end == 0;) {
        size_t count = size - done < piece ? size - done : piece;
        FUZZ_REQUIRE(line_reader_feed(&reader, data + done, count, &error) == 0);
        done += count;
        char *line;
        size_t bytes;
        while ((*end = next_line(&reader, &line, &bytes)) == 1) {
            FUZZ_REQUIRE(bytes < (line[0] == 'L' ? LONG_LINE_BYTES : LINE_BYTES));
            FUZZ_REQUIRE(line[bytes] == '\0');
            memcpy(lines + *length, line, bytes);
            *length += bytes;
            lines[(*length)++] = '\n';
        }
    }
    line_reader_clear(&reader);
    return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t whole_length, cut_length;
    int whole_end, cut_end;
    char *whole = read_lines(data + 1, size - 1, size, &whole_length, &whole_end);
    char *cut = read_lines(data + 1, size - 1, 1 + data[0], &cut_length, &cut_end);
    FUZZ_REQUIRE(whole_end == cut_end && whole_length == cut_length);
    FUZZ_REQUIRE(memcmp(whole, cut, whole_length) == 0);
    free(whole);
    free(cut);
    return 0;
}
