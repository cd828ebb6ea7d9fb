/* The keys of the configuration as the part of doc/man/shoald.json.5 that names them, in mdoc. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"
#include "common/text/size_text.h"

#define LINE_BYTES 78u /* longer lines of text are bad style in mdoc */

/* A page being written: text is filled into lines, and a sentence begins a new one. */
struct manual {
    FILE *out;
    size_t column;
};

static void manual_line_end(struct manual *manual)
{
    if (manual->column > 0)
        fputc('\n', manual->out);
    manual->column = 0;
}

static void manual_bytes(struct manual *manual, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\')
            fputs("\\e", manual->out);
        else
            fputc(text[i], manual->out);
    }
}

static bool manual_sentence_ends(const char *word, size_t length)
{
    while (length > 0 && strchr("\")", word[length - 1]))
        length--;
    return length > 1 && strchr(".?!", word[length - 1]) && word[length - 2] != '\'';
}

static void manual_word(struct manual *manual, const char *word, size_t length)
{
    if (manual->column > 0 && manual->column + 1 + length > LINE_BYTES)
        manual_line_end(manual);
    if (manual->column > 0)
        fputc(' ', manual->out);
    else if (word[0] == '.' || word[0] == '\'')
        fputs("\\&", manual->out); /* else it is taken for a macro */
    manual_bytes(manual, word, length);
    manual->column += length + 1;
    if (manual_sentence_ends(word, length))
        manual_line_end(manual);
}

/* A word between backticks, with the punctuation round it, is a macro's line. Returns where the
 * text goes on. */
static const char *manual_literal(struct manual *manual, const char *text)
{
    manual_line_end(manual);
    fputs(".Ql ", manual->out);
    if (*text == '(') {
        fputs("( ", manual->out);
        text++;
    }
    size_t length = strcspn(text + 1, "`");
    const char *end = text + 1 + length + (text[1 + length] == '`');
    manual_bytes(manual, text + 1, length);
    for (; *end && !isspace((unsigned char)*end); end++)
        fprintf(manual->out, " %c", *end);
    fputc('\n', manual->out);
    return end;
}

static void manual_text(struct manual *manual, const char *text)
{
    while (*(text += strspn(text, " "))) {
        if (text[0] == '`' || (text[0] == '(' && text[1] == '`')) {
            text = manual_literal(manual, text);
            continue;
        }
        size_t length = strcspn(text, " ");
        manual_word(manual, text, length);
        text += length;
    }
}

static void manual_sentence(struct manual *manual, const char *begin, const char *rest)
{
    char text[CONFIG_ALLOWED_BYTES + 64];
    snprintf(text, sizeof(text), "%s %s.", begin, rest);
    manual_text(manual, text);
    manual_line_end(manual);
}

/* 0 or ERR_MEMORY. */
static int manual_default(struct manual *manual, const struct config_key *key)
{
    char shown[128];
    if (key->required || key->default_note) {
        if (key->required)
            manual_text(manual, "Required.");
        else
            manual_sentence(manual, "The default is", key->default_note);
        return 0;
    }
    json_t *value = config_key_default(key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (!text)
        return ERR_MEMORY;
    snprintf(shown, sizeof(shown), "%s%s%s", text, key->unit ? " " : "",
             key->unit ? key->unit : "");
    if (key->unit && strcmp(key->unit, "bytes") == 0) {
        size_t used = strlen(shown);
        char size[SIZE_TEXT_BYTES];
        size_text_print(key->default_number, size, sizeof(size));
        snprintf(shown + used, sizeof(shown) - used, " (%s)", size);
    }
    free(text);
    manual_sentence(manual, "The default is", shown);
    return 0;
}

/* prefix: what stands before the key's name: "data.". */
static int manual_section(struct manual *manual, const struct config_section *section,
                          const char *prefix)
{
    char allowed[CONFIG_ALLOWED_BYTES];
    int failure = 0;
    fprintf(manual->out, ".Ss %s\n", section->name[0] ? section->name : "Top level");
    manual_text(manual, section->text);
    manual_line_end(manual);
    fputs(".Bl -tag -width Ds\n", manual->out);
    for (size_t i = 0; i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        fprintf(manual->out, ".It Cm %s%s\n", prefix, key->name);
        manual_text(manual, key->text);
        manual_line_end(manual);
        failure |= manual_default(manual, key);
        config_key_allowed(key, allowed);
        manual_sentence(manual, "Allowed:", allowed);
    }
    fputs(".El\n", manual->out);
    return failure;
}

char *config_manual(void)
{
    char prefix[64];
    char *text = NULL;
    size_t bytes = 0;
    struct manual manual = {.out = open_memstream(&text, &bytes)};
    if (!manual.out)
        return NULL;
    int failure = manual_section(&manual, &config_sections[0], "");
    snprintf(prefix, sizeof(prefix), "%s[].", config_server_section.name);
    failure |= manual_section(&manual, &config_server_section, prefix);
    for (size_t i = 1; i < config_section_count; i++) {
        snprintf(prefix, sizeof(prefix), "%s.", config_sections[i].name);
        failure |= manual_section(&manual, &config_sections[i], prefix);
    }
    failure |= ferror(manual.out);
    if (fclose(manual.out) || failure) {
        free(text);
        return NULL;
    }
    return text;
}
