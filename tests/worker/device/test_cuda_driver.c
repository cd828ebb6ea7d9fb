/* worker/device/cuda_driver.h says of CUDA's driver what the CUDA Toolkit's cuda.h says. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/lib/cuda/cuda_facts.h"
#include "tests/lib/suite.h"

#define HEADER TEST_SOURCE_DIR "/worker/device/cuda_driver.h"

static const struct cuda_fact *fact_find(const struct cuda_facts *facts, const char *name)
{
    for (size_t i = 0; i < facts->count; i++)
        if (strcmp(facts->table[i].name, name) == 0)
            return &facts->table[i];
    return NULL;
}

/* The first fact in which the two tables differ; NULL: none. */
static const char *facts_difference(struct cuda_facts one, struct cuda_facts other)
{
    for (size_t i = 0; i < one.count; i++) {
        const struct cuda_fact *fact = &one.table[i], *same = fact_find(&other, fact->name);
        if (!same || fact->value != same->value || strcmp(fact->text, same->text) != 0)
            return fact->name;
    }
    return one.count == other.count ? NULL : "their number";
}

START_TEST(test_as_the_toolkit_says)
{
    const char *name = facts_difference(cuda_facts_own(), cuda_facts_toolkit());
    ck_assert_msg(name == NULL, "%s is another one in the toolkit's cuda.h", name);
}
END_TEST

/* The comparison sees a wrong number, a wrong symbol and a fact too many. */
START_TEST(test_the_comparison)
{
    static const struct cuda_fact right[] = {{"A", "", 1}, {"cuF", "cuF_v2", 0}};
    static const struct cuda_fact number[] = {{"A", "", 2}, {"cuF", "cuF_v2", 0}};
    static const struct cuda_fact symbol[] = {{"A", "", 1}, {"cuF", "cuF", 0}};
    struct cuda_facts facts = {right, 2};
    ck_assert_ptr_null(facts_difference(facts, facts));
    ck_assert_str_eq(facts_difference(facts, (struct cuda_facts){number, 2}), "A");
    ck_assert_str_eq(facts_difference(facts, (struct cuda_facts){symbol, 2}), "cuF");
    ck_assert_str_eq(facts_difference(facts, (struct cuda_facts){right, 1}), "cuF");
    ck_assert_str_eq(facts_difference((struct cuda_facts){right, 1}, facts), "their number");
}
END_TEST

static bool ends_with(const char *word, const char *end)
{
    size_t length = strlen(word), end_length = strlen(end);
    return length >= end_length && strcmp(word + length - end_length, end) == 0;
}

/* A name of CUDA's: cuInit, CUresult, CU_STREAM_LEGACY, CUDA_SUCCESS, cuuint32_t. Not the tags and
 * symbols behind one (CUctx_st, cuMemAlloc_v2), which go with it. */
static bool is_of_cuda(const char *word)
{
    if (strlen(word) < 4 || strncasecmp(word, "cu", 2) != 0 || strncmp(word, "cuda_", 5) == 0)
        return false;
    if (ends_with(word, "_st") || ends_with(word, "_v2") || ends_with(word, "_enum"))
        return false;
    return strncmp(word, "CU", 2) == 0 || strncmp(word, "cuuint", 6) == 0 ||
           (strncmp(word, "cu", 2) == 0 && isupper((unsigned char)word[2]));
}

/* Words of the header that are in comments, or its own. */
static bool is_known(const char *word)
{
    static const char *const words[] = {"CUDA", "CUDA_DRIVER_H", "cuMemcpyBatchAsync"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

START_TEST(test_nothing_is_left_out)
{
    FILE *file = fopen(HEADER, "re");
    char word[128];
    size_t length = 0, found = 0;
    const struct cuda_facts own = cuda_facts_own();
    ck_assert_msg(file != NULL, "%s cannot be read", HEADER);
    for (int c = 0; c != EOF;) {
        c = getc(file);
        if (c != EOF && (isalnum(c) || c == '_') && length < sizeof(word) - 1) {
            word[length++] = (char)c;
            continue;
        }
        word[length] = '\0';
        if (is_of_cuda(word) && !is_known(word)) {
            ck_assert_msg(fact_find(&own, word) != NULL,
                          "%s is declared and has no line in tests/lib/cuda/cuda_facts.h", word);
            found++;
        }
        length = 0;
    }
    fclose(file);
    ck_assert_uint_ge(found, own.count / 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_driver");
    TCase *core = tcase_create("core");
    if (cuda_facts_toolkit().count > 0)
        tcase_add_test(core, test_as_the_toolkit_says);
    else
        suite_skip("cuda_driver", "no CUDA Toolkit of 12.8 or later to compare with");
    tcase_add_test(core, test_the_comparison);
    tcase_add_test(core, test_nothing_is_left_out);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
