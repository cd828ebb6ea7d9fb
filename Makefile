# shoal: one hand-written Makefile.
#
#   make            programs and libraries under build/
#   make demo       set up, build, and train a model on two nodes of this machine
#   make check      set up, build, and run every test
#   make check-asan, make check-tsan   the same under sanitizers, in build trees of their own; check-native-asan,
#                         check-native-tsan: the native backend of PyTorch alone, which is a part of them
#   make fuzz       each fuzzer for SECONDS=60; FUZZ="wire message" names some (tests/fuzz)
#   make bench      measure beside the peers: ROWS=1,3 PAIRS=7 (scripts/bench/README.md)
#   make deb        Debian packages: build/deb (config/debian); check-deb: their life in bare roots
#   make check-deploy     shoal on the real parts: systemd, container, slurm, prometheus, kubernetes, browser, page;
#                         PARTS="slurm page" names some
#   make wheel      the Python package with the bundle inside, for pip: build/wheel, built in a Debian 11 under
#                   DEBIAN11_ROOT; wheel-here: built on this machine; check-wheel tries it
#   make bench-torch what collectives cost through torch: 15 minutes; PAIRS=7, BENCH_TORCH="--quick --ranks 2"
#   make bundle     a folder that runs where nothing is installed: build/bundle
#   make check-gpu, make bench-gpu     the device path on a real GPU; a reason where there is none
#   make lint       floors and calls, format, static analysis, papers and pictures
#   make picture    draw doc/house.svg and doc/exchange.svg, who calls whom, anew from the code
#   make install    PREFIX=/usr/local, DESTDIR=, LIBDIR=, PYTHON=
#   make install-smddp    scripts for SMDDP run as they are, with what make install has installed
#   make check-debian12   demo and check in a bare Debian 12, a fresh copy of what is under DEBIAN12_ROOT
#   make check-debian13   build and check all in a Debian 13 (torch 2.6, libfabric 2.1) under DEBIAN13_ROOT
#   make check-rights     the tests of what root may do, as root has it in containers by default
#   make check-system     the tests of what differs from one distribution to the next, torch among it
#   make native           the backend of PyTorch in C++, for the torch that PYTHON has, where its headers are
#   make check-python     the tests of the Python package; check-torch: torch's own, of a backend
#   make check-frameworks accelerate, Lightning and others on it, in the environment FRAMEWORKS_ENV that it makes;
#                         FRAMEWORKS="keras ray" names some, FRAMEWORKS_PART=short is a part of it, .ci/run's
#   make check-jax        JAX's collectives on CPUs, in the environment JAX_ENV that it makes
#   PYTHON=/usr/bin/python3, or that of the active virtual environment, is what runs them, and what Gloo is measured
#   with; scripts/torch-env.sh makes one with torch, where Debian's is too old

CC ?= gcc
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
BUILD ?= build
SANITIZE ?=

VERSION_MAJOR := 0
VERSION := 0.1.0

SERVER_PACKAGES := libfabric libevent libevent_pthreads jansson hwloc libsodium openssl libseccomp
WORKER_PACKAGES := jansson
TEST_PACKAGES := check

# Recursive (=) so that they are asked for when a recipe runs, after `make deps`.
PACKAGE_CFLAGS = $(shell pkg-config --cflags $(SERVER_PACKAGES))
SERVER_LIBS = $(shell pkg-config --libs $(SERVER_PACKAGES))
WORKER_LIBS = $(shell pkg-config --libs $(WORKER_PACKAGES))
TEST_CFLAGS = $(shell pkg-config --cflags $(TEST_PACKAGES))
TEST_LIBS = $(shell pkg-config --libs $(TEST_PACKAGES))
# glibc before 2.34 has parts in libraries of their own.
SYSTEM_LIBS := -lm -ldl -lrt

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
            -Wpointer-arith -Wwrite-strings -Wundef -Wvla -Wformat=2
CFLAGS ?= -O2 -g
# Floating point must give the same bits everywhere: no contraction, no reassociation.
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -I. -fPIC -pthread -fvisibility=hidden -ffp-contract=off \
             -fno-fast-math -fstack-protector-strong $(WARNINGS) \
             -DSHOAL_VERSION='"$(VERSION)"' $(CFLAGS)
# Where a program finds libshoal: beside it, wherever the two are put.
RPATH ?= -Wl,-rpath,'$$ORIGIN/../lib'
ALL_LDFLAGS = -pthread $(if $(LTO_FLAGS),-fno-lto) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)
ifneq ($(SANITIZE),)
ALL_CFLAGS += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -DSHOAL_SANITIZED=1
ALL_LDFLAGS += -fsanitize=$(SANITIZE)
# The thread sanitizer makes a program up to five times as slow.
export TEST_TIMEOUT_S ?= 900
endif

# A small collective calls a hundred short functions of many files: libshoal is optimised as one, which
# takes a tenth off it. Its objects can be linked without that too, as they are into the tests.
NO_LTO := $(SANITIZE)$(findstring -flto,$(CFLAGS))$(findstring clang,$(shell $(CC) --version 2>/dev/null))
LTO_FLAGS ?= $(if $(NO_LTO),,-flto -flto-partition=one -ffat-lto-objects)

# What has a main() of its own.
SERVER_PROGRAMS := shoald shoalctl
WORKER_PROGRAMS := shoalrun shoalperf
MAIN_SRC := server/shoald.c server/shoalctl/shoalctl.c \
            $(foreach p,$(WORKER_PROGRAMS),worker/programs/$(p)/$(p).c)

