/* The input of the digits example, which is its data and its command line; and how the program
 * ends. */
#include "tests/lib/suite.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/examples/digits/dataset.h"
#include "worker/examples/digits/options.h"
#include "worker/shoal.h"

#define DATA_PATH TEST_SOURCE_DIR "/worker/examples/digits/digits.csv"

/* --- data ------------------------------------------------------------------------------------ */

/* `count` good lines: pixel p of line l is (l + p) % 17, the label l % 10. */
static char *good_lines(size_t count, const char *end, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    ck_assert_ptr_nonnull(out);
    for (size_t line = 0; line < count; line++) {
        for (size_t pixel = 0; pixel < DATASET_PIXELS; pixel++)
            fprintf(out, "%zu,", (line + pixel) % 17);
        fprintf(out, "%zu%s", line % 10, end);
    }
    fclose(out);
    return text;
}

static void check_good(const char *text, size_t length, size_t rows)
{
    struct dataset dataset;
    char error[DATASET_ERROR_BYTES] = "";
    ck_assert_msg(dataset_parse(text, length, "x", &dataset, error) == 0, "%s", error);
    ck_assert_uint_eq(dataset.row_count, rows);
    for (size_t row = 0; row < rows; row++) {
        ck_assert_uint_eq(dataset.labels[row], row % 10);
        for (size_t pixel = 0; pixel < DATASET_PIXELS; pixel++)
            ck_assert_float_eq(dataset.pixels[row * DATASET_PIXELS + pixel],
                               (float)((row + pixel) % 17) / 16.0F);
    }
    dataset_free(&dataset);
    ck_assert_ptr_null(dataset.pixels);
}

static void check_bad(const char *text, size_t length, const char *message)
{
    struct dataset dataset = {.row_count = 77};
    char error[DATASET_ERROR_BYTES] = "";
    /* In memory of its own, so that a read past the end is seen by the sanitizer. */
    char *copy = malloc(length > 0 ? length : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, length);
    ck_assert_int_eq(dataset_parse(copy, length, "x.csv", &dataset, error), SHOAL_EINVALID);
    ck_assert_str_eq(error, message);
    ck_assert_uint_eq(dataset.row_count, 77);
    free(copy);
}

START_TEST(parse_takes_every_line_end)
{
    size_t length;
    char *text = good_lines(23, "\n", &length);
    check_good(text, length, 23);
    check_good(text, length - 1, 23); /* the last line need not end */
    free(text);
    text = good_lines(5, "\r\n", &length);
    check_good(text, length, 5);
    free(text);
}
END_TEST

START_TEST(parse_refuses_empty_text)
{
    check_bad("", 0, "x.csv: line 1, column 1: no rows");
    check_bad("\n", 1, "x.csv: line 1, column 1: '' is not a pixel from 0 to 16");
}
END_TEST

/* Replace a field of line 3 of 4 by something else. */
static void check_field(size_t column, const char *value, const char *message)
{
    size_t length, changed_length;
    char *text = good_lines(4, "\n", &length), *changed = NULL, *field = text;
    for (int line = 1; line < 3; line++)
        field = strchr(field, '\n') + 1;
    for (size_t c = 1; c < column; c++)
        field = strchr(field, ',') + 1;
    FILE *out = open_memstream(&changed, &changed_length);
    ck_assert_ptr_nonnull(out);
    fwrite(text, 1, (size_t)(field - text), out);
    fputs(value, out);
    fputs(field + strcspn(field, ",\n"), out);
    fclose(out);
    check_bad(changed, changed_length, message);
    free(changed);
    free(text);
}

