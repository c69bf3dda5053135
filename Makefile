# pippin - flat GNU Makefile: no recursion, objects in layer order, header dependencies made by the compiler.
# `make help` lists the targets; V=1 shows the commands.

VERSION := 0.1.0
PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= cc
BUILD   ?= build
TESTDATA ?= $(if $(PIPPIN_TESTDATA),$(PIPPIN_TESTDATA),../shared/testdata)

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2);)

LIBS_ENGINE := -lcjson -lpcre2-8 -lxxhash -lnettle -lpthread -lm
LIBS_APP    := -lsqlite3 -linih -lutf8proc -lmd4c -lreadline -lncursesw -ltinfo
LIBS_TEST   := -lcmocka

WARN   := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
OPT    ?= -O3 -g
CFLAGS_ALL := -std=gnu17 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC -pthread \
              -D_GNU_SOURCE -DPP_VERSION='"$(VERSION)"' -I. $(CFLAGS)
LDFLAGS_ALL := -pthread $(LDFLAGS)

# --- layers, lowest first ------------------------------------------------------------------------------------

SRC_BASE   := $(sort $(wildcard engine/base/*.c))
SRC_ENGINE := $(sort $(wildcard engine/*.c)) $(sort $(wildcard engine/arch/*.c)) $(sort $(wildcard engine/cpu/*.c))
SRC_APP    := $(filter-out src/main.c,$(sort $(wildcard src/*.c)))
SRC_UI     := $(sort $(wildcard ui/*.c))
SRC_MAIN   := src/main.c
SRC_TEST   := $(sort $(wildcard tests/test_*.c)) tests/runner.c tests/support.c
SRC_FUZZ   := $(sort $(wildcard tests/fuzz_*.c))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
OBJ_LIB  := $(call obj,$(SRC_BASE) $(SRC_ENGINE))
OBJ_APP  := $(call obj,$(SRC_APP) $(SRC_UI))
OBJ_TEST := $(call obj,$(SRC_TEST))

ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/engine/cpu/%_avx2.o:   CFLAGS_ISA := -mavx2 -mfma -mf16c
$(BUILD)/obj/engine/cpu/%_avx512.o: CFLAGS_ISA := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mprefer-vector-width=512
endif

.PHONY: all
all: $(BUILD)/pippin $(BUILD)/libpippin.a

$(BUILD)/obj/%.o: %.c | $(BUILD)/.deps
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) $(CFLAGS_ALL) $(CFLAGS_ISA) -MMD -MP -c -o $@ $<

$(BUILD)/libpippin.a: $(OBJ_LIB)
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/pippin: $(call obj,$(SRC_MAIN)) $(OBJ_APP) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_APP) $(LIBS_ENGINE)

$(BUILD)/tests: $(OBJ_TEST) $(OBJ_APP) $(BUILD)/libpippin.a
	$(call say,LINK,$@)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_TEST) $(LIBS_APP) $(LIBS_ENGINE)

$(BUILD)/.deps:
	@mkdir -p $(BUILD) && touch $@

-include $(shell [ -d $(BUILD)/obj ] && find $(BUILD)/obj -name '*.d')
