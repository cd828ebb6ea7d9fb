#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"

static const char introduction[] =
    "# Keys of shoald's configuration\n"
    "\n"
    "Made from the table in common/config/config_table.c; `schema.json` is the same for programs.\n"
    "\n"
    "The file is one JSON object; a line that begins with // is a comment. Every key may be left "
    "out "
    "but those that are\n"
    "marked as required. A key that is not here, or stands twice, is an error.\n"
    "`shoald --check-config FILE` names everything that is wrong with a file.\n"
    "`shoald --print-config` prints the configuration in effect with all keys.\n";

#define LINE_MAX_BYTES 120u

/* Bytes of the first word: up to a space that is in no `code`. */
static size_t word_bytes(const char *text)
{
    bool code = false;
    size_t bytes = 0;
    for (; text[bytes] && (text[bytes] != ' ' || code); bytes++)
        code ^= text[bytes] == '`';
    return bytes;
}

void config_print_lines(FILE *out, const char *lead, const char *indent, const char *text)
{
    size_t used = strlen(lead);
    fputs(lead, out);
    for (bool first = true; *text; first = false) {
        size_t bytes = word_bytes(text);
        if (!first && used + 1 + bytes > LINE_MAX_BYTES) {
            fprintf(out, "\n%s", indent);
            used = strlen(indent);
        } else if (!first) {
            fputc(' ', out);
            used++;
        }
        fwrite(text, 1, bytes, out);
        used += bytes;
        text += bytes + (text[bytes] == ' ');
    }
    fputc('\n', out);
}

/* A paragraph, or an item of a list. */
static void print_lines(FILE *out, const char *lead, const char *text)
{
    config_print_lines(out, lead, *lead ? "  " : "", text);
}

/* 0 or ERR_MEMORY. */
static int print_default(FILE *out, const struct config_key *key)
{
    if (key->required) {
        print_lines(out, "* ", "Required.");
        return 0;
    }
    if (key->default_note) {
        print_lines(out, "* Default: ", key->default_note);
        return 0;
    }
    json_t *value = config_key_default(key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (text)
        fprintf(out, "* Default: `%s`%s%s\n", text, key->unit ? " " : "",
                key->unit ? key->unit : "");
    json_decref(value);
    if (!text)
        return ERR_MEMORY;
    free(text);
    return 0;
}

static int reference_print_section(FILE *out, const struct config_section *section,
                                   const char *title)
{
    char allowed[CONFIG_ALLOWED_BYTES];
    int failure = 0;
    fprintf(out, "\n## %s\n\n", title);
    print_lines(out, "", section->text);
    for (size_t i = 0; i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        fprintf(out, "\n### `%s`\n\n", key->name);
        print_lines(out, "", key->text);
        fputc('\n', out);
        config_key_allowed(key, allowed);
        print_lines(out, "* Value: ", allowed);
        failure |= print_default(out, key);
    }
    return failure;
}

char *config_reference(void)
{
    char title[64];
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fputs(introduction, out);
    int failure = reference_print_section(out, &config_sections[0], "Top level");
    snprintf(title, sizeof(title), "`%s` (array of objects)", config_server_section.name);
    failure |= reference_print_section(out, &config_server_section, title);
    for (size_t i = 1; i < config_section_count; i++) {
        snprintf(title, sizeof(title), "`%s`", config_sections[i].name);
        failure |= reference_print_section(out, &config_sections[i], title);
    }
    failure |= ferror(out);
    if (fclose(out) || failure) {
        free(text);
        return NULL;
    }
    return text;
}