START_TEST(parse_names_line_and_column)
{
    check_field(1, "17", "x.csv: line 3, column 1: '17' is not a pixel from 0 to 16");
    check_field(64, "99", "x.csv: line 3, column 64: '99' is not a pixel from 0 to 16");
    check_field(65, "10", "x.csv: line 3, column 65: '10' is not a label from 0 to 9");
    check_field(7, "", "x.csv: line 3, column 7: '' is not a pixel from 0 to 16");
    check_field(7, "-1", "x.csv: line 3, column 7: '-1' is not a pixel from 0 to 16");
    check_field(7, "+1", "x.csv: line 3, column 7: '+1' is not a pixel from 0 to 16");
    check_field(7, " 1", "x.csv: line 3, column 7: ' 1' is not a pixel from 0 to 16");
    check_field(7, "1.5", "x.csv: line 3, column 7: '1.5' is not a pixel from 0 to 16");
    check_field(7, "1e1", "x.csv: line 3, column 7: '1e1' is not a pixel from 0 to 16");
    check_field(7, "0x1", "x.csv: line 3, column 7: '0x1' is not a pixel from 0 to 16");
    check_field(7, "007", "x.csv: line 3, column 7: '007' is not a pixel from 0 to 16");
    check_field(7, "\x1b[m", "x.csv: line 3, column 7: '?[m' is not a pixel from 0 to 16");
    check_field(65, "9\r\r", "x.csv: line 3, column 65: '9?' is not a label from 0 to 9");
    check_field(2, "4294967296000000000000000000000",
                "x.csv: line 3, column 2: '42949672960000000000000' is not a pixel from 0 to 16");
}
END_TEST

START_TEST(parse_wants_65_columns)
{
    check_field(65, "1,2", "x.csv: line 3, column 66: one column too many; a row has 65");
    check_field(65, "1,", "x.csv: line 3, column 66: one column too many; a row has 65");
    check_field(65, "1\n1,2,3", "x.csv: line 4, column 4: the line ends; a row has 65 columns");
    check_field(65, "1\n\n", "x.csv: line 4, column 1: '' is not a pixel from 0 to 16");
    check_bad("1,2", 3, "x.csv: line 1, column 3: the line ends; a row has 65 columns");
    check_bad("label", 5, "x.csv: line 1, column 1: 'label' is not a pixel from 0 to 16");
}
END_TEST

START_TEST(parse_refuses_a_zero_byte)
{
    check_bad("1,\0,", 4, "x.csv: line 1, column 2: '?' is not a pixel from 0 to 16");
}
END_TEST

/* A text cut off anywhere is refused, except where the cut leaves a whole last line. */
START_TEST(parse_refuses_a_text_cut_off)
{
    size_t length;
    char *text = good_lines(2, "\n", &length);
    for (size_t cut = 0; cut < length - 1; cut++) {
        struct dataset dataset;
        char error[DATASET_ERROR_BYTES] = "";
        char *copy = malloc(cut + 1);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, text, cut);
        int result = dataset_parse(copy, cut, "x", &dataset, error);
        size_t commas = 0; /* in the last line */
        for (size_t i = 0; i < cut; i++)
            commas = copy[i] == '\n' ? 0 : commas + (copy[i] == ',');
        int whole = cut > 0 &&
                    (copy[cut - 1] == '\n' || (commas == DATASET_PIXELS && copy[cut - 1] != ','));
        ck_assert_int_eq(result, whole ? 0 : SHOAL_EINVALID);
        if (result == 0)
            dataset_free(&dataset);
        free(copy);
    }
    free(text);
}
END_TEST

START_TEST(the_data_is_what_it_should_be)
{
    static const size_t of_label[DATASET_CLASSES] = {178, 182, 177, 183, 181,
                                                     182, 181, 179, 174, 180};
    size_t counts[DATASET_CLASSES] = {0};
    struct dataset dataset, training, test;
    char error[DATASET_ERROR_BYTES] = "";
    ck_assert_msg(dataset_load(DATA_PATH, &dataset, error) == 0, "%s", error);
    ck_assert_uint_eq(dataset.row_count, 1797);
    float greatest = 0.0F;
    for (size_t row = 0; row < dataset.row_count; row++)
        counts[dataset.labels[row]]++;
    for (size_t i = 0; i < dataset.row_count * DATASET_PIXELS; i++)
        greatest = dataset.pixels[i] > greatest ? dataset.pixels[i] : greatest;
    ck_assert_mem_eq(counts, of_label, sizeof counts);
    ck_assert_float_eq(greatest, 1.0F);

    ck_assert_int_eq(dataset_split(&dataset, &training, &test), 0);
    ck_assert_uint_eq(training.row_count, 1438);
    ck_assert_uint_eq(test.row_count, 359);
    size_t row_bytes = DATASET_PIXELS * sizeof(float);
    for (size_t row = 0; row < test.row_count; row++) {
        ck_assert_uint_eq(test.labels[row], dataset.labels[row * 5 + 4]);
        ck_assert_mem_eq(test.pixels + row * DATASET_PIXELS,
                         dataset.pixels + (row * 5 + 4) * DATASET_PIXELS, row_bytes);
    }
    for (size_t row = 0; row < training.row_count; row++)
        ck_assert_mem_eq(training.pixels + row * DATASET_PIXELS,
                         dataset.pixels + (row / 4 * 5 + row % 4) * DATASET_PIXELS, row_bytes);
    dataset_free(&dataset);
    dataset_free(&training);
    dataset_free(&test);
}
END_TEST