COMMON_SRC := $(wildcard common/*/*.c)
SERVER_SRC := $(filter-out $(MAIN_SRC),$(wildcard server/*/*.c server/*/*/*.c))
# The CUDA path is built everywhere: by the toolkit's cuda.h where CUDA_HOME has one of 12.8 or later,
# else by worker/device/cuda_driver.h alone (CUDA_HOME= asks for that).
CUDA_HOME ?= /usr/local/cuda
CUDA_HEADER := $(if $(wildcard $(CUDA_HOME)/include/cuda.h),$(shell awk \
    '$$2 == "CUDA_VERSION" && $$3 + 0 >= 12080 { print FILENAME }' $(CUDA_HOME)/include/cuda.h))
CUDA_CFLAGS := $(if $(CUDA_HEADER),-DSHOAL_CUDA_TOOLKIT -isystem $(CUDA_HOME)/include)
WORKER_ROOMS := api drive job launch progress request meeting device fusion
WORKER_SRC := $(wildcard $(WORKER_ROOMS:%=worker/%/*.c))
MPI_SRC := $(wildcard worker/mpi/*.c)
PROGRAM_SRC := $(filter-out $(MAIN_SRC),$(wildcard worker/programs/*/*.c))
DIGITS_SRC := $(wildcard worker/examples/digits/*.c)
# A shared object of its own, loaded in place of CUDA's driver library.
STAND_IN_SRC := tests/lib/cuda/cuda_stand_in.c tests/lib/cuda/cuda_stand_in_stream.c
TEST_LIB_SRC := $(filter-out $(STAND_IN_SRC),$(wildcard tests/lib/*.c tests/lib/*/*.c))
TEST_SRC := $(wildcard tests/common/*/test_*.c tests/server/*/test_*.c tests/worker/*/test_*.c \
              tests/worker/programs/*/test_*.c tests/config/test_*.c tests/cluster/test_*.c \
              tests/doc/test_*.c tests/e2e/*/test_*.c)

object = $(1:%.c=$(BUILD)/obj/%.o)
COMMON_OBJ := $(call object,$(COMMON_SRC))
SERVER_OBJ := $(call object,$(SERVER_SRC))
WORKER_OBJ := $(call object,$(WORKER_SRC))
PROGRAM_OBJ := $(call object,$(PROGRAM_SRC))
DIGITS_OBJ := $(call object,$(DIGITS_SRC))
TEST_LIB_OBJ := $(call object,$(TEST_LIB_SRC))
STAND_IN_OBJ := $(call object,$(STAND_IN_SRC))
MPI_OBJ := $(call object,$(MPI_SRC))
STAND_IN := $(BUILD)/tests/lib/libcuda.so.1

# The example without its main and its calls of the library: what its tests link.
DIGITS_PURE_OBJ := $(filter-out %/shoal_digits.o %/distributed.o,$(DIGITS_OBJ))

LIBCOMMON := $(BUILD)/lib/libcommon.a
LIBSERVER := $(BUILD)/lib/libserver.a
LIBWORKER := $(BUILD)/lib/libworker.a
LIBPROGRAMS := $(BUILD)/lib/libprograms.a
LIBTEST := $(BUILD)/lib/libtest.a
LIBSHOAL := $(BUILD)/lib/libshoal.so
SONAME := libshoal.so.$(VERSION_MAJOR)
# jaxlib loads it (worker/mpi).
LIBMPI := $(BUILD)/lib/libshoal-mpitrampoline.so
MPI_RPATH := -Wl,-rpath,'$$ORIGIN'

PROGRAMS := $(SERVER_PROGRAMS:%=$(BUILD)/bin/%) $(WORKER_PROGRAMS:%=$(BUILD)/bin/%) \
            $(BUILD)/bin/shoal-digits $(BUILD)/bin/shoal-first
TESTS := $(TEST_SRC:%.c=$(BUILD)/%)
# Those of what differs from one distribution to the next: libfabric, OpenSSL, libevent, the kernel's filters.
SYSTEM_TESTS := $(filter $(addprefix $(BUILD)/tests/,common/auth/% common/transport/% server/control/% \
    server/sandbox/% e2e/jobs/% e2e/library/% e2e/programs/test_shoald%),$(TESTS))
# These tests ask what they may do; below are the capabilities that containers give root by default.
RIGHTS_TESTS := $(filter $(addprefix $(BUILD)/tests/,server/sandbox/% server/control/test_control_users \
    server/control/test_control_foreign e2e/attacks/test_attack_lines e2e/deployment/test_debian_root \
    e2e/deployment/test_namespaces e2e/jobs/test_users e2e/programs/test_shoald_% \
    e2e/programs/test_why_link),$(TESTS))
CONTAINER_RIGHTS := chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot \
    mknod audit_write setfcap
# Floors and peers that the benchmark measures beside shoal; Open MPI's where it is installed.
BENCH_FLOORS := $(addprefix $(BUILD)/bench/,bench_reduce bench_copies bench_copy bench_pieces bench_stream)
BENCH_OVERLAP := $(BUILD)/bench/bench_overlap
BENCH_SCALE := $(BUILD)/bench/bench_scale
BENCH_SEAL := $(BUILD)/bench/bench_seal
BENCH_PEERS := $(BUILD)/bench/bench_peers
BENCH_LINKS := $(BUILD)/bench/bench_links
BENCH_PROGRAMS := $(BENCH_FLOORS) $(BENCH_OVERLAP) $(BENCH_SCALE) $(BENCH_PEERS) $(BENCH_LINKS) $(BENCH_SEAL)
GPU_BENCH := $(BUILD)/bench/bench_gpu_copy
# Tests of the Python package; they skip themselves where there is no torch.
PYTHON ?= $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV)/bin/python3,/usr/bin/python3)
NATIVE_SANITIZER := $(filter address thread,$(subst $(comma), ,$(SANITIZE)))
SANITIZED_NATIVE_TEST := tests/python/test_sanitized.py
PYTHON_TESTS := $(filter-out $(SANITIZED_NATIVE_TEST),$(wildcard tests/python/test_*.py tests/python/*/test_*.py)) \
    $(if $(NATIVE_SANITIZER),$(SANITIZED_NATIVE_TEST))
