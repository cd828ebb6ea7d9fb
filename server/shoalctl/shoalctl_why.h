/* shoalctl why: whom a job waits for, in five lines that a person understands. */
#ifndef SERVER_SHOALCTL_SHOALCTL_WHY_H
#define SERVER_SHOALCTL_SHOALCTL_WHY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "server/shoalctl/shoalctl_talk.h"

/* Ask for the job and print the answer, or the document itself. Negative: no answer, or it could
 * not be asked for; the output is the caller's to check. */
int shoalctl_why(struct conversation *talk, const char *job, bool json, struct error *error);
/* Print the five lines of the document, "-" for whatever is missing in it. */
void shoalctl_print_why(FILE *out, const json_t *why);

#endif
