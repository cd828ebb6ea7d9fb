/* The optical-digits data: rows of 64 pixels from 0 to 16 and a label from 0 to 9, as CSV. */
#ifndef WORKER_EXAMPLES_DIGITS_DATASET_H
#define WORKER_EXAMPLES_DIGITS_DATASET_H

#include <stddef.h>
#include <stdint.h>

enum {
    DATASET_PIXELS = 64,
    DATASET_PIXEL_MAX = 16,
    DATASET_CLASSES = 10,
    DATASET_COLUMNS = DATASET_PIXELS + 1,
    DATASET_BYTES_MAX = 64 * 1024 * 1024, /* of a file */
    DATASET_HOLD_OUT_EVERY = 5,           /* every fifth row is held out for the test */
    DATASET_ERROR_BYTES = 512
};

struct dataset {
    size_t row_count;
    float *pixels;         /* [row_count][DATASET_PIXELS], divided by 16: 0 to 1 */
    unsigned char *labels; /* [row_count] */
};

/* Read CSV text without a header line; lines end with LF or CRLF. `name` stands in messages. On
 * success *dataset is the caller's (dataset_free). SHOAL_EINVALID with line and column (counted
 * from 1) in `error`, of DATASET_ERROR_BYTES; SHOAL_EMEMORY. */
int dataset_parse(const char *text, size_t length, const char *name, struct dataset *dataset,
                  char *error);
/* Read a data set from a file as dataset_parse does from text. SHOAL_ESYSTEM when the file cannot
 * be read, SHOAL_EINVALID when it is too long. */
int dataset_load(const char *path, struct dataset *dataset, char *error);
/* Look for digits.csv in the source tree or the installation that the program `executable` stands
 * in, going up from its folder. 0 and the path, or SHOAL_EINVALID. */
int dataset_find(const char *executable, char *path, size_t path_bytes);
void dataset_free(struct dataset *dataset);

/* Share out the rows: every DATASET_HOLD_OUT_EVERY-th to `test`, the others to `training`. Both are
 * the caller's. SHOAL_EINVALID when one of them would be empty, SHOAL_EMEMORY. */
int dataset_split(const struct dataset *dataset, struct dataset *training, struct dataset *test);

/* Copy the rows order[0..count) together. */
void dataset_gather(const struct dataset *dataset, const uint32_t *order, size_t count,
                    float *pixels, unsigned char *labels);

#endif
