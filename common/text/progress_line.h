/* The line of a terminal that says where long work is, as the bytes that draw it. Pure. */
#ifndef COMMON_TEXT_PROGRESS_LINE_H
#define COMMON_TEXT_PROGRESS_LINE_H

#include <stdbool.h>
#include <stddef.h>

#define PROGRESS_LINE_BYTES 512 /* room for a line of any width */
#define PROGRESS_LINE_ERASE "\r\033[K"

/* Whether a terminal of this kind, TERM's value or NULL, can erase a line. */
bool progress_line_can_draw(const char *term);
/* Draws the text over what is in the line, and goes back to its start: what others write begins
 * there. Of the text, in UTF-8, a character that is not ASCII's or that a terminal acts on becomes
 * "?", and what is wider than `columns` (0: unknown) is left out. Returns how many bytes. */
size_t progress_line_draw(const char *text, unsigned columns, char bytes[PROGRESS_LINE_BYTES]);

#endif