# These tests take long, and the newest torch is enough for them: they run whole examples, on gloo too, and collectives
# by another name.
ONE_TORCH_TESTS := $(wildcard tests/python/test_examples*.py tests/python/*/test_digits.py tests/python/*/test_text.py \
    tests/python/smddp/test_backend.py)
# These tests run training frameworks, in an environment of their own.
FRAMEWORKS_TESTS := $(wildcard tests/frameworks/test_*.py)
TORCH_ENV ?= /var/tmp/shoal-torch
FRAMEWORKS_ENV ?= /var/tmp/shoal-frameworks
# These tests run JAX, in an environment of its own.
JAX_TESTS := $(wildcard tests/jax/test_*.py)
JAX_ENV ?= /var/tmp/shoal-jax
# The live page in a browser; skips itself where there is none.
PAGE_TESTS := $(wildcard tests/server/page/test_*.py)
# The folders of the package, shoal/ itself among them.
PYTHON_ROOMS := $(patsubst worker/python/%/__init__.py,%,$(wildcard worker/python/shoal/__init__.py \
    worker/python/shoal/*/__init__.py worker/python/shoal/*/*/__init__.py worker/python/shoal/*/*/*/__init__.py))
# Fuzzers (tests/fuzz): as tests they replay their corpus, as libFuzzer's they need clang.
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_TESTS := $(FUZZ_SRC:%.c=$(BUILD)/%)
FUZZERS := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/libfuzzer/%)
SECONDS ?= 60
FUZZ ?= $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%)
# Where $(PYTHON) looks for packages under PREFIX.
PYTHON_DIR = $(PREFIX)/lib/$(shell $(PYTHON) -c 'import os, sys, sysconfig; \
    print("python%d.%d" % sys.version_info[:2] + "/" + os.path.basename(sysconfig.get_path("purelib")))' \
    2>/dev/null || echo python3/site-packages)
# The native backend of PyTorch: a module for one torch, as its name says (worker/python/native).
CXX ?= g++
NATIVE ?=
comma := ,
# What has been built once is used, so it is kept up with its sources.
BUILD_NATIVE = CXX='$(CXX)' $(PYTHON) -B worker/python/native/build.py --build $(BUILD) \
    $(addprefix --sanitize ,$(NATIVE_SANITIZER))
