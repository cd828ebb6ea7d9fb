#include "tests/lib/doc/man_page.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES 512

/* --- words ------------------------------------------------------------------------------------ */

void man_words_add(struct man_words *words, const char *format, ...)
{
    va_list arguments;
    ck_assert_int_lt(words->count, MAN_WORDS_MAX);
    va_start(arguments, format);
    ck_assert_int_ge(vasprintf(&words->words[words->count], format, arguments), 0);
    va_end(arguments);
    words->count++;
}

void man_words_split(struct man_words *words, const char *text, const char *separators)
{
    while (*(text += strspn(text, separators))) {
        size_t length = strcspn(text, separators);
        man_words_add(words, "%.*s", (int)length, text);
        text += length;
    }
}

bool man_words_have(const struct man_words *words, const char *word)
{
    for (int i = 0; i < words->count; i++)
        if (strcmp(words->words[i], word) == 0)
            return true;
    return false;
}

void man_words_clear(struct man_words *words)
{
    for (int i = 0; i < words->count; i++)
        free(words->words[i]);
    words->count = 0;
}

static int words_missing(FILE *out, const char *name, const struct man_words *words,
                         const char *other_name, const struct man_words *other)
{
    int missing = 0;
    for (int i = 0; i < words->count; i++) {
        if (man_words_have(other, words->words[i]))
            continue;
        fprintf(out, "%s has '%s', %s has not\n", name, words->words[i], other_name);
        missing++;
    }
    return missing;
}

char *man_words_compare(const char *name, const struct man_words *one, const char *other_name,
                        const struct man_words *other)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    int missing = words_missing(out, name, one, other_name, other);
    missing += words_missing(out, other_name, other, name, one);
    if (missing == 0 && one->count != other->count)
        fprintf(out, "%s has %d, %s has %d: one is there twice\n", name, one->count, other_name,
                other->count);
    for (int i = 0; missing == 0 && i < one->count && i < other->count; i++) {
        if (strcmp(one->words[i], other->words[i]) == 0)
            continue;
        fprintf(out, "'%s' of %s stands where %s has '%s'\n", one->words[i], name, other_name,
                other->words[i]);
        break;
    }
    fclose(out);
    return text;
}

/* --- pages ------------------------------------------------------------------------------------ */

char *man_file_read(const char *path)
{
    char name[1024];
    snprintf(name, sizeof(name), TEST_SOURCE_DIR "/%s", path);
    FILE *file = fopen(name, "re");
    ck_assert_msg(file != NULL, "%s cannot be read", name);
    char *text = NULL;
    size_t room = 0;
    ck_assert_msg(getdelim(&text, &room, '\0', file) >= 0, "%s is empty", name);
    fclose(file);
    return text;
}

static void page_cut(struct man_page *page)
{
    char *rest = page->text;
    page->count = 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        ck_assert_int_lt(page->count, MAN_LINES_MAX);
        page->lines[page->count++] = line;
    }
}

void man_page_read(struct man_page *page, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "doc/man/%s", name);
    page->text = man_file_read(path);
    page_cut(page);
}

void man_page_parse(struct man_page *page, const char *mdoc)
{
    page->text = strdup(mdoc);
    ck_assert_ptr_nonnull(page->text);
    page_cut(page);
}

void man_page_clear(struct man_page *page)
{
    free(page->text);
    page->text = NULL;
    page->count = 0;
}

