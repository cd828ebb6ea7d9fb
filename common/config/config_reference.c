#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"

static const char introduction[] =
    "# Keys of shoald's configuration\n"
    "\n"
    "Made from the table in common/config/config_table.c; `schema.json` is the same for programs. "
    "The "
    "file "
    "is one JSON\n"
    "object; every key but the ones marked as required may be left out. A key that is not "
    "here, or stands twice,\n"
    "is an error. `shoald --check-config FILE` names everything that is wrong with a file, "
    "`shoald --print-config`\n"
    "prints the configuration in effect with all keys.\n";

/* A table cell must not contain a bare '|'. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* 0 or ERR_MEMORY. */
static int print_default(FILE *out, const struct config_key *key)
{
    if (key->required || key->default_note) {
        print_cell(out, key->required ? "required" : key->default_note);
        return 0;
    }
    json_t *value = config_key_default(key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (text)
        fprintf(out, "`%s`", text);
    json_decref(value);
    if (!text)
        return ERR_MEMORY;
    free(text);
    return 0;
}

static int print_section(FILE *out, const struct config_section *section, const char *title)
{
    char allowed[CONFIG_ALLOWED_BYTES];
    int failure = 0;
    fprintf(out, "\n## %s\n\n%s\n\n", title, section->text);
    fputs("| key | unit | default | allowed | what it is |\n|---|---|---|---|---|\n", out);
    for (size_t i = 0; i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        fprintf(out, "| `%s` | %s | ", key->name, key->unit ? key->unit : "");
        failure |= print_default(out, key);
        config_key_allowed(key, allowed);
        fputs(" | ", out);
        print_cell(out, allowed);
        fputs(" | ", out);
        print_cell(out, key->text);
        fputs(" |\n", out);
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
    int failure = print_section(out, &config_sections[0], "Top level");
    snprintf(title, sizeof(title), "`%s` (array of objects)", config_server_section.name);
    failure |= print_section(out, &config_server_section, title);
    for (size_t i = 1; i < config_section_count; i++) {
        snprintf(title, sizeof(title), "`%s`", config_sections[i].name);
        failure |= print_section(out, &config_sections[i], title);
    }
    failure |= ferror(out);
    if (fclose(out) || failure) {
        free(text);
        return NULL;
    }
    return text;
}