NATIVE_MODULES := $(wildcard $(BUILD)/lib/shoal_native-*.so)
DEBIAN11_ROOT ?= /var/tmp/shoal-debian11
DEBIAN12_ROOT ?= /var/tmp/shoal-debian12
DEBIAN13_ROOT ?= /var/tmp/shoal-debian13
DEBIAN13_BARE_ROOT ?= /var/tmp/shoal-debian13-bare
DEBIAN13_CHECKS ?= check-tests check-torch
# Manual pages; every function of shoal(3) is a name for that page.
MAN_PAGES := $(wildcard doc/man/*.[1-8])
MAN_DIR = $(DESTDIR)$(PREFIX)/share/man
MAN_FUNCTIONS = $(shell sed -n 's/^\.F[no] \(shoal_[a-z_]*\).*/\1/p' doc/man/shoal.3 | sort -u)
# What completes options, in bash and zsh: made from --help, so that there is one list.
COMPLETIONS := $(BUILD)/completions
COMPLETED := $(SERVER_PROGRAMS) $(WORKER_PROGRAMS)
BASH_COMPLETION_DIR ?= $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETION_DIR ?= $(PREFIX)/share/zsh/site-functions
# A worker that the end-to-end tests start, with the mistakes that they ask for.
TEST_WORKER := $(BUILD)/tests/helper_worker $(BUILD)/tests/chaos_rank $(BUILD)/tests/fusion_rank \
	$(BUILD)/tests/replay_rank $(BUILD)/tests/mpi_rank

.DEFAULT_GOAL := all
.PHONY: all native deps deps-lint deps-bench tests demo demo-built check check-built check-tests check-rights check-system check-system-short check-python check-torch check-frameworks check-jax \
        check-debian12 check-debian13 check-asan check-tsan check-native-asan check-native-tsan check-native-built fuzz fuzz-built deps-fuzz soak soak-built \
        bench bench-built bench-programs bundle deb deb-debian13 check-deb check-deploy wheel wheel-here check-wheel check-gpu bench-gpu bench-torch lint picture format install install-man \
        install-completions install-smddp uninstall clean

all: $(PROGRAMS) $(LIBSHOAL) $(LIBMPI) $(NATIVE_MODULES)

deps:
	@scripts/install-deps.sh

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(PACKAGE_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/tests/%.o: tests/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(PACKAGE_CFLAGS) $(TEST_CFLAGS) -Wno-missing-prototypes \
	    -DTEST_BUILD_DIR='"$(abspath $(BUILD))"' -DTEST_SOURCE_DIR='"$(CURDIR)"' \
	    -MMD -MP -c $< -o $@

$(BUILD)/obj/worker/device/device_cuda.o $(BUILD)/obj/tests/lib/cuda/cuda_facts_toolkit.o $(STAND_IN_OBJ) \
    $(GPU_BENCH:$(BUILD)/bench/%=$(BUILD)/obj/tests/bench/%.o): ALL_CFLAGS += $(CUDA_CFLAGS)
$(STAND_IN_OBJ): ALL_CFLAGS += -fvisibility=default
$(STAND_IN): $(STAND_IN_OBJ)
	@mkdir -p $(@D)
	$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,libcuda.so.1 -o $@ $^

# All but the kernels, of which each object has flags of its own.
$(WORKER_OBJ) $(filter-out $(BUILD)/obj/common/reduce/reduce%,$(COMMON_OBJ)): ALL_CFLAGS += $(LTO_FLAGS)

# One object per instruction set, chosen at run time.
$(BUILD)/obj/common/reduce/reduce_avx2.o: ALL_CFLAGS += -mavx2 -mf16c
$(BUILD)/obj/common/reduce/reduce_avx512.o: ALL_CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c

$(LIBCOMMON): $(COMMON_OBJ)
# The live page, as numbers of its bytes.
PAGE_OBJ := $(BUILD)/obj/server/page/page_html.o
$(BUILD)/gen/page_html.c: server/page/page.html Makefile
	@mkdir -p $(@D)
	{ echo '#include "server/page/page.h"'; echo 'const char page_html[] = {'; \
	    od -An -v -td1 $< | sed 's/-*[0-9][0-9]*/&,/g'; echo '};'; \
	    echo 'const size_t page_html_bytes = sizeof(page_html);'; } >$@
$(PAGE_OBJ): $(BUILD)/gen/page_html.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(LIBSERVER): $(SERVER_OBJ) $(PAGE_OBJ)
$(LIBWORKER): $(WORKER_OBJ)
$(LIBPROGRAMS): $(PROGRAM_OBJ)
$(LIBTEST): $(TEST_LIB_OBJ)
%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(LIBSHOAL): $(WORKER_OBJ) $(LIBCOMMON) worker/shoal.map
	@mkdir -p $(@D)
	$(CC) -shared $(CFLAGS) $(LTO_FLAGS) $(filter-out -fno-lto,$(ALL_LDFLAGS)) -Wl,-soname,$(SONAME) \
	    -Wl,--version-script=worker/shoal.map \
	    -o $(BUILD)/lib/libshoal.so.$(VERSION) $(WORKER_OBJ) $(LIBCOMMON) $(WORKER_LIBS) $(SYSTEM_LIBS)
	ln -sf libshoal.so.$(VERSION) $(BUILD)/lib/$(SONAME)
	ln -sf $(SONAME) $@

# The names that nothing in worker/mpi defines come from its list.
MPI_NAMES_OBJ := $(BUILD)/obj/worker/mpi/mpi_names.o
$(MPI_OBJ) $(MPI_NAMES_OBJ): ALL_CFLAGS += -fvisibility=default
$(BUILD)/gen/mpi_names.c: worker/mpi/names.txt worker/mpi/names.awk
	@mkdir -p $(@D)
	LC_ALL=C awk -f worker/mpi/names.awk $< >$@
$(MPI_NAMES_OBJ): $(BUILD)/gen/mpi_names.c worker/mpi/absent.h Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@
$(LIBMPI): $(MPI_OBJ) $(MPI_NAMES_OBJ) worker/mpi/mpi.map $(LIBSHOAL)
	@mkdir -p $(@D)
	$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(@F) -Wl,--version-script=worker/mpi/mpi.map \
	    -o $@ $(MPI_OBJ) $(MPI_NAMES_OBJ) \
	    -L$(BUILD)/lib -lshoal $(if $(RPATH),$(MPI_RPATH)) $(SYSTEM_LIBS)

$(BUILD)/bin/shoald: $(BUILD)/obj/server/shoald.o
$(BUILD)/bin/shoalctl: $(BUILD)/obj/server/shoalctl/shoalctl.o
$(SERVER_PROGRAMS:%=$(BUILD)/bin/%): $(LIBSERVER) $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIBSERVER) $(LIBCOMMON) $(SERVER_LIBS) $(SYSTEM_LIBS)

# The worker's programs use the library as anybody would.
$(BUILD)/bin/shoalrun: $(BUILD)/obj/worker/programs/shoalrun/shoalrun.o $(LIBPROGRAMS) $(LIBWORKER) $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(WORKER_LIBS) $(SYSTEM_LIBS)

$(BUILD)/bin/shoalperf: $(BUILD)/obj/worker/programs/shoalperf/shoalperf.o $(LIBPROGRAMS) $(LIBCOMMON) $(LIBSHOAL)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out $(LIBSHOAL),$^) -L$(BUILD)/lib -lshoal \
	    $(RPATH) $(WORKER_LIBS) $(SYSTEM_LIBS)

