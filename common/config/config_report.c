#include "common/config/config_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"

/* How much of a key or value that somebody wrote is repeated in a message. */
#define CONFIG_QUOTE_BYTES 64

int config_report_init(struct config_report *report, const char *name,
                       struct config_problems *problems)
{
    *problems = (struct config_problems){0};
    *report = (struct config_report){.name = name, .problems = problems, .wrong = json_object()};
    return report->wrong ? 0 : ERR_MEMORY;
}

void config_report_clear(struct config_report *report)
{
    json_decref(report->wrong);
    *report = (struct config_report){0};
}

void config_problems_clear(struct config_problems *problems)
{
    for (uint32_t i = 0; i < problems->count; i++)
        free(problems->lines[i]);
    free(problems->lines);
    *problems = (struct config_problems){0};
}

/* All of the text or, once there is no room, "/..." at the end of what is there. */
static void pointer_append(struct config_pointer *pointer, const char *text)
{
    static const char more[] = "/...";
    size_t length = strlen(text);
    size_t room = sizeof(pointer->text) - sizeof(more);
    if (pointer->length > room)
        return;
    if (length > room - pointer->length) {
        text = more;
        length = strlen(more);
    }
    memcpy(pointer->text + pointer->length, text, length + 1);
    pointer->length += length;
}

void config_pointer_push(struct config_pointer *pointer, const char *key)
{
    char escaped[6 * CONFIG_QUOTE_BYTES + 8] = "/";
    size_t used = 1;
    bool cut = strlen(key) > CONFIG_QUOTE_BYTES;
    size_t length = cut ? shown_cut(key, CONFIG_QUOTE_BYTES) : strlen(key);
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)key[i];
        size_t room = sizeof(escaped) - used;
        if (byte == '~')
            used += (size_t)snprintf(escaped + used, room, "~0");
        else if (byte == '/')
            used += (size_t)snprintf(escaped + used, room, "~1");
        else if (byte < ' ' || byte == 0x7f)
            used += (size_t)snprintf(escaped + used, room, "\\u%04x", byte);
        else
            used += (size_t)snprintf(escaped + used, room, "%c", byte);
    }
    if (cut)
        snprintf(escaped + used, sizeof(escaped) - used, "...");
    pointer_append(pointer, escaped);
}

void config_pointer_push_index(struct config_pointer *pointer, size_t index)
{
    char text[32];
    snprintf(text, sizeof(text), "/%zu", index);
    pointer_append(pointer, text);
}

void config_pointer_cut(struct config_pointer *pointer, size_t length)
{
    pointer->length = length;
    pointer->text[length] = '\0';
}

/* Takes the line. */
static void report_line(struct config_report *report, char *line)
{
    struct config_problems *problems = report->problems;
    char **lines = line ? realloc(problems->lines, (problems->count + 1) * sizeof(*lines)) : NULL;
    if (lines)
        problems->lines = lines;
    size_t room = line ? SHOWN_BYTES * strlen(line) + 1 : 0;
    char *shown = lines ? malloc(room) : NULL;
    if (!shown) {
        free(line);
        report->exhausted = true;
        return;
    }
    /* One problem stays one line, whatever the file, its name or jansson put into it. */
    shown_copy(shown, room, line);
    free(line);
    lines[problems->count++] = shown;
}

/* NULL: out of memory. */
__attribute__((format(printf, 1, 0))) static char *text_vprint(const char *format,
                                                               va_list arguments)
{
    char *text = NULL;
    return vasprintf(&text, format, arguments) < 0 ? NULL : text;
}

__attribute__((format(printf, 1, 2))) static char *text_print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = text_vprint(format, arguments);
    va_end(arguments);
    return text;
}

void config_report_at(struct config_report *report, int line, int column, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = text_vprint(format, arguments);
    va_end(arguments);
    report_line(report, text ? text_print("%s:%d:%d: %s", report->name, line, column, text) : NULL);
    free(text);
}

void config_report_add(struct config_report *report, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = text_vprint(format, arguments);
    va_end(arguments);
    report_line(report, text ? text_print("%s: %s", report->name, text) : NULL);
    free(text);
}

void config_report_text(struct config_report *report, const char *pointer, const char *got,
                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *must_be = text_vprint(format, arguments);
    va_end(arguments);
    if (!must_be || json_object_set_new_nocheck(report->wrong, pointer, json_true()))
        report->exhausted = true;
    else /* the file itself has the empty pointer */
        config_report_add(report, "%s%sgot %s, must be %s", pointer, pointer[0] ? ": " : "", got,
                          must_be);
    free(must_be);
}

/* A value as the file would have it; the caller frees it. NULL: out of memory. */
static char *value_text(const json_t *value)
{
    if (!json_is_real(value))
        return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    /* The shortest that means the same number: "0.1", not "0.10000000000000001". */
    for (int digits = 1;; digits++) {
        char *text = text_print("%.*g", digits, json_real_value(value));
        if (!text || digits == 17 || strtod(text, NULL) == json_real_value(value))
            return text;
        free(text);
    }
}

void config_report_value(struct config_report *report, const char *pointer, const json_t *got,
                         const char *must_be)
{
    if (!got) {
        config_report_text(report, pointer, "nothing", "%s", must_be);
        return;
    }
    char *text = value_text(got);
    if (!text) {
        report->exhausted = true;
        return;
    }
    char quoted[CONFIG_QUOTE_BYTES + 4];
    bool cut = strlen(text) > CONFIG_QUOTE_BYTES;
    size_t length = cut ? shown_cut(text, CONFIG_QUOTE_BYTES) : strlen(text);
    snprintf(quoted, sizeof(quoted), "%.*s%s", (int)length, text, cut ? "..." : "");
    config_report_text(report, pointer, quoted, "%s", must_be);
    free(text);
}

/* Whether `below` is `above` or lies in it. */
static bool pointer_contains(const char *above, const char *below)
{
    size_t length = strlen(above);
    return strncmp(above, below, length) == 0 && (below[length] == '\0' || below[length] == '/');
}

bool config_report_is_wrong(const struct config_report *report, const char *pointer)
{
    const char *wrong;
    json_t *unused;
    json_object_foreach(report->wrong, wrong, unused)
    {
        if (pointer_contains(pointer, wrong) || pointer_contains(wrong, pointer))
            return true;
    }
    return false;
}
