/* Collecting the problems of one configuration file. For the files of common/config only. */
#ifndef COMMON_CONFIG_CONFIG_REPORT_H
#define COMMON_CONFIG_CONFIG_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/config/config_table.h"

#define CONFIG_POINTER_BYTES 512

/* A JSON pointer (RFC 6901) while walking down; cut with "..." where it would not fit. */
struct config_pointer {
    char text[CONFIG_POINTER_BYTES];
    size_t length;
};

struct config_report {
    const char *name; /* of the file */
    struct config_problems *problems;
    json_t *wrong;  /* object: pointers whose value was refused, so that no check builds on them */
    bool exhausted; /* out of memory: the list is not complete */
};

int config_report_init(struct config_report *report, const char *name,
                       struct config_problems *problems);
/* Leaves the problems, which are the caller's. */
void config_report_clear(struct config_report *report);

/* Append "/key", escaped; config_pointer_cut goes back to an earlier length. */
void config_pointer_push(struct config_pointer *pointer, const char *key);
void config_pointer_push_index(struct config_pointer *pointer, size_t index);
void config_pointer_cut(struct config_pointer *pointer, size_t length);

/* "NAME:LINE:COLUMN: text" */
void config_report_at(struct config_report *report, int line, int column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* "NAME: text" */
void config_report_add(struct config_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "NAME: POINTER: got VALUE, must be ..."; the pointer counts as wrong from then on. */
void config_report_value(struct config_report *report, const char *pointer, const json_t *got,
                         const char *must_be);
/* Report as config_report_value does, with the value as text and a format of what it must be. */
void config_report_text(struct config_report *report, const char *pointer, const char *got,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Whether the value there, one above it or one below it was refused. */
bool config_report_is_wrong(const struct config_report *report, const char *pointer);

/* config_scan.c: report every key that stands twice in one object, wherever. The text must be JSON
 * that has been parsed before. `replaced` is called with the pointer and the JSON text of each
 * value that a later one replaces, and reports what is wrong with it. */
void config_scan_doubled(struct config_report *report, const char *text, size_t length,
                         void (*replaced)(struct config_report *report, const char *pointer,
                                          const char *text, size_t length));

/* config_near.c: the pointer of the known key that is nearest to `key` in `section`, whose own
 * pointer is `home`. */
void config_near_key(const struct config_section *section, const char *home, const char *key,
                     struct config_pointer *nearest);

/* config_check.c: fill in what depends on other keys; then check what no key can say alone. */
int config_resolve(struct config *config);
void config_check(const struct config *config, struct config_report *report);

#endif
