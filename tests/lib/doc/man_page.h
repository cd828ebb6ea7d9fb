/* The manual pages of doc/man/ as tests read them: their mdoc source, without mandoc. Every
 * function fails the running test when it cannot do what it says. */
#ifndef TESTS_LIB_DOC_MAN_PAGE_H
#define TESTS_LIB_DOC_MAN_PAGE_H

#include <stdbool.h>

#define MAN_LINES_MAX 4096
#define MAN_PLAIN_BYTES 1024
#define MAN_WORDS_MAX 128

/* A list of words in order; freed by man_words_clear. */
struct man_words {
    char *words[MAN_WORDS_MAX];
    int count;
};

void man_words_add(struct man_words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The words of a text between any of the separators. */
void man_words_split(struct man_words *words, const char *text, const char *separators);
bool man_words_have(const struct man_words *words, const char *word);
void man_words_clear(struct man_words *words);
/* "" when both lists are equal, else what stands in one of them alone, or that the order differs.
 * The caller frees it. */
char *man_words_compare(const char *name, const struct man_words *one, const char *other_name,
                        const struct man_words *other);

struct man_page {
    char *text; /* the lines' own memory */
    char *lines[MAN_LINES_MAX];
    int count;
};

/* A file of the source tree: "worker/shoal.h". The caller frees it. */
char *man_file_read(const char *path);
/* doc/man/NAME, or mdoc from memory. */
void man_page_read(struct man_page *page, const char *name);
void man_page_parse(struct man_page *page, const char *mdoc);
void man_page_clear(struct man_page *page);

/* Lines of a section, from its first to one before *end; false: there is none. */
bool man_page_section(const struct man_page *page, const char *section, int *begin, int *end);

/* A macro's line as it is shown, without its ".It": ".It Fl c , Fl -config Ar FILE" is
 * "-c, --config FILE". */
void man_line_plain(const char *line, char plain[MAN_PLAIN_BYTES]);
/* The arguments of a macro's line as they stand there, quotes taken off. */
void man_line_arguments(const char *line, struct man_words *arguments);

/* The items (.It) of a section whose first macro is `macro`, as they are shown. */
void man_page_items(const struct man_page *page, const char *section, const char *macro,
                    struct man_words *items);

/* The string literals of a C source that can be nothing but variables of the environment: capitals
 * and "_" alone, three or more; each once, in the order of the source. */
void man_source_variables(const char *source, struct man_words *variables);

#endif
