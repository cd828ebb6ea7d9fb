/* A file, in a folder of the test's own, that tells helpers that loop to end: see cluster_helper.
 */
#ifndef TESTS_LIB_STOP_FILE_H
#define TESTS_LIB_STOP_FILE_H

struct stop_file {
    char *directory; /* of suite_make_directory */
    char path[512];
};

void stop_file_create(struct stop_file *file);
void stop_file_free(struct stop_file *file);
/* Tell processes that loop to end their loops. stop_file_withdraw takes it back for those that
 * begin later. */
void stop_file_raise(const struct stop_file *file);
void stop_file_withdraw(const struct stop_file *file);

#endif
