#include "common/auth/secret.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "tests/lib/suite.h"

#define LINE_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define LINE_B "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"

static char *directory;
static char path[512];

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(auth_init(&error), 0);
    directory = suite_make_directory();
    snprintf(path, sizeof(path), "%s/secret", directory);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void write_bytes(const char *bytes, size_t count, mode_t mode)
{
    unlink(path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void write_secret(const char *text, mode_t mode)
{
    write_bytes(text, strlen(text), mode);
}

static struct secrets load(void)
{
    struct secrets secrets;
    struct error error = {0};
    ck_assert_msg(secrets_load(&secrets, path, &error) == 0, "%s", error.text);
    return secrets;
}

static void expect_refused(const char *piece)
{
    struct secrets secrets;
    struct error error = {0};
    ck_assert_int_eq(secrets_load(&secrets, path, &error), ERR_CONFIG);
    ck_assert_int_eq(error.code, ERR_CONFIG);
    ck_assert_uint_eq(secrets.count, 0);
    ck_assert_msg(strstr(error.text, piece) && strstr(error.text, path), "%s", error.text);
    ck_assert_ptr_null(strstr(error.text, "0123456789abcdef"));
}

START_TEST(test_one)
{
    struct error error;
    write_secret(LINE_A, 0600);
    struct secrets first = load();
    ck_assert_uint_eq(first.count, 1);
    write_secret("\n" LINE_A " \t\r\n\n \n", 0400);
    struct secrets same = load();
    ck_assert_mem_eq(&first, &same, sizeof(first));
    write_secret(LINE_B, 0600);
    struct secrets other = load();
    ck_assert_mem_ne(first.list[0].key, other.list[0].key, SECRET_KEY_BYTES);
    ck_assert_mem_ne(first.list[0].psk, other.list[0].psk, SECRET_KEY_BYTES);
    ck_assert_mem_ne(first.list[0].identity, other.list[0].identity, SECRET_IDENTITY_BYTES);
    ck_assert_mem_ne(first.list[0].key, first.list[0].psk, SECRET_KEY_BYTES);
    struct secrets none;
    ck_assert_int_eq(secrets_load(&none, "", &error), 0);
    ck_assert_uint_eq(none.count, 0);
    secrets_clear(&first);
    ck_assert_uint_eq(first.count, 0);
}
END_TEST

START_TEST(test_two)
{
    write_secret(LINE_A "\n" LINE_B "\n", 0600);
    struct secrets both = load();
    write_secret(LINE_B "\r\n\r\n" LINE_A, 0600);
    struct secrets turned = load();
    ck_assert_uint_eq(both.count, 2);
    ck_assert_mem_eq(&both.list[0], &turned.list[1], sizeof(struct secret));
    ck_assert_mem_eq(&both.list[1], &turned.list[0], sizeof(struct secret));
    write_secret(LINE_A "\n" LINE_A "\n", 0600);
    expect_refused("the same secret twice");
    write_secret(LINE_A "\n" LINE_B "\n" LINE_A "x\n", 0600);
    expect_refused("more than 2 secrets");
}
END_TEST

START_TEST(test_file)
{
    expect_refused("cannot be opened: No such file");
    ck_assert_int_eq(symlink(path, path), 0);
    expect_refused("cannot be opened: Too many levels");
    write_secret(LINE_A, 0640);
    expect_refused("mode 640: group and others must not read it");
    write_secret(LINE_A, 0604);
    expect_refused("mode 604: group and others must not read it");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_refused("not a regular file");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* does not block */
    expect_refused("not a regular file");
}
END_TEST

START_TEST(test_content)
{
    char big[8192];
    write_secret("", 0600);
    expect_refused("no secret in it");
    write_secret(" \n\t\n", 0600);
    expect_refused("no secret in it");
    write_secret("0123456789abcdef0123456789abcdef0123456789\n", 0600);
    expect_refused("a secret of 42 characters");
    write_secret(LINE_A "\nshort\n", 0600);
    expect_refused("a secret of 5 characters");
    write_secret("0123456789abcdef0123456789abcdef 123456789abcdef", 0600);
    expect_refused("a blank, or what is not ASCII");
    write_secret("0123456789abcdef0123456789abcdef\xc3\xa4 123456789abcdef", 0600);
    expect_refused("a blank, or what is not ASCII");
    write_bytes("0123456789abcdef0123456789abcdef\0 0123456789abcdef", 50, 0600);
    expect_refused("a blank, or what is not ASCII");
    memset(big, 'x', sizeof(big));
    write_bytes(big, SECRET_LINE_MOST, 0600);
    ck_assert_uint_eq(load().count, 1);
    write_bytes(big, SECRET_LINE_MOST + 1, 0600);
    expect_refused("a secret of 1025 characters");
    write_bytes(big, sizeof(big), 0600);
    expect_refused("more than 4096 bytes");
}
END_TEST

START_TEST(test_make)
{
    struct error error = {0};
    struct stat status;
    mode_t mask = umask(0);
    ck_assert_msg(secret_make(path, &error) == 0, "%s", error.text);
    umask(mask);
    struct secrets first = load();
    ck_assert_uint_eq(first.count, 1);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0600);
    ck_assert_int_eq(status.st_size, 65);
    ck_assert_int_eq(secret_make(path, &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, "is not overwritten"));
    struct secrets kept = load();
    ck_assert_mem_eq(&first, &kept, sizeof(first));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(secret_make(path, &error), 0);
    struct secrets second = load();
    ck_assert_mem_ne(first.list[0].key, second.list[0].key, SECRET_KEY_BYTES);
    ck_assert_int_eq(secret_make("/nowhere/secret", &error), ERR_SYSTEM);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("secret");
    TCase *cases = tcase_create("all");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_one);
    tcase_add_test(cases, test_two);
    tcase_add_test(cases, test_file);
    tcase_add_test(cases, test_content);
    tcase_add_test(cases, test_make);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
