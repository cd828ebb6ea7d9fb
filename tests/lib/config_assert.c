#include "tests/lib/config_assert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

char *config_file_read(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    for (int byte; (byte = fgetc(file)) != EOF;)
        fputc(byte, out);
    fclose(file);
    fclose(out);
    return text;
}

void config_file_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

void config_assert_good(struct config *config, const char *text)
{
    struct config_problems problems;
    int result = config_parse(config, text, "test", &problems);
    ck_assert_msg(result == 0, "refused: %s", problems.count ? problems.lines[0] : "no reason");
    config_problems_clear(&problems);
}

void config_assert_equal(const struct config *a, const struct config *b)
{
    ck_assert_uint_eq(a->server_count, b->server_count);
    for (uint32_t i = 0; i < a->server_count; i++) {
        ck_assert_str_eq(a->servers[i].name, b->servers[i].name);
        ck_assert_str_eq(a->servers[i].address, b->servers[i].address);
        ck_assert_uint_eq(a->servers[i].port, b->servers[i].port);
        ck_assert_uint_eq(a->servers[i].weight, b->servers[i].weight);
    }
    /* Everything else is plain fields, and padding that memset has made zero. */
    struct config x = *a;
    struct config y = *b;
    x.servers = y.servers = NULL;
    ck_assert_mem_eq(&x, &y, sizeof(x));
}

void config_assert_prints_back(const struct config *config)
{
    struct config again;
    char *text = config_print(config);
    ck_assert_ptr_nonnull(text);
    config_assert_good(&again, text);
    config_assert_equal(config, &again);
    char *second = config_print(&again);
    ck_assert_str_eq(text, second);
    free(text);
    free(second);
    config_clear(&again);
}