START_TEST(split_wants_five_rows)
{
    size_t length;
    char *text = good_lines(4, "\n", &length), error[DATASET_ERROR_BYTES];
    struct dataset dataset, training, test;
    ck_assert_int_eq(dataset_parse(text, length, "x", &dataset, error), 0);
    ck_assert_int_eq(dataset_split(&dataset, &training, &test), SHOAL_EINVALID);
    dataset_free(&dataset);
    free(text);
    text = good_lines(5, "\n", &length);
    ck_assert_int_eq(dataset_parse(text, length, "x", &dataset, error), 0);
    ck_assert_int_eq(dataset_split(&dataset, &training, &test), 0);
    ck_assert_uint_eq(training.row_count, 4);
    ck_assert_uint_eq(test.row_count, 1);
    ck_assert_uint_eq(test.labels[0], 4);
    dataset_free(&dataset);
    dataset_free(&training);
    dataset_free(&test);
    free(text);
}
END_TEST

START_TEST(gather_follows_the_order)
{
    static const uint32_t order[] = {7, 0, 7, 3};
    size_t length;
    char *text = good_lines(8, "\n", &length), error[DATASET_ERROR_BYTES];
    struct dataset dataset;
    float pixels[4 * DATASET_PIXELS];
    unsigned char labels[4];
    ck_assert_int_eq(dataset_parse(text, length, "x", &dataset, error), 0);
    dataset_gather(&dataset, order, 4, pixels, labels);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(labels[i], order[i]);
        ck_assert_mem_eq(pixels + i * DATASET_PIXELS, dataset.pixels + order[i] * DATASET_PIXELS,
                         DATASET_PIXELS * sizeof(float));
    }
    dataset_free(&dataset);
    free(text);
}
END_TEST

START_TEST(load_tells_what_cannot_be_read)
{
    struct dataset dataset;
    char error[DATASET_ERROR_BYTES] = "";
    ck_assert_int_eq(dataset_load("/does/not/exist.csv", &dataset, error), SHOAL_ESYSTEM);
    ck_assert_str_eq(error, "/does/not/exist.csv: cannot be opened: No such file or directory");
    ck_assert_int_eq(dataset_load("/", &dataset, error), SHOAL_ESYSTEM);
    ck_assert_str_eq(error, "/: cannot be read: Is a directory");
    ck_assert_int_eq(dataset_load("/dev/null", &dataset, error), SHOAL_EINVALID);
    ck_assert_str_eq(error, "/dev/null: line 1, column 1: no rows");
    ck_assert_int_eq(dataset_load("/dev/zero", &dataset, error), SHOAL_EINVALID);
    ck_assert_str_eq(error, "/dev/zero: longer than 67108864 bytes");
}
END_TEST

static void make_file(const char *directory, const char *folder, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, folder);
    for (char *slash = path + strlen(directory) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
    strncat(path, "/", sizeof path - strlen(path) - 1);
    strncat(path, name, sizeof path - strlen(path) - 1);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
}

