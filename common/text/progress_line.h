/* The line of a terminal that says where long work is, as the bytes that draw it. Pure. */
#ifndef COMMON_TEXT_PROGRESS_LINE_H
#define COMMON_TEXT_PROGRESS_LINE_H

#include <stdbool.h>
#include <stddef.h>

#define PROGRESS_LINE_BYTES 512 /* room for a line of any width */
#define PROGRESS_LINE_ERASE "\r\033[K"

/* Whether a terminal of this kind, TERM's value or NULL, can erase a line. */
bool progress_line_can_draw(const char *term);
/* Write into `bytes` what draws the text over the line and goes back to its start, where the next
 * text of anybody begins. A character that is not ASCII's or that a terminal acts on becomes "?"
 * (the text is UTF-8), and what is wider than `columns` (0: unknown) is left out. Return how many
 * bytes. */
size_t progress_line_draw(const char *text, unsigned columns, char bytes[PROGRESS_LINE_BYTES]);

#endif
