/* The tests of the configuration share these functions. Each fails the running test when it cannot
 * do what it says. */
#ifndef TESTS_LIB_CONFIG_ASSERT_H
#define TESTS_LIB_CONFIG_ASSERT_H

#include "common/config/config.h"

/* The file's text, the caller's to free; NULL when it cannot be opened. */
char *config_file_read(const char *path);
void config_file_write(const char *path, const char *text);

/* Parse text that must be good; the caller clears *config. */
void config_assert_good(struct config *config, const char *text);
void config_assert_equal(const struct config *a, const struct config *b);
/* Print the configuration, and load the text again: the result must equal it, and print the
 * same. */
void config_assert_prints_back(const struct config *config);

#endif