START_TEST(find_looks_upwards)
{
    char *directory = suite_make_directory(), program[PATH_MAX], found[PATH_MAX];
    char expected[PATH_MAX];
    snprintf(program, sizeof program, "%s/tree/build/asan/bin/shoal-digits", directory);
    ck_assert_int_eq(dataset_find(program, found, sizeof found), SHOAL_EINVALID);
    ck_assert_int_eq(dataset_find("shoal-digits", found, sizeof found), SHOAL_EINVALID);
    ck_assert_int_eq(dataset_find("", found, sizeof found), SHOAL_EINVALID);
    make_file(directory, "share/shoal", "digits.csv");
    ck_assert_int_eq(dataset_find(program, found, sizeof found), 0);
    snprintf(expected, sizeof expected, "%s/share/shoal/digits.csv", directory);
    ck_assert_str_eq(found, expected);
    make_file(directory, "tree/worker/examples/digits", "digits.csv");
    ck_assert_int_eq(dataset_find(program, found, sizeof found), 0);
    snprintf(expected, sizeof expected, "%s/tree/worker/examples/digits/digits.csv", directory);
    ck_assert_str_eq(found, expected);
    ck_assert_int_eq(dataset_find(program, found, strlen(directory) + 8), SHOAL_EINVALID);
    suite_remove_directory(directory);
}
END_TEST

/* --- the command line ------------------------------------------------------------------------ */

static int parse(struct options *options, char *error, const char *line)
{
    static char copy[512];
    char *arguments[64] = {NULL};
    static char program[] = "shoal-digits";
    int count = 0;
    arguments[count++] = program;
    snprintf(copy, sizeof copy, "%s", line);
    char *rest = NULL;
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        arguments[count++] = word;
    error[0] = '\0';
    return options_parse(count, arguments, options, error);
}

START_TEST(options_have_defaults)
{
    struct options options;
    char error[OPTIONS_ERROR_BYTES];
    ck_assert_int_eq(parse(&options, error, ""), 0);
    ck_assert_ptr_null(options.data_path);
    ck_assert_ptr_null(options.save_path);
    ck_assert_uint_eq(options.network.layer_count, 4);
    ck_assert_uint_eq(options.network.widths[0], 64);
    ck_assert_uint_eq(options.network.widths[4], 10);
    ck_assert_uint_eq(options.plan.epochs, 20);
    ck_assert_uint_eq(options.plan.batch_rows, 128);
    ck_assert_double_eq(options.accuracy_min, 0.95);
    ck_assert(options.verify && !options.single && !options.help);
}
END_TEST

START_TEST(options_are_taken)
{
    struct options options;
    char error[OPTIONS_ERROR_BYTES];
    int result = parse(&options, error,
                       "--data a.csv --epochs 3 --batch=7 --seed 18446744073709551615 --hidden "
                       "12,8192 --learning-rate 0.5 --momentum 0 --threshold-bytes 1000 "
                       "--first-buffer-bytes 10 --accuracy-min 0.25 --save p.{rank} --no-verify "
                       "--single --help");
    ck_assert_msg(result == 0, "%s", error);
    ck_assert_str_eq(options.data_path, "a.csv");
    ck_assert_str_eq(options.save_path, "p.{rank}");
    ck_assert_uint_eq(options.plan.epochs, 3);
    ck_assert_uint_eq(options.plan.batch_rows, 7);
    ck_assert_uint_eq(options.plan.seed, UINT64_MAX);
    ck_assert_uint_eq(options.network.layer_count, 3);
    ck_assert_uint_eq(options.network.widths[0], 64);
    ck_assert_uint_eq(options.network.widths[1], 12);
    ck_assert_uint_eq(options.network.widths[2], 8192);
    ck_assert_uint_eq(options.network.widths[3], 10);
    ck_assert_float_eq(options.plan.learning_rate, 0.5F);
    ck_assert_float_eq(options.plan.momentum, 0.0F);
    ck_assert_uint_eq(options.threshold_bytes, 1000);
    ck_assert_uint_eq(options.first_buffer_bytes, 10);
    ck_assert_double_eq(options.accuracy_min, 0.25);
    ck_assert(!options.verify && options.single && options.help);
}
END_TEST

