/* The daemon's status document as text for people. Missing keys are shown as "-". */
#ifndef SERVER_SHOALCTL_SHOALCTL_PRINT_H
#define SERVER_SHOALCTL_SHOALCTL_PRINT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

void shoalctl_print_status(FILE *out, const json_t *status);
void shoalctl_print_jobs(FILE *out, const json_t *status);

/* "0-3,5" of a list of numbers; "-" of an empty one, the number itself of a number. */
void shoalctl_format_ranks(const json_t *ranks, char *text, size_t room);
/* "90 s", "3 min", "2 h 5 min", "4 d 2 h". */
void shoalctl_format_duration(uint64_t seconds, char *text, size_t room);

#endif
