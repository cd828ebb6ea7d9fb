#include "common/text/progress_line.h"

#include <string.h>

#define DRAW_END "\033[K\r"
#define COLUMNS_USUAL 80u

bool progress_line_can_draw(const char *term)
{
    return term && *term && strcmp(term, "dumb") != 0;
}

size_t progress_line_draw(const char *text, unsigned columns, char bytes[PROGRESS_LINE_BYTES])
{
    /* The last column stays free: behind it the line would go on in the next one, where it could
     * not be erased. */
    size_t most = (columns ? columns : COLUMNS_USUAL) - 1;
    size_t room = PROGRESS_LINE_BYTES - strlen(DRAW_END);
    size_t used = 0;
    bytes[used++] = '\r';
    for (; *text && used <= most && used < room; text++) {
        unsigned char byte = (unsigned char)*text;
        if ((byte & 0xc0) != 0x80) /* else it goes on with a character */
            bytes[used++] = byte >= 0x20 && byte < 0x7f ? *text : '?';
    }
    memcpy(&bytes[used], DRAW_END, strlen(DRAW_END));
    return used + strlen(DRAW_END);
}