$(BUILD)/bin/shoal-digits: $(DIGITS_OBJ) $(LIBSHOAL)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(DIGITS_OBJ) -L$(BUILD)/lib -lshoal \
	    $(RPATH) $(SYSTEM_LIBS)

# The README's example: includes <shoal.h>, as outside this tree.
FIRST_OBJ := $(BUILD)/obj/worker/examples/first.o
$(FIRST_OBJ): ALL_CFLAGS += -Iworker
$(BUILD)/bin/shoal-first: $(FIRST_OBJ) $(LIBSHOAL)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(FIRST_OBJ) -L$(BUILD)/lib -lshoal $(RPATH) $(SYSTEM_LIBS)

$(TEST_WORKER): $(BUILD)/tests/%: $(BUILD)/obj/tests/e2e/%.o $(LIBSHOAL)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $< -L$(BUILD)/lib -lshoal $(RPATH) $(SYSTEM_LIBS)

# Archives, so that a test takes in what it needs and nothing else. The worker's tests have no server
# in them, nor have those of the library against daemons: the two sides may use the same words.
TEST_ARCHIVES := $(LIBTEST) $(LIBSERVER) $(LIBPROGRAMS) $(LIBWORKER) $(LIBCOMMON)
WITHOUT_SERVER := $(filter $(BUILD)/tests/worker/% $(BUILD)/tests/e2e/library/%,$(TESTS))
$(WITHOUT_SERVER): TEST_LINKED = $(LIBTEST) $(LIBPROGRAMS) $(LIBWORKER) $(LIBCOMMON)
TEST_LINKED = $(TEST_ARCHIVES)
$(TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(TEST_LINKED) $(SERVER_LIBS) $(WORKER_LIBS) \
	    $(TEST_LIBS) $(SYSTEM_LIBS)

# Measures the exchange without I/O; not one of the tests.
$(BUILD)/tests/server/exchange/bench_exchange: $(BUILD)/obj/tests/server/exchange/bench_exchange.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS) $(WORKER_LIBS) $(SYSTEM_LIBS)

# Added to what the rule above links.
$(filter %/test_digits %/test_digits_network %/test_digits_input,$(TESTS)): $(DIGITS_PURE_OBJ)

$(BUILD)/obj/tests/fuzz/replay-%.o: tests/fuzz/replay.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DFUZZ_CORPUS='"$(CURDIR)/tests/fuzz/corpus/$*"' -MMD -MP -c $< -o $@
$(FUZZ_TESTS): $(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o \
                                           $(BUILD)/obj/tests/fuzz/replay-%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(TEST_ARCHIVES) $(SERVER_LIBS) $(WORKER_LIBS) \
	    $(TEST_LIBS) $(SYSTEM_LIBS)
$(FUZZERS): $(BUILD)/libfuzzer/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(TEST_ARCHIVES) $(SERVER_LIBS) \
	    $(WORKER_LIBS) $(TEST_LIBS) $(SYSTEM_LIBS)

$(BENCH_FLOORS): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SYSTEM_LIBS)

$(GPU_BENCH): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^

# The library, and its plan of fusion buffers by itself.
$(BENCH_OVERLAP): $(BUILD)/obj/tests/bench/bench_overlap.o $(LIBWORKER) $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(WORKER_LIBS) $(SYSTEM_LIBS)

$(BENCH_SEAL): $(BUILD)/obj/tests/bench/bench_seal.o $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS)

$(BENCH_SCALE) $(BENCH_PEERS) $(BENCH_LINKS): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(LIBSERVER) $(LIBCOMMON)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS) $(SYSTEM_LIBS)

$(BUILD)/bench/bench_mpi: tests/bench/bench_mpi.c Makefile
	@mkdir -p $(@D)
	mpicc -std=c11 $(WARNINGS) $(CFLAGS) -o $@ $<

# The recipe asks for mpicc, since it may have come with `make deps-bench`.
bench-programs: $(BENCH_PROGRAMS)
	@if command -v mpicc >/dev/null; then $(MAKE) --no-print-directory $(BUILD)/bench/bench_mpi; fi

tests: all $(if $(NATIVE_SANITIZER),native) $(TESTS) $(FUZZ_TESTS) $(STAND_IN) $(BENCH_OVERLAP) $(BENCH_SCALE) $(BENCH_LINKS) $(BENCH_SEAL) $(TEST_WORKER)

demo: deps
	@$(MAKE) --no-print-directory demo-built

demo-built: all
	@scripts/demo.sh $(BUILD)

check: deps
	@$(MAKE) --no-print-directory check-built

check-built: tests
	@PYTHON=$(PYTHON) scripts/check-floors.sh --self-test
	@scripts/run-tests.sh --self-test
	@$(PYTHON) -B scripts/bench/self_test.py 2>&1
	@$(PYTHON) -B scripts/check-papers.py --self-test
	@$(PYTHON) -B scripts/check-comments.py --self-test
	@$(MAKE) --no-print-directory check-tests

# The short one leaves out what asks little of torch's version.
check-system-short: SYSTEM_LESS := tests/python/smp/% tests/python/smddp/% tests/python/test_device.py
check-system check-system-short: all $(SYSTEM_TESTS) $(STAND_IN) $(TEST_WORKER)
	@PYTHON=$(PYTHON) scripts/run-tests.sh $(BUILD) $(SYSTEM_TESTS) \
	    $(filter-out $(ONE_TORCH_TESTS) $(SYSTEM_LESS),$(PYTHON_TESTS))

