#include "tests/lib/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEP_MS 20
#define WORDS_MAX 48

static void process_die(const char *what)
{
    fprintf(stderr, "test process: %s: %s\n", what, strerror(errno));
    abort();
}

int64_t process_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool wait_until(bool (*condition)(void *context), void *context, int timeout_ms)
{
    int64_t until = process_now_ms() + timeout_ms;
    while (!condition(context)) {
        if (process_now_ms() >= until)
            return false;
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

bool socket_answers(void *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", (const char *)path);
    bool answers = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return answers;
}

static _Noreturn void child_execute(const struct process_start *start, int output, int errors,
                                    pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int input = open("/dev/null", O_RDONLY);
    if (getppid() != parent || input < 0 || dup2(input, 0) < 0 || dup2(output, 1) < 0 ||
        dup2(errors, 2) < 0)
        _exit(126);
    for (uint32_t i = 0; i < start->inherited_count; i++)
        fcntl(start->inherited[i], F_SETFD, 0);
    for (const char *const *entry = start->environment; entry && *entry; entry++)
        putenv((char *)*entry);
    if (start->directory && chdir(start->directory))
        _exit(126);
    execvp(start->argv[0], (char *const *)start->argv);
    dprintf(2, "cannot execute %s: %s\n", start->argv[0], strerror(errno));
    _exit(127);
}

struct process *process_start(const struct process_start *start)
{
    struct process *process = calloc(1, sizeof(*process));
    if (!process)
        process_die("calloc");
    snprintf(process->name, sizeof(process->name), "%s", basename(start->argv[0]));
    /* Files, not pipes: nobody has to read for the process to go on. */
    process->output_fd = memfd_create("output", MFD_CLOEXEC);
    process->errors_fd =
        start->errors_path
            ? open(start->errors_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR)
            : memfd_create("errors", MFD_CLOEXEC);
    if (process->output_fd < 0 || process->errors_fd < 0)
        process_die("a file for output");
    fcntl(process->output_fd, F_SETFL, O_APPEND);
    fcntl(process->errors_fd, F_SETFL, O_APPEND);
    fflush(NULL);
    pid_t parent = getpid();
    process->pid = fork();
    if (process->pid < 0)
        process_die("fork");
    if (process->pid == 0)
        child_execute(start, process->output_fd, process->errors_fd, parent);
    process->pidfd = pidfd_open(process->pid, 0);
    if (process->pidfd < 0)
        process_die("pidfd_open");
    return process;
}

struct process *process_run(const char *const *argv)
{
    struct process_start start = {.argv = argv};
    return process_start(&start);
}

struct process *process_run_words(const char *words)
{
    char line[2048], *rest = NULL;
    const char *argv[WORDS_MAX + 1] = {NULL};
    int count = 0;
    snprintf(line, sizeof(line), "%s", words);
    for (char *word = strtok_r(line, " ", &rest); word && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    return process_run(argv);
}

/* A shell and a launcher end as what they ran did. */
static bool is_crash(int code)
{
    static const int signals[] = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (code == 128 + signals[i])
            return true;
    return false;
}

static bool is_sanitizers(int code)
{
    return code == 66 || (code >= 97 && code <= 99);
}

static void collect(struct process *process)
{
    int status;
    if (waitpid(process->pid, &status, 0) != process->pid)
        process_die("waitpid");
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    process->ended = true;
    process->code = code;
    if (is_crash(code))
        fprintf(stderr, "test process: %s ended by signal %d\n", process->name, code - 128);
    else if (is_sanitizers(code))
        fprintf(stderr, "test process: %s ended by the status of a sanitizer, %d\n", process->name,
                code);
}

int process_wait(struct process *process, int timeout_ms)
{
    if (process->ended)
        return process->code;
    int64_t until = process_now_ms() + timeout_ms;
    struct pollfd polled = {.fd = process->pidfd, .events = POLLIN};
    for (;;) {
        int64_t left = until - process_now_ms();
        int ready = poll(&polled, 1, left > 0 ? (int)left : 0);
        if (ready > 0)
            break;
        if (ready == 0 && left <= 0)
            return -1;
    }
    collect(process);
    return process->code;
}

void process_signal(const struct process *process, int number)
{
    if (!process->ended)
        kill(process->pid, number);
}

void process_free(struct process *process)
{
    if (!process)
        return;
    if (!process->ended) {
        kill(process->pid, SIGKILL);
        collect(process);
    }
    close(process->pidfd);
    close(process->output_fd);
    close(process->errors_fd);
    free(process->output);
    free(process->errors);
    free(process);
}

static const char *stream_read(int fd, char **text)
{
    struct stat status;
    if (fstat(fd, &status))
        process_die("fstat");
    free(*text);
    *text = calloc(1, (size_t)status.st_size + 1);
    if (!*text)
        process_die("calloc");
    if (pread(fd, *text, (size_t)status.st_size, 0) < 0)
        process_die("pread");
    return *text;
}

const char *process_output(struct process *process)
{
    return stream_read(process->output_fd, &process->output);
}

const char *process_errors(struct process *process)
{
    return stream_read(process->errors_fd, &process->errors);
}

static bool has_text(struct process *process, const char *text)
{
    return strstr(process_output(process), text) || strstr(process_errors(process), text);
}

bool process_wait_text(struct process *process, const char *text, int timeout_ms)
{
    int64_t until = process_now_ms() + timeout_ms;
    while (!has_text(process, text)) {
        if (process_now_ms() >= until)
            return false;
        if (process_wait(process, STEP_MS) >= 0)
            return has_text(process, text);
    }
    return true;
}

long process_resident_KiB(pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    long resident = -1;
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmRSS: %ld", &resident) == 1)
            break;
    if (file)
        fclose(file);
    return resident;
}

int64_t process_mapped_bytes(pid_t pid, const char *name)
{
    char path[64], wanted[64], line[512];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    snprintf(wanted, sizeof(wanted), " /memfd:%s (deleted)", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    uint64_t begin, end, bytes = 0;
    while (fgets(line, sizeof(line), file))
        if (strstr(line, wanted) && sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2)
            bytes += end - begin;
    fclose(file);
    return (int64_t)bytes;
}

int process_descriptor_count(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    if (!directory)
        return -1;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}
