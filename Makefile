# Every command of the project. Needs Rust, Python 3 and a C compiler.

TARGET := $(or $(CARGO_TARGET_DIR),target)
# The profile and the packages of the command and the C libraries, and the folder of that build.
PROFILE ?= release
PACKAGES ?= -p glebe-c -p glebe-cli -p glebe-preload -p glebe-huge
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
GLEBE := $(BUILT)/glebe
BENCH := $(BUILT)/glebe-bench

# What clippy checks: everything, with the features of the tests.
TESTED := --workspace --features glebe/cuda,glebe/faults
# Like .ci/run: incremental builds would cost work and 4 GB of disk.
export CARGO_INCREMENTAL ?= 0

# The folder for `make install`. DESTDIR goes before it only for copying.
PREFIX ?= /usr/local
export PREFIX DESTDIR

# This file says that everything to install is built: root, who may have no cargo, only copies. A
# newer source rebuilds it. SOURCES includes folders, which are newer after a file is deleted.
READY := $(BUILT)/.ready-to-install
SOURCES := $(shell find Makefile scripts/static_library.sh Cargo.toml Cargo.lock crates/*/Cargo.toml crates/*/build.rs crates/*/src)

# Modules without system calls, which Miri can run.
PURE := error:: extent:: free_tree:: stats:: units:: sizes::table::

.PHONY: help build demo test test-long vm vm-all bench aged fuzz sanitize miri doc man install uninstall
.PHONY: docs book release-check python mooncake lint fmt clippy plain no-codecs msrv rustdoc shape unsafe-list
.PHONY: units package deny aarch64 versions licences wheels packages packages-check

help:
	@echo "make demo     build the command and show the library at work"
	@echo "make test     every test: as root and not, without rseq, with faults, the loom models"
	@echo "make test-long  the same with whole state spaces, longer storms and tests of the benchmarks"
	@echo "make vm       tests in guests of QEMU: Linux 6.1, and pages of 16 KiB with two nodes"
	@echo "make vm-all   the same with more kernels, their settings and little memory"
	@echo "make lint     format, clippy, oldest Rust, docs, style, unsafe list, packages, licences"
	@echo "make bench    the benchmarks, programs under malloc, the stress tests; minutes each"
	@echo "make aged     age this machine, and judge the contiguous memory it gives (root, minutes)"
	@echo "make fuzz     a minute of each fuzz target"
	@echo "make sanitize the reserve under the address and the thread sanitizer, with a nightly"
	@echo "make miri     the modules without system calls under Miri, if it is installed"
	@echo "make doc      the documentation, in $(TARGET)/doc"
	@echo "make docs     check links, figures, messages, commands and pictures of the pages"
	@echo "make book     the pages as a book, in $(TARGET)/book, if mdBook is installed"
	@echo "make aarch64  compile the library for aarch64"
	@echo "make release-check  docs, book, packages and their check, aarch64, short fuzzing; the pages for"
	@echo "              newcomers, here and in Debian"
	@echo "make man      update the manual pages in man/ from the command"
	@echo "make python   the wheel for Python, in $(TARGET)/wheels; pip fetches what builds it"
	@echo "make wheels   the same, and the wheel for aarch64"
	@echo "make mooncake  an environment with Mooncake's package, for tests and the benchmark hosts"
	@echo "make build    the command, the C library and the allocator, as they are installed"
	@echo "make install  these, manual pages and shell completions, in PREFIX ($(PREFIX)), under"
	@echo "              DESTDIR if set; builds only what is missing; make uninstall removes them"
	@echo "make packages  for Debian, Python and crates.io, in $(TARGET)/packages"
	@echo "make packages-check  versions, licences, packages and newcomers' pages in Debian trees (root)"

build: $(READY)

$(READY): $(SOURCES)
	cargo build --profile $(PROFILE) $(PACKAGES)
	mkdir -p $(BUILT)/completions
	for shell in bash zsh fish; do \
	    $(GLEBE) completions $$shell >$(BUILT)/completions/$$shell || exit; \
	done
	mkdir -p $(BUILT)/static
	scripts/static_library.sh $(BUILT) $(BUILT)/static/libglebe.a
	touch $@

# The demo needs only the command.
demo: SHOWN := $(TARGET)/demo
demo:
	@echo "builds the command, which takes about a minute on two cores; then it runs for half a minute"
	cargo build --profile demo -p glebe-cli --no-default-features
	$(SHOWN)/glebe demo --json $(SHOWN)/demo.json
	scripts/plot.py $(SHOWN)/demo.json >$(SHOWN)/demo.svg
	@echo "picture   $(SHOWN)/demo.svg"

test:
	scripts/test.py

test-long:
	scripts/test.py --long --benchmarks

vm:
	scripts/vm.py

vm-all:
	scripts/vm.py --all
	scripts/kernels.py

bench:
	cargo build --profile $(PROFILE) -p glebe-bench --features jemalloc
	cargo build --profile $(PROFILE) -p glebe-preload
	for name in $$($(BENCH) list); do $(BENCH) $$name || exit; done
	scripts/malloc_programs.py --long --lib $(BUILT)/libglebe_malloc.so
	GLEBE_STRESS_SECONDS=120 cargo test --release -p glebe -p glebe-volatile --test it stress
	GLEBE_STRESS_SECONDS=120 cargo test --release -p glebe-preload --test it stress_malloc

# Fills memory, and takes memory blocks offline and back.
aged:
	scripts/aged/test_aged.py
	scripts/aged/accept.py --blocks 10 --json $(TARGET)/aged.json

python:
	PROFILE=$(PROFILE) scripts/python.sh wheel

wheels:
	PROFILE=$(PROFILE) scripts/python.sh wheels

mooncake:
	scripts/mooncake.sh

fuzz:
	fuzz/run.sh 60

sanitize:
	scripts/sanitize.sh

miri:
	@if cargo +nightly miri --version >/dev/null 2>&1; then \
	    MIRIFLAGS="-Zmiri-disable-isolation $$MIRIFLAGS" PROPTEST_CASES=$${PROPTEST_CASES:-4} \
	        cargo +nightly miri test -p glebe-os -p glebe-vmap -p glebe-zpool --lib --target-dir $(TARGET)/miri -- $(PURE); \
	else \
	    echo "skipped: Miri (no nightly toolchain with the miri component)"; \
	fi

# Leaves out the C libraries, whose reference is their headers, and which share names with others.
doc:
	cargo doc --workspace --exclude glebe-c --exclude glebe-huge --exclude glebe-preload \
	    --exclude glebe-python --lib --no-deps
	scripts/doc_items.py $(TARGET)
	cargo doc -p glebe --lib --no-deps --features cuda

# The options of the commands are checked if `make test` has built the command.
docs: TESTED_GLEBE := $(wildcard $(TARGET)/debug/glebe)
docs:
	scripts/docs.py --self-test
	scripts/docs.py $(TESTED_GLEBE:%=--glebe %)
	scripts/plot.py --check

# Installing mdBook by cargo takes minutes, so CI does not.
book:
	@if command -v mdbook >/dev/null 2>&1; then \
	    mdbook build --dest-dir $(abspath $(TARGET))/book && scripts/docs.py --book $(TARGET)/book; \
	else \
	    echo "skipped: the book (no mdbook; cargo install mdbook)"; \
	fi

# Python's examples run if `make python` has made its environment.
release-check: build docs book packages aarch64
	scripts/newcomer.py --self-test
	scripts/newcomer.py --glebe $(GLEBE) \
	    $(if $(wildcard $(TARGET)/python/bin/python3),--python $(TARGET)/python/bin/python3)
	$(MAKE) packages-check
	fuzz/run.sh 3
	scripts/malloc_programs.py --self-test

install: $(READY)
	scripts/install.sh $(BUILT)

uninstall:
	scripts/install.sh --uninstall

man: build
	$(GLEBE) man man >/dev/null

lint: fmt clippy plain no-codecs msrv rustdoc shape docs unsafe-list units versions licences package deny

# Packs every published crate, in the order of their dependencies; with VERIFY= it also builds each
# from its package alone, which takes minutes.
VERIFY ?= --no-verify
UNPUBLISHED := bench testing python
package:
	cargo package -q --offline --allow-dirty $(VERIFY) --workspace $(UNPUBLISHED:%=--exclude glebe-%)

# All that a release publishes. Needs what `make python` needs, and debhelper, or root and Debian's
# packages: scripts/debian.py. `make packages-check` tries what is there, in Debian 12 and 13.
OUT := $(TARGET)/packages
packages: build wheels package
	mkdir -p $(OUT)
	rm -f $(OUT)/*.whl $(OUT)/*.tar.gz $(OUT)/*.crate $(OUT)/*.deb
	cp $(TARGET)/wheels/* $(TARGET)/package/*-$$(scripts/versions.py).crate $(OUT)/
	scripts/debian.py make $(BUILT) $(OUT)
	ls -l $(OUT)

packages-check: versions licences
	scripts/debian.py check $(OUT)
	scripts/debian.py newcomers $(OUT)

versions:
	scripts/versions.py --check

licences:
	scripts/licences.py --check

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy $(TESTED) --all-targets -- -D warnings

# As users build them: without the features for tests.
plain:
	cargo check $(PACKAGES)

# Without the codecs for object pools the library needs no C compiler. The server can do without TLS.
no-codecs:
	CC=false cargo check -p glebe -p glebe-zpool --no-default-features
	cargo check -p glebe-serve --no-default-features

# Checks with the oldest supported compiler, if it is installed.
msrv:
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	if cargo +$$version --version >/dev/null 2>&1; then \
	    cargo +$$version check --workspace --features glebe/cuda --all-targets --target-dir $(TARGET)/msrv; \
	else \
	    echo "skipped: Rust $$version (rustup toolchain install $$version)"; \
	fi

rustdoc:
	RUSTDOCFLAGS="-D warnings $$RUSTDOCFLAGS" cargo doc --workspace --exclude glebe-c \
	    --exclude glebe-huge --exclude glebe-preload --exclude glebe-python --lib --no-deps
	scripts/doc_items.py $(TARGET)
	RUSTDOCFLAGS="-D warnings $$RUSTDOCFLAGS" cargo doc -p glebe --lib --no-deps --features cuda

shape:
	scripts/shape.py --self-test
	scripts/shape.py

unsafe-list:
	scripts/unsafe_list.py

units:
	scripts/units.py

# Leaves out advisories, which would need the network.
deny:
	@if command -v cargo-deny >/dev/null 2>&1; then \
	    cargo deny --offline check bans licenses sources; \
	else \
	    echo "skipped: cargo-deny is not installed"; \
	fi

aarch64:
	scripts/aarch64.sh