bool man_page_section(const struct man_page *page, const char *section, int *begin, int *end)
{
    bool found = false;
    *begin = *end = 0;
    for (int i = 0; i < page->count; i++) {
        if (strncmp(page->lines[i], ".Sh ", 4) != 0)
            continue;
        if (found) {
            *end = i;
            return true;
        }
        found = strcmp(page->lines[i] + 4, section) == 0;
        *begin = i + 1;
    }
    *end = page->count;
    return found;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* The next word at *at, quotes taken off, "\-" as "-"; false at the end of the line. */
static bool token_next(const char **at, char token[TOKEN_BYTES])
{
    const char *from = *at + strspn(*at, " ");
    size_t length = 0;
    if (!*from)
        return false;
    bool quoted = *from == '"';
    from += quoted;
    while (*from && *from != (quoted ? '"' : ' ')) {
        if (from[0] == '\\' && from[1] == '-')
            from++;
        ck_assert_uint_lt(length, TOKEN_BYTES - 1);
        token[length++] = *from++;
    }
    token[length] = '\0';
    *at = from + (quoted && *from == '"');
    return true;
}

void man_line_arguments(const char *line, struct man_words *arguments)
{
    char token[TOKEN_BYTES];
    bool first = true;
    while (token_next(&line, token)) {
        if (!first)
            man_words_add(arguments, "%s", token);
        first = false;
    }
}

static bool is_silent(const char *token)
{
    static const char *const silent[] = {"It", "Nm", "Ar", "Cm", "Ev", "Er", "Dv",
                                         "Pa", "Fa", "Fn", "No", "Vt", "Ic"};
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++)
        if (strcmp(token, silent[i]) == 0)
            return true;
    return false;
}

void man_line_plain(const char *line, char plain[MAN_PLAIN_BYTES])
{
    char token[TOKEN_BYTES], closing[8] = "";
    const char *prefix = "", *before = "";
    size_t used = 0;
    plain[0] = '\0';
    line += *line == '.';
    while (token_next(&line, token)) {
        if (is_silent(token)) {
            prefix = "";
            continue;
        }
        if (strcmp(token, "Fl") == 0) {
            prefix = "-";
            continue;
        }
        if (strcmp(token, "Op") == 0 || strcmp(token, "Pq") == 0) {
            used += (size_t)snprintf(plain + used, MAN_PLAIN_BYTES - used, "%s%c", before,
                                     token[0] == 'O' ? '[' : '(');
            memmove(closing + 1, closing, sizeof(closing) - 2);
            closing[0] = token[0] == 'O' ? ']' : ')';
            before = "";
            continue;
        }
        bool delimiter = strcmp(token, ",") == 0 || strcmp(token, "|") == 0;
        used += (size_t)snprintf(plain + used, MAN_PLAIN_BYTES - used, "%s%s%s",
                                 token[0] == ',' ? "" : before, delimiter ? "" : prefix, token);
        ck_assert_uint_lt(used, MAN_PLAIN_BYTES - sizeof(closing));
        before = " ";
    }
    snprintf(plain + used, MAN_PLAIN_BYTES - used, "%s", closing);
}

void man_page_items(const struct man_page *page, const char *section, const char *macro,
                    struct man_words *items)
{
    char wanted[64], plain[MAN_PLAIN_BYTES];
    int begin, end;
    size_t length = (size_t)snprintf(wanted, sizeof(wanted), ".It %s", macro);
    ck_assert_msg(man_page_section(page, section, &begin, &end), "no section %s", section);
    for (int i = begin; i < end; i++) {
        if (strncmp(page->lines[i], wanted, length) != 0)
            continue;
        man_line_plain(page->lines[i], plain);
        man_words_add(items, "%s", plain);
    }
}

void man_source_variables(const char *source, struct man_words *variables)
{
    for (const char *at = source; (at = strchr(at, '"'));) {
        size_t length = strspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        const char *end = at + 1 + length;
        bool limit = strncmp(at + 1, "RLIMIT_", 7) == 0; /* setrlimit's, in a message */
        if (*end == '"' && length >= 3 && !limit) {
            man_words_add(variables, "%.*s", (int)length, at + 1);
            char *last = variables->words[variables->count - 1];
            variables->count--;
            if (man_words_have(variables, last))
                free(last);
            else
                variables->count++;
        }
        at = *end == '"' ? end + 1 : at + 1;
    }
}
