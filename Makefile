# pippin - flat GNU Makefile: no recursion into folders, objects in layer order, header dependencies made by the compiler.
# `make help` lists the targets; V=1 shows the commands.

VERSION  := 0.1.0
PREFIX   ?= /usr/local
DESTDIR  ?=
CC       ?= cc
BUILD    ?= build
TESTDATA ?= $(if $(PIPPIN_TESTDATA),$(PIPPIN_TESTDATA),../shared/testdata)
ARGS     ?=

# As many jobs as there are processors, unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(or $(shell nproc 2>/dev/null),1)
endif

Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-8s%s\n' $(1) $(2);)

LIBS_ENGINE := -lcjson -lpcre2-8 -lutf8proc -lxxhash -lnettle -lpthread -lm
LIBS_APP    := -lsqlite3 -linih -lmd4c -lreadline -lncursesw -ltinfo
LIBS_TEST   := -lcmocka

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
        -Werror=implicit-function-declaration
# -g1: lines and calls are told, also those inlined. Variables and types take the compiler longer, and are most of what
# it writes; to look at them: make BUILD=build/debug OPT='-O0 -g'.
OPT  ?= -O3 -g1
# -ffp-contract=off: a multiply and an add stay two roundings unless the source says fma; results depend on it.
CFLAGS_ALL  := -std=gnu17 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC -pthread \
               -D_GNU_SOURCE -DPP_VERSION='"$(VERSION)"' -DPP_DATADIR='"$(PREFIX)/share/pippin"' -I. $(CFLAGS)
LDFLAGS_ALL := -pthread $(LDFLAGS)

# --- sources, lowest layer first -----------------------------------------------------------------------------