START_TEST(options_that_are_wrong_are_named)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--epochs", "--epochs: a value is missing"},
        {"--epochs 0", "--epochs: '0' is not a whole number from 1 to 100000"},
        {"--epochs 3x", "--epochs: '3x' is not a whole number from 1 to 100000"},
        {"--epochs -3", "--epochs: '-3' is not a whole number from 1 to 100000"},
        {"--epochs +3", "--epochs: '+3' is not a whole number from 1 to 100000"},
        {"--epochs=", "--epochs: '' is not a whole number from 1 to 100000"},
        {"--batch 1000001", "--batch: '1000001' is not a whole number from 1 to 1000000"},
        {"--seed 18446744073709551616",
         "--seed: '18446744073709551616' is not a whole number from 0 to 18446744073709551615"},
        {"--hidden 1,,2", "--hidden: '1,,2' is not a list of 1 to 7 widths from 1 to 8192"},
        {"--device tpu", "--device: 'tpu' is not cpu or cuda"},
        {"--single --device cuda", "--device cuda: not with --single"},
        {"--hidden 1,", "--hidden: '1,' is not a list of 1 to 7 widths from 1 to 8192"},
        {"--hidden 8193", "--hidden: '8193' is not a list of 1 to 7 widths from 1 to 8192"},
        {"--hidden 1,2,3,4,5,6,7,8",
         "--hidden: '1,2,3,4,5,6,7,8' is not a list of 1 to 7 widths from 1 to 8192"},
        {"--hidden -1", "--hidden: '-1' is not a list of 1 to 7 widths from 1 to 8192"},
        {"--momentum 1.5", "--momentum: '1.5' is not a number from 0 to 1"},
        {"--momentum nan", "--momentum: 'nan' is not a number from 0 to 1"},
        {"--learning-rate inf", "--learning-rate: 'inf' is not a number from 0 to 100"},
        {"--learning-rate 1,5", "--learning-rate: '1,5' is not a number from 0 to 100"},
        {"--accuracy-min 95", "--accuracy-min: '95' is not a number from 0 to 1"},
        {"--nope", "--nope: no such option"},
        {"-x", "-x: no such option"},
        {"--s", "--s: no such option"}, /* --seed, --save or --single */
        {"--single=1", "--single=1: this option takes no value"},
        {"--single digits.csv", "'digits.csv': not an option"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct options options = {.threshold_bytes = 4711};
        char error[OPTIONS_ERROR_BYTES];
        ck_assert_msg(parse(&options, error, cases[i].line) == SHOAL_EINVALID, "%s", cases[i].line);
        ck_assert_str_eq(error, cases[i].message);
        ck_assert_uint_eq(options.threshold_bytes, 4711); /* set only on success */
    }
}
END_TEST

