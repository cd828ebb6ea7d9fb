/* Text of others as a person may be shown it: characters that a terminal obeys, or that change the
 * order of what is read, become escapes. A name or an error's text that somebody else chose thus
 * moves no cursor and hides nothing, wherever it ends up. Pure. Calls nothing.
 *
 * Shown as \uXXXX: C0, DEL, C1, the marks, embeddings and isolates of bidirectional text, and the
 * separators of lines and paragraphs. Shown as \xXX: bytes that are not UTF-8, since some terminals
 * take them for C1. Text that has gone through this once is not changed by a second time. */
#ifndef COMMON_BASE_SHOWN_H
#define COMMON_BASE_SHOWN_H

#include <stddef.h>

#define SHOWN_BYTES 8 /* of one character, and its end */

/* Return the length of the UTF-8 sequence at `text`, or 0 when it is none (RFC 3629, table 3-7 of
 * Unicode). */
size_t shown_utf8_length(const char *text);
/* Write the first character of `text`, which is not empty, as it is shown. Returns how many bytes
 * of `text` it takes. */
size_t shown_first(const char *text, char shown[SHOWN_BYTES]);
/* Return where to cut a UTF-8 text of more than `room` bytes so that no character is halved. */
size_t shown_cut(const char *text, size_t room);
/* Write `text` as it is shown, as far as whole characters have room, and a zero at the end. Returns
 * the length in bytes. */
size_t shown_copy(char *to, size_t room, const char *text);

#endif