SRC_BASE   := $(sort $(wildcard engine/base/*.c))
SRC_ENGINE := $(foreach d,engine engine/arch engine/cpu,$(sort $(wildcard $(d)/*.c)))
SRC_APP    := $(filter-out src/main.c,$(sort $(wildcard src/*.c)))
SRC_UI     := $(sort $(wildcard ui/*.c))
SRC_TEST   := tests/runner.c tests/support.c tests/adapter_folder.c tests/adapter_run.c tests/cca_formulas.c tests/changed_folder.c \
              tests/compressed_model.c tests/convolved.c tests/decoder_checks.c tests/decoder_formulas.c tests/decoder_model.c \
              tests/decoder_scans.c tests/encoder_model.c tests/expert_checks.c tests/expert_formulas.c \
              tests/expert_model.c tests/fill_store.c tests/gemma_model.c tests/gguf_file.c tests/gradients.c \
              tests/grammar_cases.c tests/hostile.c tests/hymba_model.c tests/no_sync.c tests/packed_folder.c tests/passes.c \
              tests/qwen4_formulas.c tests/random_array.c tests/rwkv_model.c tests/sambay_model.c \
              tests/scan_formulas.c tests/small_model.c tests/state_formulas.c tests/store_fixture.c tests/talk.c \
              tests/tiny_model.c tests/tokenizers.c tests/worker_fixture.c $(sort $(wildcard tests/test_*.c tests/soft_*.c))
SRC_FAKE   := $(sort $(wildcard tests/fake_*.c)) tests/ui_fake_main.c
FUZZERS    := $(patsubst tests/%.c,%,$(sort $(wildcard tests/fuzz_*.c)))
HEADERS    := $(wildcard engine/*.h engine/*/*.h src/*.h ui/*.h tests/*.h)

# Those that are compiled for one instruction set: their end names it.
ISA_FILES  := $(foreach i,fma avx2 avxvnni avx512 avx512bf16 amx neon dotprod i8mm,%_$(i).c)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
OBJ_LIB  := $(call obj,$(SRC_BASE) $(SRC_ENGINE))
OBJ_APP  := $(call obj,$(SRC_APP))
OBJ_UI   := $(call obj,$(SRC_UI))
OBJ_MAIN := $(call obj,src/main.c)
OBJ_TEST := $(call obj,$(SRC_TEST))
# The screen tests talk to a controller with canned answers instead of the real one.
OBJ_FAKE := $(call obj,$(SRC_FAKE)) $(filter-out $(BUILD)/obj/src/controller%.o $(BUILD)/obj/src/slash.o,$(OBJ_APP))

# What tests compute is little beside what the compiler does for it.
$(BUILD)/obj/tests/%.o: CFLAGS_ISA := $(filter -O1,$(OPT:-O3=-O1))
# But for the sums that their formulas spend it on.
$(foreach f,small_model encoder_model packed_folder,$(BUILD)/obj/tests/$(f).o): CFLAGS_ISA :=

# Of what reads files and templates, draws screens and keeps books, -O3 makes more, not faster: most of the engine, but
# for what goes through weights, tokens or logits one by one, or is done for each of them.
BUSY := activate candidates generate hf_quant% hf_rows imatrix kv kv_pool lora lora_% mlx_groups pool quant% random_rows \
        read_test rope rows% sampler schedule seq_% snapshot% speculate% step tensor_forms tensor_heads tokenizer% train% \
        xielu
$(call obj,$(filter-out $(BUSY:%=engine/%.c),$(wildcard engine/*.c)) $(wildcard engine/arch/*.c src/*.c ui/*.c)): \
  OPT_FILE := $(filter -O2,$(OPT:-O3=-O2))

# Kernels are templates, inlined and unrolled by hand. Where each variable is at each instruction, and in each of many
# inlined copies, takes the compiler longer to work out than the kernels.
QUICK := -fno-var-tracking $(filter -g1,$(OPT:-g=-g1))
ifeq ($(shell uname -m),x86_64)
# Measured, and counted in the inner loops: these products are no faster with the rest of -O3, which takes up to half
# more time; attention is, and tiles' loops are others. The definition need not be fast.
SLIM := $(filter -O2,$(OPT:-O3=-O2)) -funswitch-loops
$(foreach f,matmul_avx2 matmul_blocks_avx2 matmul_bf16_avx2 matmul_avxvnni matmul_avx512 unpack_units_% %_scalar %_fma,$(BUILD)/obj/engine/cpu/$(f).o): \
  OPT_FILE := $(SLIM)
$(BUILD)/obj/engine/cpu/%_scalar.o: CFLAGS_ISA := $(QUICK)
# No processor with FMA runs it, and on those without each multiply and add is a call, whatever is made of the rest.
$(BUILD)/obj/engine/cpu/ops_scalar.o: OPT_FILE := $(filter -O1,$(OPT:-O3=-O1))
$(BUILD)/obj/engine/cpu/%_fma.o:    CFLAGS_ISA := $(QUICK) -mavx2 -mfma -mf16c
$(BUILD)/obj/engine/cpu/%_avx2.o:   CFLAGS_ISA := $(QUICK) -mavx2 -mfma -mf16c
$(BUILD)/obj/engine/cpu/%_avxvnni.o: CFLAGS_ISA := $(QUICK) -mavx2 -mfma -mf16c -mavxvnni
$(BUILD)/obj/engine/cpu/%_avx512.o: CFLAGS_ISA := $(QUICK) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c \
                                                  -mprefer-vector-width=512
$(BUILD)/obj/engine/cpu/%_avx512bf16.o: CFLAGS_ISA := $(QUICK) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c \
                                                      -mprefer-vector-width=512
$(BUILD)/obj/engine/cpu/%_amx.o:    CFLAGS_ISA := $(QUICK) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c \
                                                  -mprefer-vector-width=512 -mamx-tile -mamx-int8 -mamx-bf16
# The tests' model of instructions that this machine may lack.
$(BUILD)/obj/tests/soft_%.o $(BUILD)/obj/tests/test_soft_isa.o $(BUILD)/obj/tests/test_soft_amx.o: CFLAGS_ISA := $(QUICK) -mavx2 -mfma -mf16c -O1 -Wno-psabi
endif
# The same for an ARM machine, and for the kernel tests that are built for one (below).
# (Without dot products, scheduling before registers are given out makes more live values than there are registers.)
ISA_NEON    := -fno-schedule-insns
ISA_DOTPROD := -march=armv8.2-a+dotprod
ISA_I8MM    := -march=armv8.2-a+dotprod+i8mm
ifneq ($(filter aarch64 arm64,$(shell uname -m)),)
$(BUILD)/obj/engine/cpu/%_neon.o:    CFLAGS_ISA := $(ISA_NEON)
$(BUILD)/obj/engine/cpu/%_dotprod.o: CFLAGS_ISA := $(ISA_DOTPROD)
$(BUILD)/obj/engine/cpu/%_i8mm.o:    CFLAGS_ISA := $(ISA_I8MM)
endif

# Only these goals may install packages; the others look and say what is missing.
ifneq ($(filter run test deps asan asan-scripts tsan fuzz lint,$(MAKECMDGOALS)),)
DEPS_FOR := $(if $(filter test deps asan asan-scripts tsan,$(MAKECMDGOALS)),test) $(filter fuzz lint,$(MAKECMDGOALS))
else
DEPS_FOR := look
endif
DEPS := $(BUILD)/.deps$(subst $() ,,$(addprefix -,$(DEPS_FOR)))

.PHONY: all run test test-long asan asan-scripts tsan fuzz lint deps latency install uninstall starter clean help
.DELETE_ON_ERROR:

all: $(BUILD)/pippin $(BUILD)/libpippin.a    ## what a plain make builds: the program and the library

$(BUILD)/obj/%.o: %.c | $(DEPS)
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) $(CFLAGS_ALL) $(OPT_FILE) $(CFLAGS_ISA) -MMD -MP -c -o $@ $<

$(BUILD)/libpippin.a: $(OBJ_LIB)
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $^

# The program looks for the bundled files where they lie from build/; from another folder it needs links to them.
ifneq ($(abspath $(BUILD)/..),$(CURDIR))
LINKS := $(BUILD)/starter $(BUILD)/themes
$(BUILD)/starter: | engine/starter
$(BUILD)/themes: | themes
$(LINKS):
	$(Q)mkdir -p $(@D) && ln -sfn "$(CURDIR)/$|" $@
endif

$(BUILD)/pippin: $(OBJ_MAIN) $(OBJ_UI) $(OBJ_APP) $(BUILD)/libpippin.a | $(LINKS)
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

# What test_kill.c kills.
$(BUILD)/kill-child: $(call obj,tests/kill_child.c tests/no_sync.c tests/random_user.c) $(OBJ_APP) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

# What test_peer.c compares with, if there is a libllama.
$(BUILD)/peer: $(call obj,tests/peer.c)
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ -ldl

$(BUILD)/soak: $(call obj,tests/soak.c tests/random_user.c) $(OBJ_APP) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

$(BUILD)/pippin-tests: $(OBJ_TEST) $(OBJ_UI) $(OBJ_APP) $(BUILD)/libpippin.a | $(BUILD)/kill-child $(BUILD)/peer
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_TEST) $(LIBS_APP) $(LIBS_ENGINE)

$(BUILD)/pippin-fake: $(OBJ_FAKE) $(OBJ_UI) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

# The tests of the kernels for ARM: no library but libc, linked statically, run by tests/test_arm.sh in an emulator,
# where -O3 is no faster, but takes two thirds more time to compile; with -O1 all run a quarter longer, which is what it
# saves. The largest, made small, compile in half the time and run little longer. Nobody debugs them there: lines do
# (-g1).
ARM_CC  := aarch64-linux-gnu-gcc
SRC_ARM := $(sort $(wildcard engine/cpu/matmul*.c engine/cpu/ops*.c engine/cpu/train*.c engine/cpu/pack*.c)) \
           $(filter-out %/quantize.c,$(sort $(wildcard engine/quant*.c))) engine/cpu/isa.c engine/cpu/stream_ahead.c engine/kv.c \
           engine/types.c \
           $(addprefix engine/base/,error.c mem.c memory.c utf8.c) tests/runner.c tests/support.c \
           tests/gradients.c tests/test_isa.c tests/test_matmul.c tests/test_ops.c tests/test_train_kernels.c
arm_obj  = $(patsubst %.c,$(BUILD)/arm/obj/%.o,$(1))

$(BUILD)/arm/obj/engine/cpu/ops_scalar.o: CFLAGS_ISA := -O1
$(BUILD)/arm/obj/engine/cpu/%_neon.o:    CFLAGS_ISA := -Os $(ISA_NEON)
$(BUILD)/arm/obj/engine/cpu/%_dotprod.o: CFLAGS_ISA := -Os $(ISA_DOTPROD)
$(BUILD)/arm/obj/engine/cpu/%_i8mm.o:    CFLAGS_ISA := -Os $(ISA_I8MM)
$(BUILD)/arm/obj/%.o: %.c | $(DEPS)
	$(call say,ARM-CC,$<)mkdir -p $(@D) && $(ARM_CC) $(filter-out $(CFLAGS),$(CFLAGS_ALL)) -O2 -g1 $(CFLAGS_ISA) \
	  -ffunction-sections -Itests/shim -DPP_KERNEL_TESTS -MMD -MP -c -o $@ $<

$(BUILD)/arm/kernel-tests: $(call arm_obj,$(SRC_ARM))
	$(call say,LINK,$@)$(ARM_CC) -static -Wl,--gc-sections -o $@ $^ -lm

$(BUILD)/http-server: $(call obj,tests/http_server.c)
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^

$(BUILD)/key-latency: $(call obj,tests/key_latency.c engine/base/priority.c)
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ -lutil

$(BUILD)/make-store: $(call obj,tests/make_store.c tests/fill_store.c) $(OBJ_APP) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

-include $(shell find $(wildcard $(BUILD)/obj $(BUILD)/arm/obj) /dev/null -name '*.d')

# --- what a newcomer types -------------------------------------------------------------------------------------

run: $(BUILD)/pippin    ## build what is missing, open the chat with the bundled model (ARGS="..." are passed on)
	$(Q)$(BUILD)/pippin $(ARGS)

# What is seldom used is built all the same, so that it is found out when it cannot be.
test: $(addprefix $(BUILD)/,pippin pippin-tests pippin-fake http-server make-store soak key-latency)    ## build and run all tests
	$(Q)if command -v $(ARM_CC) >/dev/null; then $(MAKE) DEPS= $(BUILD)/arm/kernel-tests; fi
	$(Q)BUILD=$(BUILD) PIPPIN_TESTDATA=$(TESTDATA) sh tests/run.sh

deps: $(DEPS)    ## install missing Debian packages (as root or by sudo), or say which are missing
$(DEPS): tests/deps.sh
	$(Q)sh tests/deps.sh $(DEPS_FOR)
	$(Q)mkdir -p $(BUILD) && touch $@

# --- what a developer types ------------------------------------------------------------------------------------

SANITIZED = BUILD=$(BUILD)/$(1) OPT='-O1 -g' CFLAGS='-fno-omit-frame-pointer -fsanitize=$(2)' LDFLAGS='-fsanitize=$(2)'

SOAK_HOURS ?= 24
test-long: $(BUILD)/soak $(BUILD)/pippin $(BUILD)/pippin-tests | $(DEPS)    ## a day of chatting in some minutes: nothing grows (SOAK_HOURS=24); verse is learnt; speculation with all prompts; perplexity in all types
	$(Q)PIPPIN_LONG=1 PIPPIN_TESTDATA=$(TESTDATA) $(BUILD)/pippin-tests train speculate
	$(Q)PIPPIN_LONG=1 BUILD=$(BUILD) PIPPIN_TESTDATA=$(TESTDATA) sh tests/test_quants.sh
	$(Q)dir=$$(mktemp -d) && { $(BUILD)/soak $$dir $(SOAK_HOURS); code=$$?; rm -rf $$dir; exit $$code; }

asan: | $(DEPS)    ## the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(Q)$(MAKE) $(call SANITIZED,asan,address$(,)undefined) $(BUILD)/asan/pippin-tests
	$(Q)UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PIPPIN_TESTDATA=$(TESTDATA) $(BUILD)/asan/pippin-tests $(ARGS)

# What libreadline and libc hold at the end is theirs; what tests limit a process to is less than a sanitized one needs.
ASAN_SCRIPTS := tests/test_cli.sh tests/test_cli_wrong.sh tests/screens/run.sh
asan-scripts: | $(DEPS)    ## the tests of commands and screens, with a program built like that
	$(Q)$(MAKE) $(call SANITIZED,asan,address$(,)undefined) $(addprefix $(BUILD)/asan/,pippin pippin-fake)
	$(Q)export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/tests/leaks.supp:print_suppressions=0 \
	  PIPPIN_SANITIZED=1 BUILD=$(BUILD)/asan PIPPIN_TESTDATA=$(TESTDATA); for s in $(ASAN_SCRIPTS); do sh $$s || exit 1; done

tsan: | $(DEPS)    ## the unit tests under ThreadSanitizer
	$(Q)$(MAKE) $(call SANITIZED,tsan,thread) $(BUILD)/tsan/pippin-tests
	$(Q)TSAN_OPTIONS=halt_on_error=1 PIPPIN_TESTDATA=$(TESTDATA) $(BUILD)/tsan/pippin-tests $(ARGS)

, := ,
FUZZ_SECONDS ?= 600
FUZZ_FLAGS := -std=gnu17 -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=undefined -ffp-contract=off -D_GNU_SOURCE -DPP_SCALAR_ONLY \
              -DPP_VERSION='"$(VERSION)"' -DPP_DATADIR='"$(PREFIX)/share/pippin"' -I.
# The scalar kernels are enough here, and clang then needs no per-file flags. Of the rest the linker takes what a target asks for.
SRC_FUZZED := $(SRC_BASE) $(filter-out $(ISA_FILES),$(SRC_ENGINE)) $(SRC_APP) $(SRC_UI) \
              $(foreach n,gguf_file hostile support tiny_model tokenizers,tests/$(n).c)
fuzz_obj    = $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(1))

$(BUILD)/fuzz/obj/%.o: %.c | $(DEPS)
	$(call say,FUZZ-CC,$<)mkdir -p $(@D) && clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link,address,undefined -MMD -MP -c -o $@ $<

$(BUILD)/fuzz/libfuzzed.a: $(call fuzz_obj,$(SRC_FUZZED))
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $^

$(addprefix $(BUILD)/fuzz/,$(FUZZERS)): $(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/tests/%.o $(BUILD)/fuzz/libfuzzed.a
	$(call say,LINK,$@)clang -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS_TEST) $(LIBS_APP) -lcurl $(LIBS_ENGINE)

-include $(shell [ -d $(BUILD)/fuzz/obj ] && find $(BUILD)/fuzz/obj -name '*.d')

fuzz: $(addprefix $(BUILD)/fuzz/,$(FUZZERS))    ## every fuzz target for FUZZ_SECONDS (600) each; what is found lands in build/fuzz
	$(Q)for f in $(FUZZERS); do mkdir -p $(BUILD)/fuzz/corpus/$$f && echo "$$f" && \
	  nice $(BUILD)/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=$(BUILD)/fuzz/$$f- $(BUILD)/fuzz/corpus/$$f tests/corpus/$$f || exit 1; done

# cppcheck does not know that jinja_fail() never returns. Of clang-tidy the analyzer; it cannot read the files of one instruction set.
CPPCHECK := cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
            -D'jinja_fail(...)=abort()' $(addprefix --suppress=,unknownMacro missingIncludeSystem uninitvar invalidPointerCast \
            duplicateAssignExpression arrayIndexOutOfBoundsCond invalidFunctionArg:src/cmd_perplexity.c)
TIDY     := clang-tidy --quiet --warnings-as-errors='*' \
            --checks='-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*,-clang-analyzer-valist.*'
LINTED   := $(filter-out $(ISA_FILES) %/error.c,$(SRC_BASE) $(SRC_ENGINE) $(SRC_APP) src/main.c $(SRC_UI))

lint: $(addprefix lint/,$(LINTED)) | $(DEPS)    ## cppcheck and clang-tidy over our code
	$(Q)$(CPPCHECK) -D_GNU_SOURCE -DPP_VERSION='""' -I. engine src ui

$(addprefix lint/,$(LINTED)): lint/%: | $(DEPS)
	$(call say,TIDY,$*)$(TIDY) $* -- -std=gnu17 -D_GNU_SOURCE -DPP_VERSION='""' -I. -include tests/lint.h 2>/dev/null

latency: $(BUILD)/key-latency $(BUILD)/pippin    ## how much later than a bare echo a key reaches the screen while the model answers
	$(Q)$(BUILD)/key-latency $(BUILD)/pippin

STARTER := engine/starter
starter: $(BUILD)/pippin    ## make the bundled model files anew from TESTDATA/starter
	$(Q)ln -sfn "$$(cd $(TESTDATA) && pwd)/starter/target" $(BUILD)/pippin-starter # a model is named after its folder
	$(Q)ln -sfn "$$(cd $(TESTDATA) && pwd)/starter/draft" $(BUILD)/pippin-starter-draft
	$(Q)$(BUILD)/pippin quantize $(BUILD)/pippin-starter $(STARTER)/starter-Q4_K_M.gguf Q4_K_M
	$(Q)$(BUILD)/pippin quantize $(BUILD)/pippin-starter-draft $(STARTER)/starter-draft-Q4_0.gguf Q4_0
	$(Q)$(BUILD)/pippin convert -m $(TESTDATA)/starter/target $(TESTDATA)/starter/lora-bard $(STARTER)/bard.gguf
	$(Q)$(BUILD)/pippin convert -m $(TESTDATA)/starter/target $(TESTDATA)/starter/lora-barista $(STARTER)/barista.gguf

# --- installing ------------------------------------------------------------------------------------------------

INSTALL ?= install
SHARE   := $(DESTDIR)$(PREFIX)/share
MANUALS := $(wildcard man/*.[157])

install: all    ## install under PREFIX (/usr/local), DESTDIR is put before it
	$(Q)$(INSTALL) -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/pippin/themes $(SHARE)/pippin/starter $(SHARE)/doc/pippin/doc \
	  $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(Q)$(INSTALL) -m 755 $(BUILD)/pippin $(DESTDIR)$(PREFIX)/bin/pippin
	$(Q)for m in $(MANUALS); do s=$${m##*.}; $(INSTALL) -d $(SHARE)/man/man$$s && $(INSTALL) -m 644 $$m $(SHARE)/man/man$$s/; done
	$(Q)$(INSTALL) -m 644 themes/*.theme $(SHARE)/pippin/themes/
	$(Q)$(INSTALL) -m 644 $(STARTER)/* $(SHARE)/pippin/starter/
	$(Q)$(INSTALL) -m 644 README.md LICENSE $(SHARE)/doc/pippin/
	$(Q)$(INSTALL) -m 644 doc/*.md $(SHARE)/doc/pippin/doc/
	$(Q)$(BUILD)/pippin --completion bash > $(SHARE)/bash-completion/completions/pippin
	$(Q)$(BUILD)/pippin --completion zsh > $(SHARE)/zsh/site-functions/_pippin
	$(Q)$(BUILD)/pippin --completion fish > $(SHARE)/fish/vendor_completions.d/pippin.fish

uninstall:    ## remove what install put there
	$(Q)rm -rf $(SHARE)/pippin $(SHARE)/doc/pippin
	$(Q)rm -f $(DESTDIR)$(PREFIX)/bin/pippin $(SHARE)/bash-completion/completions/pippin $(SHARE)/zsh/site-functions/_pippin \
	  $(SHARE)/fish/vendor_completions.d/pippin.fish $(foreach m,$(MANUALS),$(SHARE)/man/man$(subst .,,$(suffix $(m)))/$(notdir $(m)))

clean:    ## remove what was built
	$(Q)rm -rf $(BUILD)

help:    ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r t d; do printf '  make %-12s %s\n' "$$t" "$$d"; done
