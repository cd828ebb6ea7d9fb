/* The daemon's status as a screen of `shoalctl status --watch`: one page for a terminal of a given
 * size. Pure: time and documents are given, text comes out.
 */
#ifndef SERVER_SHOALCTL_SHOALCTL_SCREEN_H
#define SERVER_SHOALCTL_SHOALCTL_SCREEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct screen_size {
    unsigned columns, rows; /* at least 1 */
    bool color;
};

struct screen {
    json_t *status, *before; /* the last two documents, or NULL */
    double between_s;        /* from one to the other */
    double fastest_Bps;      /* of a link and direction, ever seen: what bars are compared with */
};

/* Another document, `after_s` behind the one before; its reference becomes the screen's. */
void screen_take(struct screen *screen, json_t *status, double after_s);
void screen_clear(struct screen *screen);

/* The page, from the upper left corner on. No line is longer than the terminal is wide, none is
 * below it, and of what the daemon says nothing passes that a terminal acts on. */
void screen_draw(const struct screen *screen, const struct screen_size *size, FILE *out);

#endif