START_TEST(help_names_every_option)
{
    static const char *const names[] = {
        "--data ",          "--epochs ",    "--batch ",           "--seed ", "--hidden ",
        "--learning-rate ", "--momentum ",  "--threshold-bytes ", "--save ", "--first-buffer-bytes",
        "--accuracy-min ",  "--no-verify ", "--single ",          "--help ",
    };
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    options_print_help(out);
    fclose(out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_msg(strstr(text, names[i]) != NULL, "%s", names[i]);
    free(text);
}
END_TEST

START_TEST(save_path_names_the_rank)
{
    char path[16];
    ck_assert_int_eq(options_save_path("p.{rank}", 12, path, sizeof path), 0);
    ck_assert_str_eq(path, "p.12");
    ck_assert_int_eq(options_save_path("{rank}/{rank}%s", 0, path, sizeof path), 0);
    ck_assert_str_eq(path, "0/0%s");
    ck_assert_int_eq(options_save_path("{ran", 0, path, sizeof path), 0);
    ck_assert_str_eq(path, "{ran");
    ck_assert_int_eq(options_save_path("123456789012345", 0, path, sizeof path), 0);
    ck_assert_int_eq(options_save_path("1234567890123456", 0, path, sizeof path), SHOAL_EINVALID);
    ck_assert_int_eq(options_save_path("", 0, path, sizeof path), SHOAL_EINVALID);
}
END_TEST

/* --- the program ----------------------------------------------------------------------------- */

static const char program[] = TEST_BUILD_DIR "/bin/shoal-digits";

/* Run the program; `output` receives what it wrote. Returns the exit status. */
static int run_program(const char *arguments, char *output, size_t output_bytes)
{
    char command[PATH_MAX + 512];
    snprintf(command, sizeof command, "'%s' %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "re");
    ck_assert_ptr_nonnull(pipe);
    output[fread(output, 1, output_bytes - 1, pipe)] = '\0';
    int status = pclose(pipe);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(program_ends_as_its_checks_do)
{
    char *directory = suite_make_directory(), arguments[2 * PATH_MAX], output[8192];
    char path[PATH_MAX];
    ck_assert_int_eq(run_program("--single --epochs 2 --accuracy-min 0.5", output, sizeof output),
                     0);
    ck_assert_ptr_nonnull(strstr(output, "PASS  test accuracy 0."));
    ck_assert_int_eq(run_program("--single --epochs 1 --accuracy-min 1", output, sizeof output), 1);
    ck_assert_ptr_nonnull(strstr(output, "FAIL  test accuracy 0."));
    ck_assert_int_eq(run_program("--single --epochs nought", output, sizeof output), 2);
    ck_assert_int_eq(run_program("--help", output, sizeof output), 0);

    snprintf(path, sizeof path, "%s/bad.csv", directory);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("1,2,three\n", file);
    fclose(file);
    snprintf(arguments, sizeof arguments, "--single --data %s", path);
    ck_assert_int_eq(run_program(arguments, output, sizeof output), 2);
    ck_assert_ptr_nonnull(strstr(output, "line 1, column 3: 'three' is not a pixel"));
    snprintf(arguments, sizeof arguments, "--single --data %s/none.csv", directory);
    ck_assert_int_eq(run_program(arguments, output, sizeof output), 2);
    ck_assert_ptr_nonnull(strstr(output, "No such file or directory"));
    suite_remove_directory(directory);
}
END_TEST

START_TEST(program_saves_the_parameters)
{
    char *directory = suite_make_directory(), arguments[2 * PATH_MAX], output[8192];
    static const char *const names[] = {"a.{rank}", "b"};
    char path[PATH_MAX];
    unsigned char read[2][(64 * 3 + 3 + 3 * 10 + 10) * 4 + 1];
    for (int i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments,
                 "--single --epochs 1 --hidden 3 --accuracy-min 0 --save '%s/%s'", directory,
                 names[i]);
        ck_assert_int_eq(run_program(arguments, output, sizeof output), 0);
        snprintf(path, sizeof path, "%s/%s", directory, i == 0 ? "a.0" : "b");
        FILE *file = fopen(path, "rb");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fread(read[i], 1, sizeof read[i], file), sizeof read[i] - 1);
        fclose(file);
    }
    ck_assert_mem_eq(read[0], read[1], sizeof read[0] - 1);
    snprintf(arguments, sizeof arguments,
             "--single --epochs 1 --hidden 3 --accuracy-min 0 --save '%s/none/p'", directory);
    ck_assert_int_eq(run_program(arguments, output, sizeof output), 1);
    ck_assert_ptr_nonnull(strstr(output, "none/p: cannot be written: No such file or directory"));
    suite_remove_directory(directory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("digits input");
    TCase *tcase = tcase_create("data");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, parse_takes_every_line_end);
    tcase_add_test(tcase, parse_refuses_empty_text);
    tcase_add_test(tcase, parse_names_line_and_column);
    tcase_add_test(tcase, parse_wants_65_columns);
    tcase_add_test(tcase, parse_refuses_a_zero_byte);
    tcase_add_test(tcase, parse_refuses_a_text_cut_off);
    tcase_add_test(tcase, the_data_is_what_it_should_be);
    tcase_add_test(tcase, split_wants_five_rows);
    tcase_add_test(tcase, gather_follows_the_order);
    tcase_add_test(tcase, load_tells_what_cannot_be_read);
    tcase_add_test(tcase, find_looks_upwards);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("options");
    tcase_add_test(tcase, options_have_defaults);
    tcase_add_test(tcase, options_are_taken);
    tcase_add_test(tcase, options_that_are_wrong_are_named);
    tcase_add_test(tcase, help_names_every_option);
    tcase_add_test(tcase, save_path_names_the_rank);
    suite_add_tcase(suite, tcase);
    if (access(program, X_OK) == 0) {
        tcase = tcase_create("program");
        tcase_set_timeout(tcase, 120);
        tcase_add_test(tcase, program_ends_as_its_checks_do);
        tcase_add_test(tcase, program_saves_the_parameters);
        suite_add_tcase(suite, tcase);
    } else {
        suite_skip("program_ends_as_its_checks_do", "%s is not built", program);
        suite_skip("program_saves_the_parameters", "%s is not built", program);
    }
    return suite_main(suite);
}