check-rights: all $(RIGHTS_TESTS) $(STAND_IN) $(TEST_WORKER)
	@setpriv --bounding-set -all$(shell printf ',+%s' $(CONTAINER_RIGHTS)) -- \
	    scripts/run-tests.sh $(BUILD) $(RIGHTS_TESTS)

# Without the tests of the scripts, which are the same wherever they run.
check-tests: tests
	@PYTHON=$(PYTHON) scripts/check-floors.sh $(BUILD)
	@PYTHON=$(PYTHON) scripts/run-tests.sh $(BUILD) $(TESTS) $(FUZZ_TESTS) $(PAGE_TESTS) $(PYTHON_TESTS)

# Where it cannot be built the reason is said, and the backend in Python serves.
native: $(LIBSHOAL)
	@$(BUILD_NATIVE)

$(NATIVE_MODULES): $(wildcard worker/python/native/*.?pp) worker/shoal.h
	@$(BUILD_NATIVE)

check-python: all $(STAND_IN)
	@PYTHON=$(PYTHON) scripts/run-tests.sh $(BUILD) $(PYTHON_TESTS)

# Torch's own tests of a process group, with this backend.
check-torch: all
	@PYTHON=$(PYTHON) TEST_BUILD_DIR=$(abspath $(BUILD)) $(PYTHON) tests/python/torch_own.py

# The Python of an environment, where that could be made.
python_of = $$([ -x $(1)/bin/python3 ] && echo $(1)/bin/python3 || echo $(PYTHON))

# One at a time, for each is two jobs. Where the environment cannot be made its script says why, and all is skipped.
check-frameworks: all
	@scripts/frameworks-env.sh $(FRAMEWORKS_ENV) || true
	@TEST_JOBS=1 TEST_TIMEOUT_S=7200 FRAMEWORKS='$(FRAMEWORKS)' FRAMEWORKS_PART='$(FRAMEWORKS_PART)' \
	    PYTHON=$(call python_of,$(FRAMEWORKS_ENV)) scripts/run-tests.sh $(BUILD) $(FRAMEWORKS_TESTS)

# Where the environment cannot be made its script says why, and all is skipped.
check-jax: all
	@scripts/jax-env.sh $(JAX_ENV) || true
	@TEST_JOBS=1 TEST_TIMEOUT_S=1800 PYTHON=$(call python_of,$(JAX_ENV)) scripts/run-tests.sh $(BUILD) $(JAX_TESTS)

# What a machine has that nobody has set up: the tree is copied in, and the README's two commands run.
check-debian12:
	@scripts/install-deps.sh --root
	@scripts/debian-root.sh bookworm $(DEBIAN12_ROOT) --copy $(DEBIAN12_ROOT)-fresh
	@for target in demo check; do \
	    scripts/debian-root.sh bookworm $(DEBIAN12_ROOT)-fresh -- make -s -j$$(nproc) $$target || exit; \
	done

# The tree is built and tested inside, in a build tree of its own.
check-debian13: QUIET = $(if $(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),-s)
check-debian13:
	@scripts/install-deps.sh --root
	@set -e; for target in $(DEBIAN13_CHECKS); do \
	    scripts/debian-root.sh trixie $(DEBIAN13_ROOT) -- make $(QUIET) -j$$(nproc) BUILD=build/debian13 $$target; \
	done

AS_ASAN := BUILD=build/asan SANITIZE=address,undefined CFLAGS="-O1 -g"
AS_TSAN := BUILD=build/tsan SANITIZE=thread CFLAGS="-O1 -g"

check-asan: deps
	@$(MAKE) --no-print-directory $(AS_ASAN) check-built

check-tsan: deps
	@$(MAKE) --no-print-directory $(AS_TSAN) check-built

check-native-asan:
	@$(MAKE) --no-print-directory $(AS_ASAN) check-native-built

check-native-tsan:
	@$(MAKE) --no-print-directory $(AS_TSAN) check-native-built

check-native-built: all native
	@PYTHON=$(PYTHON) scripts/run-tests.sh $(BUILD) $(SANITIZED_NATIVE_TEST)

# Each fuzzer for so many seconds; what it finds is put beside it.
fuzz: deps-fuzz
	@$(MAKE) --no-print-directory BUILD=build/fuzz CC=clang CFLAGS="-O1 -g" \
	    WARNINGS=-Wall SANITIZE=fuzzer-no-link,address,undefined SECONDS=$(SECONDS) FUZZ='$(FUZZ)' fuzz-built
fuzz-built: $(FUZZ:%=$(BUILD)/libfuzzer/%)
	@scripts/fuzz.sh $(BUILD) $(SECONDS) $(FUZZ)

# The virtual cluster and whatever may go wrong, for so many seconds, from this seed on.
soak: deps
	@$(MAKE) --no-print-directory SECONDS=$(SECONDS) SEED=$(SEED) soak-built
soak-built: $(BUILD)/tests/cluster/test_cluster_soak
	@SEED=$(SEED) SOAK_SECONDS=$(SECONDS) $<

deps-fuzz:
	@scripts/install-deps.sh --fuzz

deps-bench:
	@scripts/install-deps.sh --bench

bench: deps-bench
	@$(MAKE) --no-print-directory bench-built

bench-built: all native bench-programs
	@$(PYTHON) -B scripts/bench/bench.py --build $(BUILD) $(if $(ROWS),--rows $(ROWS)) \
	    $(if $(PAIRS),--pairs $(PAIRS))

bundle: all $(GPU_BENCH)
	@scripts/bundle.sh $(BUILD) $(BUILD)/bundle

# This Debian 12's packages, which Debian 13 takes too, and Debian 13's own, which have the module for its PyTorch:
# installed, used, upgraded, removed in bare roots.
check-deb: deb deb-debian13
	@scripts/packages/check-deb.sh bookworm,$(DEBIAN12_ROOT),$(BUILD)/deb,none \
	    'trixie-bare,$(DEBIAN13_BARE_ROOT),$(BUILD)/deb,in Python' \
	    trixie-bare,$(DEBIAN13_BARE_ROOT),$(BUILD)/debian13/deb,native

deb-debian13:
	@scripts/install-deps.sh --root
	@scripts/debian-root.sh trixie $(DEBIAN13_ROOT) -- make -s BUILD=build/debian13 deb

deb:
	@scripts/install-deps.sh --packages
	@SHOAL_CC='$(CC)' scripts/packages/deb.sh $(VERSION) $(BUILD)/deb

check-deploy: all deb $(if $(filter page,$(or $(PARTS),page)),wheel) \
              $(if $(filter browser,$(or $(PARTS),browser)),$(TEST_WORKER))
	@scripts/install-deps.sh --deploy
	@scripts/deploy/check-deploy.sh $(BUILD) $(DEBIAN12_ROOT) $(DEBIAN13_ROOT) $(PARTS)

# For an old glibc; where there is no root for that (77), for this machine's.
wheel:
	@echo 'make wheel: libfabric and OpenSSL are built too, in a Debian 11, so that the wheel runs with glibc 2.30 and'
	@echo 'later: about half an hour. make wheel-here takes a few minutes, for systems as new as this one.'
	@scripts/install-deps.sh --root --torch --native
	@scripts/torch-env.sh $(TORCH_ENV) || true
	@status=0; python=$(call python_of,$(TORCH_ENV)); scripts/packages/wheel.sh $(BUILD) $(DEBIAN11_ROOT) $$python || \
	    status=$$?; \
	[ $$status != 77 ] || { $(MAKE) --no-print-directory wheel-here PYTHON=$$python && status=0; }; exit $$status

wheel-here: bundle native
	@$(PYTHON) -B scripts/packages/wheel.py --native $(BUILD)/lib $(BUILD)/bundle $(BUILD)/wheel

check-wheel: wheel
	@scripts/packages/check-wheel.sh $(BUILD)/wheel/shoal-*.whl $(DEBIAN13_ROOT) \
	    bullseye-bare=$(DEBIAN11_ROOT)-bare bookworm=$(DEBIAN12_ROOT)

check-gpu: all
	@PYTHON=$(PYTHON) scripts/check-gpu.sh $(BUILD)

bench-gpu: all $(GPU_BENCH)
	@$(PYTHON) -B scripts/bench/gpu.py $(BUILD) $(if $(PAIRS),--pairs $(PAIRS))

# With the torch of PYTHON and, where there is a root of Debian 13, with that one's: 450 s each. One Markdown for both.
BENCH_TORCH_HERE = $(PYTHON) -B scripts/bench/torch_calls.py --build $(BUILD) --json $(BUILD)/bench/torch.json \
    $(if $(PAIRS),--pairs $(PAIRS)) $(BENCH_TORCH)
bench-torch: all native
	@mkdir -p $(BUILD)/bench
	@if [ -e $(DEBIAN13_ROOT)/.shoal-ready ]; then \
	    inside='scripts/debian-root.sh trixie $(DEBIAN13_ROOT) -- make -s BUILD=build/debian13'; \
	    scripts/debian-root.sh trixie $(DEBIAN13_ROOT) -- scripts/install-deps.sh --native && \
	    $$inside -j$$(nproc) all && $$inside native && \
	    $$inside bench-torch PAIRS='$(PAIRS)' BENCH_TORCH='$(BENCH_TORCH)' >$(BUILD)/bench/torch-debian13.md; \
	fi
	@$(BENCH_TORCH_HERE) >$(BUILD)/bench/torch-here.md
	@$(PYTHON) -B scripts/bench/torch_calls.py --tables $(BUILD)/bench/torch.json \
	    $(BUILD)/debian13/bench/torch.json | tee $(BUILD)/bench/torch.md

deps-lint:
	@scripts/install-deps.sh --lint

lint: deps-lint
	@$(MAKE) --no-print-directory all
	@PYTHON=$(PYTHON) scripts/lint.sh $(PACKAGE_CFLAGS)

picture: all
	@scripts/install-deps.sh --picture
	@$(PYTHON) -B scripts/file-graph.py --build $(BUILD) --draw

format:
	clang-format -i $(shell git ls-files '*.c' '*.h' '*.cpp' '*.hpp')

install-man:
	@for page in $(MAN_PAGES); do \
	    install -D -m 644 "$$page" "$(MAN_DIR)/man$${page##*.}/$${page##*/}" || exit 1; done
	@for function in $(MAN_FUNCTIONS); do ln -sf shoal.3 "$(MAN_DIR)/man3/$$function.3" || exit 1; done

install-completions: all
	@if command -v $(PYTHON) >/dev/null; then \
	    $(PYTHON) -B scripts/packages/completions.py $(COMPLETIONS) $(COMPLETED:%=$(BUILD)/bin/%) && \
	    install -d $(DESTDIR)$(BASH_COMPLETION_DIR) $(DESTDIR)$(ZSH_COMPLETION_DIR) && \
	    install -m 644 $(COMPLETED:%=$(COMPLETIONS)/bash/%) $(DESTDIR)$(BASH_COMPLETION_DIR) && \
	    install -m 644 $(COMPLETED:%=$(COMPLETIONS)/zsh/_%) $(DESTDIR)$(ZSH_COMPLETION_DIR); \
	else \
	    echo 'no completions: $(PYTHON) is not there'; \
	fi

# The native backend too where it has been built; NATIVE=1 builds it first.
install: all install-man install-completions $(if $(NATIVE),native)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)/pkgconfig \
	    $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/shoal \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(filter-out %/shoal-digits %/shoal-first,$(PROGRAMS)) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILD)/lib/libshoal.so.$(VERSION) $(LIBMPI) $(DESTDIR)$(LIBDIR)
	ln -sf libshoal.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libshoal.so
	install -m 644 worker/shoal.h $(DESTDIR)$(PREFIX)/include
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' worker/shoal.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/shoal.pc
	install -m 644 config/*.json config/*.conf config/reference.md $(DESTDIR)$(PREFIX)/share/shoal
	set -e; for room in $(PYTHON_ROOMS); do \
	    install -d $(DESTDIR)$(PYTHON_DIR)/$$room; \
	    install -m 644 worker/python/$$room/*.py $(DESTDIR)$(PYTHON_DIR)/$$room; \
	done
	@# torch knows the backend's name by them.
	@$(PYTHON) -B worker/python/wheel_builder.py $(DESTDIR)$(PYTHON_DIR) || \
	    echo 'no entry points for torch: $(PYTHON) is not there'
	for module in $(BUILD)/lib/shoal_native-*.so; do \
	    test ! -e $$module || install -m 755 $$module $(DESTDIR)$(LIBDIR) || exit 1; done
	sed -e 's|@PREFIX@|$(PREFIX)|g' config/shoald.service.in \
	    > $(DESTDIR)$(PREFIX)/lib/systemd/system/shoald.service
	@test -n '$(DESTDIR)' || ldconfig 2>/dev/null || \
	    echo 'run ldconfig as root: then $(LIBDIR)/$(SONAME) is found, where the system looks there'

# Scripts for SMDDP find their names with plain python3.
install-smddp:
	@$(PYTHON) -B worker/python/smddp/smddp_builder.py
	install -d $(DESTDIR)$(PYTHON_DIR)
	install -m 644 worker/python/smddp/shoal-smddp.pth $(DESTDIR)$(PYTHON_DIR)

uninstall:
	rm -f $(SERVER_PROGRAMS:%=$(DESTDIR)$(PREFIX)/bin/%) $(WORKER_PROGRAMS:%=$(DESTDIR)$(PREFIX)/bin/%) \
	    $(DESTDIR)$(LIBDIR)/libshoal.so* $(DESTDIR)$(LIBDIR)/libshoal-mpitrampoline.so $(DESTDIR)$(LIBDIR)/shoal_native-* $(DESTDIR)$(PREFIX)/include/shoal.h \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/shoal.pc \
	    $(COMPLETED:%=$(DESTDIR)$(BASH_COMPLETION_DIR)/%) $(COMPLETED:%=$(DESTDIR)$(ZSH_COMPLETION_DIR)/_%) \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system/shoald.service
	rm -f $(foreach page,$(notdir $(MAN_PAGES)),$(MAN_DIR)/man$(patsubst .%,%,$(suffix $(page)))/$(page)) \
	    $(MAN_FUNCTIONS:%=$(MAN_DIR)/man3/%.3)
	rm -rf $(DESTDIR)$(PREFIX)/share/shoal $(DESTDIR)$(PYTHON_DIR)/shoal $(DESTDIR)$(PYTHON_DIR)/shoal-smddp.pth \
	    $(DESTDIR)$(PYTHON_DIR)/shoal-$(VERSION).dist-info

clean:
	rm -rf build

-include $(COMMON_OBJ:.o=.d) $(SERVER_OBJ:.o=.d) $(WORKER_OBJ:.o=.d) $(PROGRAM_OBJ:.o=.d) \
         $(MPI_OBJ:.o=.d) $(STAND_IN_OBJ:.o=.d) $(DIGITS_OBJ:.o=.d) $(FIRST_OBJ:.o=.d) $(TEST_LIB_OBJ:.o=.d) $(TEST_SRC:%.c=$(BUILD)/obj/%.d) \
         $(MAIN_SRC:%.c=$(BUILD)/obj/%.d) \
         $(TEST_WORKER:$(BUILD)/tests/%=$(BUILD)/obj/tests/e2e/%.d) $(BUILD)/obj/tests/server/exchange/bench_exchange.d \
         $(FUZZ_SRC:%.c=$(BUILD)/obj/%.d) $(GPU_BENCH:$(BUILD)/bench/%=$(BUILD)/obj/tests/bench/%.d) \
         $(BENCH_PROGRAMS:$(BUILD)/bench/%=$(BUILD)/obj/tests/bench/%.d)
